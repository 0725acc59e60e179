"""A worker that a user started: it asks the master for the job, since they share no files."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import grpc

from elasticdl.errors import Refused, Unreachable
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec, knobs
from elasticdl.wire import PROTOCOL, auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.link import NO, OPTIONS

log = logging.getLogger(__name__)

# What a worker decides itself: where its copy of the model is, and how much it logs.
OWN = ("model_zoo", "model_def", "log_level")
# What is derived, or concerns only this worker.
NOT_ASKED = (
    "worker_id",
    "master_addr",
    "token_file",
    "runtime",
    "state_dir",
    "checkpoint_dir",
    "job_name",
    "use_async",
)


def work(own: JobSpec, token: str) -> int:
    """Take part in the job whose master `own` names, until it is over."""
    index = own.worker_id or 0
    configure_logging(own.log_level, f"worker {index}")
    part = _ask(str(own.master_addr), index, token, own.start_seconds)
    job = part_of(own, JobSpec.from_json(part.job))
    with tempfile.TemporaryDirectory(prefix="elasticdl-worker-") as folder:
        (Path(folder) / "job.json").write_text(job.to_json())
        (Path(folder) / "datasets.json").write_text(part.datasets)
        share = str(max(1, (os.cpu_count() or 1) // job.num_workers))  # threads that wait for a core spin
        os.environ |= {
            **{name: share for name in names.ENV_THREADS if name not in os.environ},
            **job.envs,
            names.ENV_JOB_FILE: str(Path(folder) / "job.json"),
            names.ENV_REPLICA: part.replica,
            names.ENV_TOKEN: token,
            names.ENV_MASTER_ADDR: str(own.master_addr),
            names.ENV_WORKER_ID: str(index),
            names.ENV_WORKER_NUM: str(job.num_workers),
        }
        from elasticdl.worker import main  # here: its imports may look at the environment

        return main.main()


def part_of(own: JobSpec, job: JobSpec) -> JobSpec:
    """The master's job, as this worker runs it."""
    given = own.given()
    for name, value in given.items():
        said = getattr(job, name)
        if name not in (*OWN, *NOT_ASKED) and knobs()[name].gone is None and said != value:
            knob = knobs()[name]
            log.warning("%s=%s changes nothing: the master uses %s", knob.flag, knob.spell(value), knob.spell(said))
    return job.with_values(**{name: given[name] for name in OWN if name in given})


def _ask(address: str, index: int, token: str, patience_seconds: float) -> pb.JoinReply:
    log.info("Asking the master at %s for the job", address)
    with tls.blocking_channel(address, OPTIONS, None) as channel:
        stub = ControlStub(channel)
        request = pb.JoinRequest(protocol=PROTOCOL, worker=index)
        try:
            reply: pb.JoinReply = stub.Join(
                request, metadata=auth.metadata(token), wait_for_ready=True, timeout=patience_seconds
            )
        except grpc.RpcError as error:
            if error.code() in NO:
                raise Refused(f"the master at {address} refused: {error.details()}") from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Refused(f"what answers at {address} is not a master of this version of ElasticDL") from error
            raise Unreachable(
                f"no master at {address} within {patience_seconds:g} s: start it, or give another --master_addr"
            ) from error
    return reply

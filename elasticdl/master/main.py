"""The master process: `python -m elasticdl.master`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from elasticdl import faults
from elasticdl.cluster.local import LocalCluster
from elasticdl.core.allreduce_job import AllreduceJob
from elasticdl.core.allreduce_state import AllreduceTerms
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.job import Job, Terms
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Budget
from elasticdl.core.steps import StepPlan
from elasticdl.data.dataset import Dataset
from elasticdl.errors import ElasticDLError, JobFailed
from elasticdl.files import write_durably
from elasticdl.job import loglines, names
from elasticdl.job.modes import mode
from elasticdl.job.spec import JobSpec
from elasticdl.master.actions import Actions
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master
from elasticdl.master.resume import restored, state_restored
from elasticdl.wire import tls
from elasticdl.wire.control_pb2_grpc import add_ControlServicer_to_server
from elasticdl.wire.link import SERVER_OPTIONS

log = logging.getLogger(__name__)


def terms_of(spec: JobSpec, training_records: int, validation_records: int) -> Terms:
    return Terms(
        str(spec.job_name), spec.num_workers, spec.num_ps_pods, Plan.of(spec, training_records), validation_records,
        spec.evaluation_steps, spec.max_bad_records, bool(spec.output), _budget(spec), spec.audit, _schedule(spec),
        mode(spec),
    )  # fmt: skip


def _budget(spec: JobSpec) -> Budget:
    limit = spec.limit("worker")
    return Budget(
        crashes=spec.relaunch_on_worker_failure,
        server_crashes=spec.ps_relaunch_max_num,
        start_seconds=spec.start_seconds,
        reconnect_seconds=spec.reconnect_seconds,
        hang_seconds=spec.hang_seconds,
        raise_memory=spec.enable_automate_memory and limit is not None and limit.memory is not None,
    )


def allreduce_terms_of(spec: JobSpec, training_records: int, validation_records: int) -> AllreduceTerms:
    return AllreduceTerms(
        str(spec.job_name), spec.num_workers, StepPlan.of(spec, training_records), spec.min_workers or 1,
        spec.max_workers or 0, spec.num_standby, spec.deterministic, spec.master_grace_seconds, validation_records,
        spec.evaluation_steps, bool(spec.output), spec.audit, _budget(spec), _schedule(spec), mode(spec),
        spec.max_bad_records,
    )  # fmt: skip


def _schedule(spec: JobSpec) -> Schedule:
    paths = names.JobPaths(Path(str(spec.state_dir)), str(spec.job_name))
    own = Path(str(spec.checkpoint_dir)) == paths.checkpoint
    return Schedule(spec.checkpoint_steps, spec.checkpoint_seconds, spec.keep_checkpoint_max, keep_transient=not own)


def main() -> int:
    job_file = Path(os.environ[names.ENV_JOB_FILE])
    replica = os.environ[names.ENV_REPLICA]
    spec = JobSpec.from_json(job_file.read_bytes())
    loglines.configure_logging(spec.log_level, replica)
    faults.arm(replica)
    try:
        return asyncio.run(_run(spec, names.JobPaths(Path(str(spec.state_dir)), str(spec.job_name))))
    except ElasticDLError as error:
        log.error("%s", error)
        return 1


async def _run(spec: JobSpec, paths: names.JobPaths) -> int:
    described = json.loads(paths.datasets.read_bytes())
    training = Dataset.from_json(described["training"])
    validation = Dataset.from_json(described["evaluation"]).records if "evaluation" in described else 0
    journal = Journal(paths.journal)
    starts = int(journal.fact("starts") or 0) + 1
    journal.remember("starts", starts)
    try:
        job, now = _recover(spec, training, validation, journal)
    except ElasticDLError as error:
        _conclude(paths, "failed", str(error), {})  # it will not go better the next time
        raise
    cluster = LocalCluster(Path(os.environ[names.ENV_LAUNCHER]))
    actions = Actions(spec, training, str(spec.checkpoint_dir))
    master = Master(job, now, journal, cluster, actions, os.environ[names.ENV_TOKEN], starts)
    if journal.fact("started_at") is None:
        journal.remember("started_at", master.chronicle.started_at)
    address = os.environ[names.ENV_MASTER_ADDR]
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_ControlServicer_to_server(master.streams, server)  # type: ignore[no-untyped-call]
    tls.listen(server, address, os.environ)
    await server.start()
    write_durably(paths.master_address, address.encode())
    log.info("Master of %s at %s, start %d: %d records an epoch", spec.job_name, address, starts, training.records)
    if validation:
        log.info(loglines.evaluation_started())
    try:
        await master.run()
        if validation:
            log.info(loglines.evaluation_stopped())
        await master.end()
        shown = MessageToDict(master.status(), preserving_proto_field_name=True)
        _conclude(paths, job.outcome, job.reason, shown)
    finally:
        await cluster.close()
        await server.stop(0.5)
        journal.close()
    return 1 if job.outcome == "failed" else 0


def _recover(spec: JobSpec, training: Dataset, validation: int, journal: Journal) -> tuple[Job | AllreduceJob, float]:
    """The job as the journal left it, or as it begins."""
    known = journal.fact("data")
    if known is None:
        journal.remember("data", training.to_json())
    elif training.fingerprint() != Dataset.from_json(known).fingerprint():
        changed = "; ".join(Dataset.from_json(known).difference(training))
        raise JobFailed(f"the training data changed while the job was running: {changed}")
    if spec.distribution_strategy == "AllreduceStrategy":
        begin = AllreduceJob.new(allreduce_terms_of(spec, training.records, validation))
        if spec.checkpoint_dir_for_init and not journal.begun:
            begin = state_restored(begin, Path(spec.checkpoint_dir_for_init), spec, training)
            journal.keep_state(begin, 0.0, every=0)
        return journal.recover(begin)
    start = Job.new(terms_of(spec, training.records, validation))
    if spec.checkpoint_dir_for_init and not journal.begun:
        # Kept in the journal: the next master needs the old checkpoint no more.
        start = restored(start, Path(spec.checkpoint_dir_for_init), spec, training)
        journal.keep_state(start, 0.0, every=0)
    return journal.recover(start)


def _conclude(paths: names.JobPaths, outcome: str, reason: str, shown: dict[str, Any]) -> None:
    """Say how the job ended, for the launcher and for people who ask later."""
    result = {"outcome": outcome, "reason": reason, "status": shown}
    write_durably(paths.result, json.dumps(result, indent=1).encode())

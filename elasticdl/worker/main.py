"""The worker process: `python -m elasticdl.worker`."""

from __future__ import annotations

import logging
import os
import signal
import uuid
from pathlib import Path
from types import FrameType

from elasticdl import faults
from elasticdl.cluster.protocol import EXIT_OUT_OF_MEMORY
from elasticdl.data.dataset import Dataset
from elasticdl.errors import DataError, ElasticDLError, JobFailed, Unreachable
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec
from elasticdl.ps.client import Client
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.wire import datasets
from elasticdl.wire.auth import Keys
from elasticdl.worker import audit
from elasticdl.worker.batches import Source, load
from elasticdl.worker.control import Control
from elasticdl.worker.session import Session
from elasticdl.worker.sources import open_source
from elasticdl.worker.worker import Worker

log = logging.getLogger(__name__)

CAPACITY = 2  # the lease being trained, and the one read ahead


def main() -> int:
    job_file = Path(os.environ[names.ENV_JOB_FILE])
    replica = os.environ[names.ENV_REPLICA]
    spec = JobSpec.from_json(job_file.read_bytes())
    configure_logging(spec.log_level, replica)
    faults.arm(replica)
    keep_freed_memory()
    try:
        return _work(spec, replica, job_file)
    except MemoryError:
        log.error("Out of memory")
        return EXIT_OUT_OF_MEMORY
    except Unreachable as error:  # no fault of this worker's: it left as if it had been told to
        log.error("%s", error)
        return 128 + signal.SIGTERM
    except ElasticDLError as error:
        log.error("%s", error)
        return 1


def _work(spec: JobSpec, replica: str, job_file: Path) -> int:
    code = ModelFile(ModelRequest.of(spec))
    described = datasets.described(job_file, spec)
    sources = {}
    for mode, path in (("training", spec.training_data), ("evaluation", spec.validation_data)):
        if path:
            reader = open_source(spec, code, path, mode)
            dataset = Dataset.from_json(described[mode])
            if changed := dataset.difference(reader.describe()):
                remedy = "Put the old files back, or start another job."
                raise DataError(path, f"the data changed since the job started: {'; '.join(changed)}", remedy)
            sources[mode] = Source(reader, dataset, spec, mode)
    if spec.distribution_strategy == "AllreduceStrategy":
        from elasticdl.worker import replicated  # here, since it needs torch, which other jobs may do without

        return replicated.work(spec, replica, code, sources)
    training = sources["training"]

    def sample() -> Arrays:
        """Features of the first records, for models that learn their shapes from data."""
        count = min(spec.minibatch_size, training.dataset.records)
        return load(training, 0, 0, count, (), code.feed).features

    model = load_trainable(code, spec.seed, sample)
    session = Session(replica, uuid.uuid4().hex, CAPACITY, in_order=not spec.asynchronous)
    token, address = os.environ[names.ENV_TOKEN], os.environ[names.ENV_MASTER_ADDR]
    certificate = os.environ.get(names.ENV_TLS_CERT)
    control = Control(session, address, token, spec.master_grace_seconds, certificate)

    def leave(_signum: int, _frame: FrameType | None) -> None:
        control.leave()

    signal.signal(signal.SIGTERM, leave)
    control.start()
    held = model.parameters
    for note in model.notes:
        log.info("%s", note)
    log.info("Ready: %d dense values, %d tables", sum(v.size for v in held.variables), len(held.tables))
    found = control.wait_for_servers()
    if found is not None:
        held = audit.added(held) if spec.audit else held
        client = Client(found[0], token, held, found[1], keys=Keys.of(os.environ))
        control.on_change(client.interrupt)
        try:
            Worker(spec, code, model, training, sources.get("evaluation"), control, client).run()
        except JobFailed:
            control.close()  # the master hears why
            raise
        finally:
            client.close()
    control.close()
    log.info("Done: %s", session.shutdown or "leaving")
    # Leaving on SIGTERM is no normal end, and the master may not have heard why.
    return 0 if session.shutdown else 128 + signal.SIGTERM

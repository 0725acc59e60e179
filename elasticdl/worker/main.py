"""The worker process: `python -m elasticdl.worker`."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from elasticdl import faults
from elasticdl.cluster.protocol import EXIT_OUT_OF_MEMORY
from elasticdl.data.dataset import Dataset
from elasticdl.errors import DataError, ElasticDLError, Unreachable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.wire import datasets
from elasticdl.worker.batches import Source
from elasticdl.worker.sources import open_source
from elasticdl.worker.trainer import trainer_of

log = logging.getLogger(__name__)


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
    except Unreachable as error:  # not this worker's fault: it leaves as after SIGTERM
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
    return trainer_of(spec).work(spec, replica, code, sources)

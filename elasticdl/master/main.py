"""The master process: `python -m elasticdl.master`."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from elasticdl import faults
from elasticdl.cluster.local import LocalCluster
from elasticdl.errors import ElasticDLError
from elasticdl.job import loglines, names
from elasticdl.job.outcome import Outcome
from elasticdl.job.spec import JobSpec
from elasticdl.master import running

log = logging.getLogger(__name__)


def main() -> int:
    job_file = Path(os.environ[names.ENV_JOB_FILE])
    replica = os.environ[names.ENV_REPLICA]
    spec = JobSpec.from_json(job_file.read_bytes())
    loglines.configure_logging(spec.log_level, replica)
    faults.arm(replica)
    try:
        if spec.runtime == "kubernetes":
            from elasticdl.master import in_cluster  # here, since its HTTP client takes a while to import

            return asyncio.run(in_cluster.run(spec, replica))
        return asyncio.run(_run(spec, names.JobPaths(Path(str(spec.state_dir)), str(spec.job_name))))
    except ElasticDLError as error:
        log.error("%s", error)
        return 1


async def _run(spec: JobSpec, paths: names.JobPaths) -> int:
    """As a process of this machine, whose launcher starts the replicas."""
    address = os.environ[names.ENV_MASTER_ADDR]
    listening = f"0.0.0.0:{address.rpartition(':')[2]}" if spec.workers_by_hand else address
    result = await running.run(spec, paths, LocalCluster(Path(os.environ[names.ENV_LAUNCHER])), listening)
    running.conclude(paths, result)
    return 1 if result["outcome"] == Outcome.FAILED else 0

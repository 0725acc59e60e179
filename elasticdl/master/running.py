"""One life of a master, as a process or in a pod: from the journal to the end of the job."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from elasticdl.cluster.protocol import Cluster
from elasticdl.core.machine import Machine
from elasticdl.data.dataset import Dataset
from elasticdl.errors import ElasticDLError, JobFailed, SentAway, UsageError
from elasticdl.files import write_durably
from elasticdl.job import loglines, names
from elasticdl.job.outcome import Outcome
from elasticdl.job.spec import JobSpec
from elasticdl.master.actions import Actions
from elasticdl.master.journal import Journal
from elasticdl.master.master import Master
from elasticdl.master.side import side_of
from elasticdl.wire import tls
from elasticdl.wire.control_service import serve_control
from elasticdl.wire.link import SERVER_OPTIONS

log = logging.getLogger(__name__)

Result = dict[str, Any]  # outcome, reason, and the last status
Farewell = Callable[[Master], Coroutine[Any, Any, None]]  # ends when the master has to leave


async def run(
    spec: JobSpec, paths: names.JobPaths, cluster: Cluster, listening: str, farewell: Farewell | None = None
) -> Result:
    """Run the job to its end; its result. Closes the cluster in any case."""
    try:
        described = json.loads(paths.datasets.read_bytes())
        training = Dataset.from_json(described["training"])
        validation = Dataset.from_json(described["evaluation"]).records if "evaluation" in described else 0
        journal = Journal(paths.journal)
    except BaseException:  # whatever it was: the cluster must be closed
        await cluster.close()
        raise
    address = os.environ[names.ENV_MASTER_ADDR]
    server = grpc.aio.server(options=SERVER_OPTIONS)
    try:
        starts = int(journal.fact("starts") or 0) + 1
        journal.remember("starts", starts)
        try:
            machine, now = _recover(spec, training, validation, journal)
        except ElasticDLError as error:
            log.error("%s", error)
            # The next master would fail, too.
            return {"outcome": Outcome.FAILED, "reason": str(error), "status": {}}
        actions = Actions(spec, training, spec.checkpoint_dir or str(paths.checkpoint))
        master = Master(
            partial(side_of(spec), machine), now, journal, cluster, actions, os.environ[names.ENV_TOKEN], starts,
            datasets=json.dumps(described),
        )  # fmt: skip
        if journal.fact("started_at") is None:
            journal.remember("started_at", master.chronicle.started_at)
        serve_control(master.streams, server)
        tls.listen(server, listening, os.environ)
        await server.start()
        write_durably(paths.master_address, address.encode())
        text = "Master of %s at %s (start %d): %d records per epoch"
        log.info(text, spec.job_name, address, starts, training.records)
        if validation:
            log.info(loglines.EVALUATION_STARTED)
        await lead(master, farewell)
        if validation:
            log.info(loglines.EVALUATION_STOPPED)
        await master.end()
        await asyncio.to_thread(actions.folder.sweep)
        shown = MessageToDict(master.status(), preserving_proto_field_name=True)
        fatal = machine.replicas.fatal
        lost = {} if fatal is None else {"lost": {"name": fatal.name, "reason": fatal.reason}}
        return {"outcome": machine.outcome, "reason": machine.reason, "status": shown, **lost}
    finally:
        await cluster.close()
        await server.stop(0.5)
        journal.close()


async def lead(master: Master, farewell: Farewell | None) -> None:
    """Until the job is over; raises `SentAway` when the master has to leave before."""
    leading = asyncio.create_task(master.run())
    going = [asyncio.create_task(farewell(master))] if farewell is not None else []
    try:
        await asyncio.wait({leading, *going}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            going[0].result()
            raise SentAway("the next master continues")
        leading.result()
    finally:
        for task in (leading, *going):
            task.cancel()
        await asyncio.wait({leading, *going})


def conclude(paths: names.JobPaths, result: Result) -> None:
    """Write how the job ended, for the process that restarts masters and for later questions."""
    write_durably(paths.result, json.dumps(result, indent=1).encode())


def _recover(spec: JobSpec, training: Dataset, validation: int, journal: Journal) -> tuple[Machine, float]:
    """The job as the journal left it, or as it begins."""
    known = journal.fact("data")
    if known is None:
        journal.remember("data", training.to_json())
    elif training.fingerprint() != Dataset.from_json(known).fingerprint():
        changed = "; ".join(Dataset.from_json(known).difference(training))
        raise JobFailed(f"the training data changed while the job was running: {changed}")
    side = side_of(spec)
    machine = side.begin(spec, training, validation)
    if spec.checkpoint_dir_for_init and not journal.begun:
        # The journal has it from now on: the next master does not need the old checkpoint.
        checkpoint = Path(spec.checkpoint_dir_for_init)
        if problems := side.checkpoint_problems(checkpoint, spec, training):
            raise UsageError(problems)
        side.resume(machine, checkpoint)
        journal.keep_state(machine, 0.0, every=0)
    return journal.recover(machine)

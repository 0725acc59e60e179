"""The parameter server process: the control stream in one thread, the parameters in another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import uuid
from pathlib import Path

from elasticdl import faults
from elasticdl.errors import ElasticDLError
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec
from elasticdl.ps.service import Service
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.link import Link

log = logging.getLogger(__name__)


def main() -> int:
    spec = JobSpec.from_json(Path(os.environ[names.ENV_JOB_FILE]).read_bytes())
    replica = os.environ[names.ENV_REPLICA]
    configure_logging(spec.log_level, replica)
    faults.arm(replica)
    try:
        return asyncio.run(_serve(spec, replica))
    except ElasticDLError as error:
        log.error("%s", error)
        return 1


async def _serve(spec: JobSpec, replica: str) -> int:
    loop = asyncio.get_running_loop()
    token, address = os.environ[names.ENV_TOKEN], os.environ[names.ENV_MASTER_ADDR]
    _, _, index = names.parse_replica_name(replica)
    over = asyncio.Event()
    hello = pb.Hello(protocol=PROTOCOL, replica=replica, incarnation=uuid.uuid4().hex)

    def say(message: pb.FromReplica) -> None:
        loop.call_soon_threadsafe(link.send, message)

    init_from = Path(spec.checkpoint_dir_for_init) if spec.checkpoint_dir_for_init else None
    service = Service(index, spec.num_ps_pods, spec.seed, token, say, init_from=init_from)
    hello.address = service.address
    log.info("Serving parameters at %s", service.address)

    def receive(message: pb.ToReplica) -> None:
        if message.WhichOneof("body") == "shutdown":
            over.set()
        else:
            service.direct(message)

    link = Link(address, token, lambda: pb.FromReplica(hello=hello), receive, spec.master_grace_seconds)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:  # the thread's border: the process must not live on without it
            failed.append(error)
        loop.call_soon_threadsafe(over.set)

    thread = threading.Thread(target=run, name="parameters")
    thread.start()
    stream = asyncio.create_task(link.run())
    ended = asyncio.create_task(over.wait())
    done, _ = await asyncio.wait({stream, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not failed:
        service.stop()
    await asyncio.to_thread(thread.join)
    stream_failed = stream in done and stream.exception()
    for task in (stream, ended):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ElasticDLError):
        await stream
    if failed:
        raise failed[0]
    if stream_failed:
        raise stream_failed
    return 0

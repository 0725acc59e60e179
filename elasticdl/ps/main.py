"""The parameter server process: the control stream in one thread, the parameters in another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import uuid
from pathlib import Path

from elasticdl import faults
from elasticdl.errors import ElasticDLError, Unreachable
from elasticdl.job import names
from elasticdl.job.loglines import configure_logging
from elasticdl.job.spec import JobSpec
from elasticdl.ps.endpoint import LOCAL_HOST
from elasticdl.ps.memory import keep_freed_memory
from elasticdl.ps.service import Service
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.auth import Keys
from elasticdl.wire.link import Link

log = logging.getLogger(__name__)


def main() -> int:
    spec = JobSpec.from_json(Path(os.environ[names.ENV_JOB_FILE]).read_bytes())
    replica = os.environ[names.ENV_REPLICA]
    configure_logging(spec.log_level, replica)
    faults.arm(replica)
    keep_freed_memory()
    try:
        return asyncio.run(_serve(spec, replica))
    except Unreachable as error:  # no fault of this server's: it left as if it had been told to
        log.error("%s", error)
        return 128 + signal.SIGTERM
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

    folder = Path(os.environ[names.ENV_JOB_FILE]).parent
    local = names.JobPaths(folder.parent, folder.name).launcher_socket.parent
    service = Service(
        index, spec.num_ps_pods, spec.seed, token, say, os.environ.get(names.ENV_POD_IP) or LOCAL_HOST,
        keys=Keys.of(os.environ),
        directory=local if local.is_dir() else None, staleness_modulation=spec.lr_staleness_modulation,
    )  # fmt: skip
    hello.address = service.address
    log.info("Serving parameters at %s", service.address)

    def receive(message: pb.ToReplica) -> None:
        if message.WhichOneof("body") == "shutdown":
            over.set()
        else:
            service.direct(message)

    def greet() -> pb.FromReplica:
        hello.timeline = service.ledger.timeline
        return pb.FromReplica(hello=hello)

    certificate = os.environ.get(names.ENV_TLS_CERT)
    link = Link(address, token, greet, receive, spec.master_grace_seconds, certificate=certificate)
    leaving = asyncio.Event()

    async def go_without_master() -> None:
        await link.broken.wait()
        over.set()

    def leave() -> None:
        """Ask for this server's part to be saved; who has no master to ask, or is told twice, goes at once."""
        if leaving.is_set() or link.broken.is_set():
            over.set()
        leaving.set()
        link.send(pb.FromReplica(leaving=pb.Leaving()))
        tasks.append(asyncio.create_task(go_without_master()))

    tasks: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGTERM, leave)
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
    for task in (stream, ended, *tasks):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ElasticDLError):
        await stream
    if failed:
        raise failed[0]
    if stream_failed:
        raise stream_failed
    return 128 + signal.SIGTERM if leaving.is_set() else 0

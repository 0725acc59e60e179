"""The parameter server process: the control stream in one thread, the parameters in another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
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

    async def serve() -> int:
        return await ServerProcess(spec, replica).run()

    try:
        return asyncio.run(serve())
    except Unreachable as error:  # not this server's fault: it ends as if it had received SIGTERM
        log.error("%s", error)
        return 128 + signal.SIGTERM
    except ElasticDLError as error:
        log.error("%s", error)
        return 1


class ServerProcess:
    """One server: its service in a thread, the stream to the master in this loop."""

    def __init__(self, spec: JobSpec, replica: str) -> None:
        env = os.environ
        folder = Path(env[names.ENV_JOB_FILE]).parent
        sockets = names.JobPaths(folder.parent, folder.name).launcher_socket.parent
        token, certificate = env[names.ENV_TOKEN], env.get(names.ENV_TLS_CERT)
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._leaving = False
        self._service = Service(
            names.parse_replica_name(replica)[2], spec.num_ps_pods, spec.seed, token, self._report,
            env.get(names.ENV_POD_IP) or LOCAL_HOST, keys=Keys.of(env), directory=sockets if sockets.is_dir() else None,
            staleness_modulation=spec.lr_staleness_modulation,
        )  # fmt: skip
        self._hello = pb.Hello(
            protocol=PROTOCOL, replica=replica, incarnation=uuid.uuid4().hex, address=self._service.address
        )
        self._link = Link(
            env[names.ENV_MASTER_ADDR], token, self._greet, self._receive, spec.master_grace_seconds,
            certificate=certificate,
        )  # fmt: skip
        log.info("Serving parameters at %s", self._service.address)

    async def run(self) -> int:
        """Serve until the job is over, this server has left or something failed; returns the exit code."""
        self._loop.add_signal_handler(signal.SIGTERM, self._leave)
        stream = asyncio.create_task(self._link.run())
        serving = asyncio.create_task(asyncio.to_thread(self._service.run))
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({stream, serving, over}, return_when=asyncio.FIRST_COMPLETED)
        stream.cancel()
        self._service.stop()
        await serving
        with contextlib.suppress(asyncio.CancelledError):
            await stream
        return 128 + signal.SIGTERM if self._leaving else 0

    def _report(self, message: pb.FromReplica) -> None:
        """Called by the service's thread."""
        self._loop.call_soon_threadsafe(self._link.send, message)

    def _greet(self) -> pb.FromReplica:
        self._hello.timeline = self._service.ledger.timeline
        return pb.FromReplica(hello=self._hello)

    def _receive(self, message: pb.ToReplica) -> None:
        if message.WhichOneof("body") == "shutdown":
            self._over.set()
        else:
            self._service.direct(message)

    def _leave(self) -> None:
        """Ask the master to save this server's part first. Without a master, or at the second signal, end at once."""
        if self._leaving or self._link.broken.is_set():
            self._over.set()
        self._leaving = True
        self._link.send(pb.FromReplica(leaving=pb.Leaving()))
        self._without_master = asyncio.create_task(self._leave_without_master())

    async def _leave_without_master(self) -> None:
        await self._link.broken.wait()
        self._over.set()

"""`Launcher`: runs a local job's processes, keeps its master alive, and ends everything however the job ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGINT
from typing import Any

from google.protobuf.json_format import MessageToDict

from elasticdl.cli.interrupts import Interrupts
from elasticdl.cli.job_dir import write_private
from elasticdl.cli.local_job import read_result
from elasticdl.cli.master_client import MasterClient
from elasticdl.cluster.protocol import Exit, ReplicaRequest
from elasticdl.cluster.supervisor import Supervisor
from elasticdl.errors import Refused, Unreachable
from elasticdl.job import names
from elasticdl.job.outcome import Outcome
from elasticdl.job.spec import JobSpec
from elasticdl.wire.auth import Keys

BACKOFF_SECONDS = (1.0, 2.0, 4.0)  # before the master is started again after a crash
STOP_SECONDS = 60.0  # a graceful stop should take less
LEAVE_SECONDS = 5.0  # for replicas that are still there when the master is done
_CALL_SECONDS = 10.0
_GLANCE_SECONDS = 0.3

Result = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What the launcher is asked to run."""

    spec: JobSpec
    paths: names.JobPaths
    token: str
    port: int
    keys: Keys | None = None  # of the data plane, where it is encrypted

    @property
    def client(self) -> MasterClient:
        return MasterClient(f"127.0.0.1:{self.port}", self.token)

    def master(self) -> ReplicaRequest:
        """The request for the master's process."""
        spec = self.spec
        name = names.replica_name(self.paths.job_name, names.MASTER)
        env = {
            **spec.envs,
            names.ENV_JOB_FILE: str(self.paths.job_file),
            names.ENV_REPLICA: name,
            names.ENV_TOKEN: self.token,
            names.ENV_MASTER_ADDR: self.client.address,
            names.ENV_LAUNCHER: str(self.paths.launcher_socket),
            **(self.keys.env(servers=True) if self.keys is not None else {}),
        }
        limit = spec.limit(names.MASTER)
        cpu, memory = (limit.cpu, limit.memory) if limit is not None else (None, None)
        command = (sys.executable, "-m", "elasticdl.master")
        return ReplicaRequest(name, names.MASTER, 0, command, env, cpu, None if memory is None else int(memory))


class Launcher:
    """One run of one job. It reports what it does through `tell`."""

    def __init__(
        self,
        order: Order,
        interrupts: Interrupts,
        tell: Callable[[str], None],
        stopping: Callable[[str], None],
    ) -> None:
        self._order, self._interrupts = order, interrupts
        self._tell, self._stopping = tell, stopping
        self._supervisor = Supervisor(order.paths.logs, order.paths.launcher_socket)
        self._started = asyncio.Event()  # a master: set at each start

    async def start(self) -> None:
        """Be ready to start processes."""
        await self._supervisor.start()

    async def run(self) -> Result:
        """From the master's start to the end of the last process; how the job ended."""
        began = time.monotonic()
        master = asyncio.create_task(self._keep_master())
        stop = asyncio.create_task(self._stop_when_asked())
        at_once = asyncio.create_task(self._interrupts.second.wait())
        try:
            await asyncio.wait({master, at_once}, return_when=asyncio.FIRST_COMPLETED)
            if master.done():
                result = master.result()
                leaving = asyncio.create_task(self._supervisor.shutdown(LEAVE_SECONDS))
                await asyncio.wait({leaving, at_once}, return_when=asyncio.FIRST_COMPLETED)
            else:
                master.cancel()
                result = await self._stopped_at_once()
        finally:
            for task in (master, stop, at_once):
                task.cancel()
            await self._supervisor.shutdown(0)
        return {**result, "elapsed_seconds": round(time.monotonic() - began, 3)}

    # The master.

    async def _keep_master(self) -> Result:
        request, crashes = self._order.master(), 0
        while True:
            await self._supervisor.launch(request)
            self._started.set()
            end = await self._supervisor.wait(request.name)
            result = read_result(self._order.paths)
            if result:
                return result
            if end.from_outside:
                self._tell(f"The master was {end.reason}; restarting it. Its replicas keep running.")
                continue
            crashes += 1
            if crashes > len(BACKOFF_SECONDS):
                return _failed(f"the master failed {crashes} times: {end.reason}", end)
            wait = BACKOFF_SECONDS[crashes - 1]
            self._tell(f"The master failed ({end.reason}); restarting it in {wait:g} s.")
            await asyncio.sleep(wait)

    # The end.

    async def _stop_when_asked(self) -> None:
        await self._interrupts.first.wait()
        if self._interrupts.second.is_set():
            return  # at once: no checkpoint should begin
        number = self._interrupts.signal
        assert number is not None
        again = "Ctrl-C again" if number is SIGINT else f"Another {number.name}"
        self._stopping(f"Stopping: the servers write a checkpoint. {again} stops at once, without a checkpoint.")
        slow = f"Still stopping after {STOP_SECONDS:g} s. {again} stops at once, without a checkpoint."
        timer = asyncio.get_running_loop().call_later(STOP_SECONDS, self._tell, slow)
        try:
            while True:  # a master that is killed now must be asked again in its next life
                self._started.clear()
                with contextlib.suppress(Unreachable):
                    await self._order.client.stop(f"interrupted by {number.name}", _CALL_SECONDS)
                    await self._started.wait()
        except Refused as error:
            self._tell(f"The master refused to stop the job: {error}. {again} stops it at once.")
        finally:
            timer.cancel()

    async def _stopped_at_once(self) -> Result:
        """End every process now, after one glance at how far the job had come."""
        status: dict[str, Any] = {}
        with contextlib.suppress(Unreachable, Refused):
            seen = await self._order.client.status(_GLANCE_SECONDS)
            status = MessageToDict(seen, preserving_proto_field_name=True)
        await self._supervisor.shutdown(0)
        number = self._interrupts.signal
        name = number.name if number is not None else "a signal"
        return {"outcome": Outcome.STOPPED, "reason": f"at once by {name}; no checkpoint was written", "status": status}


def _failed(reason: str, end: Exit) -> Result:
    return {"outcome": Outcome.FAILED, "reason": "\n".join([reason, *end.last_lines]), "status": {}}


def write_result(paths: names.JobPaths, result: Result) -> None:
    """Keep how the job ended."""
    write_private(paths.result, json.dumps(result, indent=1))

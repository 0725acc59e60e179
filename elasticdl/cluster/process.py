"""One replica as a process of this machine: starts it, sends signals to it and determines how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from elasticdl.cluster.exits import Circumstances, OutOfMemoryKills, classify
from elasticdl.cluster.logs import open_log
from elasticdl.cluster.protocol import Exit, ReplicaRequest
from elasticdl.cluster.watch import all_ended, catches, group_members, on_exit

log = logging.getLogger(__name__)

_SHIM = Path(__file__).with_name("exec_shim.py")
_GROUP_END_SECONDS = 5.0  # SIGKILL takes milliseconds, unless a process hangs in the kernel
_STACK_SECONDS = 0.3  # to write its stack traces
_THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
# A killed process must not lose its last log lines, and a crashed one should log where.
_PYTHON_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def environment_of(request: ReplicaRequest, base: Mapping[str, str]) -> dict[str, str]:
    """The replica's whole environment: the base, then thread counts from its limits, then its own variables."""
    env = {**_PYTHON_DEFAULTS, **base}
    if request.cpu_limit is not None:
        env.update(dict.fromkeys(_THREAD_COUNTS, str(math.ceil(request.cpu_limit))))
    env.update(request.env)
    return env


class Process:
    """Starts in its own session and process group, and ends with every member of that group.

    The kernel kills it when the *thread* that made it ends, so it must be made in the launcher's main thread.
    """

    def __init__(
        self,
        request: ReplicaRequest,
        uid: str,
        log_dir: Path,
        base_environment: Mapping[str, str],
        kills_for_memory: OutOfMemoryKills,
        ended: Callable[[Process, Exit], None],
    ) -> None:
        self.request, self.uid = request, uid
        self._kills_for_memory, self._ended = kills_for_memory, ended
        self._stop_timer: asyncio.TimerHandle | None = None
        self._killed = False  # by us
        self._killed_because = ""
        self._ending: asyncio.Task[None] | None = None
        self._ended_at = 0.0
        limit = "-" if request.memory_limit_bytes is None else str(request.memory_limit_bytes)
        env = environment_of(request, base_environment)
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), limit, env.get("LC_CTYPE", "-")]
        file, self._log = open_log(log_dir / f"{request.name}.log", request.name, uid)
        with file:
            self._child = subprocess.Popen(
                [*shim, *request.command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._child.pid
        on_exit(self.pid, self._leader_ended)

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to the process (not to its children), and SIGKILL to the group after the grace period and a
        moment in which the process may log its stacks."""
        if self._ending is not None:
            return
        if grace_seconds <= 0:
            self.kill("stopped without a grace period")
            return
        loop = asyncio.get_running_loop()
        if self._stop_timer is None:
            os.kill(self.pid, signal.SIGTERM)
        elif self._stop_timer.when() <= loop.time() + grace_seconds:
            return  # an earlier stop leaves it less time
        else:
            self._stop_timer.cancel()
        because = f"it did not end within {grace_seconds:g} s of SIGTERM"
        self._stop_timer = loop.call_later(grace_seconds, self._hangs, because)

    def _hangs(self, because: str) -> None:
        """Let it write its stacks to its log, if it can, before it is killed."""
        if self._ending is not None or not catches(self.pid, signal.SIGUSR1):  # the signal would end it
            self.kill(because)
            return
        os.kill(self.pid, signal.SIGUSR1)
        os.kill(self.pid, signal.SIGCONT)  # a stopped process handles no signal
        self._stop_timer = asyncio.get_running_loop().call_later(_STACK_SECONDS, self.kill, because)

    def kill(self, because: str) -> None:
        if self._ending is None:
            self._killed, self._killed_because = True, because
            os.killpg(self.pid, signal.SIGKILL)

    def _leader_ended(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._ended_at = time.time()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        # Reap the leader only after its group is dead: until then its pid, which names the group, cannot be reused.
        await self._end_group()
        self._ended(self, self._reap())

    def _reap(self) -> Exit:
        try:
            _, wait_status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._child.returncode = 0  # Popen must not wait for it either
            return Exit(None, None, oom=False, reason="exit status unknown: other code in the launcher collected it")
        self._child.returncode = os.waitstatus_to_exitcode(wait_status)
        killed_by_others = self._child.returncode == -signal.SIGKILL and not self._killed
        known = Circumstances(
            last_lines=self._log.last_lines(),
            memory_limit_bytes=self.request.memory_limit_bytes,
            peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            kernel_killed_for_memory=killed_by_others and self._kills_for_memory.take_one(),
            killed_because=self._killed_because,
        )
        return replace(classify(wait_status, known), at=self._ended_at)

    async def _end_group(self) -> None:
        """Kill what the replica left behind and wait for it, so that its ports and files are free."""
        while True:
            members = group_members(self.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: no permission on zombies
                os.killpg(self.pid, signal.SIGKILL)
            if not members:
                return
            if not await all_ended(members, _GROUP_END_SECONDS):
                log.warning("Processes %s of %s are still running after SIGKILL", members, self.request.name)
                return

"""Real cuts between the processes of a job: a proxy on the way to the master, and which world committed what."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tests.processes.harness import RunningJob

RESET = struct.pack("ii", 1, 0)  # closing a connection says so to its other end at once
_LINE = re.compile(r"^\[(?P<at>[^\]]+)\] .*\] (World (?P<world>\d+): rank|Loss = .*, steps = (?P<step>\d+))", re.M)


class Proxy:
    """Forwards what it receives, until `freeze` keeps it or `refuse` closes all connections."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        self._flows, self._refuses = threading.Event(), False
        self._flows.set()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """As if every packet was lost: neither end notices."""
        self._flows.clear()

    def refuse(self) -> None:
        """Both ends notice the closed connection at once, and new connections are refused."""
        with self._lock:
            self._refuses = True
            for end in self._open:
                # Its pumps wake up from what they wait for; the linger makes a reset of it.
                with contextlib.suppress(OSError):  # it is closed already
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def heal(self) -> None:
        with self._lock:
            self._refuses = False
        self._flows.set()

    def close(self) -> None:
        self.refuse()
        self._flows.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                refused = self._refuses
            try:
                if refused:
                    raise OSError("refused")
                host, _, port = self._target().rpartition(":")
                far = socket.create_connection((host, int(port)), 5.0)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open += [near, far]
            for source, to in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, to), daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


@dataclass(frozen=True)
class Commit:
    at: float
    worker: str
    generation: int
    step: int


def commits(job: RunningJob) -> list[Commit]:
    """What every worker committed in which world, as its log tells; the job has to log every step."""
    found = []
    for log in job.paths.logs.glob("*-worker-*.log"):
        generation = 0
        for line in _LINE.finditer(log.read_text()):
            if line["world"]:
                generation = int(line["world"])
            else:
                found.append(Commit(_time(line["at"]), log.stem, generation, int(line["step"])))
    return sorted(found, key=lambda c: (c.at, c.step))


def worlds_entered(job: RunningJob) -> list[tuple[int, float]]:
    """Which worlds stood, and when, as their members' logs tell."""
    lines = [line for log in job.paths.logs.glob("*-worker-*.log") for line in _LINE.finditer(log.read_text())]
    return [(int(line["world"]), _time(line["at"])) for line in lines if line["world"]]


def _time(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def check_one_world_at_a_time(job: RunningJob, saved: int | None = None) -> None:
    """No world committed anything once a later one had begun, but the step that it was just about to commit.

    `saved`: the step of a checkpoint. One world may have gone back, to this one or a later one.
    """
    found = commits(job)
    worlds = sorted({c.generation for c in found})
    back = []
    for old, new in itertools.pairwise(worlds):
        last = max(c.step for c in found if c.generation == old)
        first = min(c.step for c in found if c.generation == new)
        if last > first:
            back.append(new)
            assert saved is not None and first > saved, (
                f"world {old} committed step {last}, world {new} already step {first}; saved: {saved}"
            )
    assert len(back) <= 1, f"worlds {back} went back"
    steps: dict[tuple[str, int], list[int]] = {}
    for c in found:
        steps.setdefault((c.worker, c.generation), []).append(c.step)
    for (worker, generation), theirs in steps.items():
        assert theirs == list(range(theirs[0], theirs[-1] + 1)), f"{worker} in world {generation}: {theirs}"

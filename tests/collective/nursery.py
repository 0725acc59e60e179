"""Workers in a fraction of the time: one process imports torch and everything else once, and forks workers.

They are processes as any other; only the seconds of importing are not paid for each of them.
`python -m tests.collective.nursery` reads what to start from its standard input, one JSON object per line, and writes
the process of each worker, and how each ended, to its standard output.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A worker's process, as the test that started it sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def send_signal(self, signum: int) -> None:
        if not self.ended.is_set():
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(9)


class Nursery:
    """Starts workers, and learns how they end."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.collective.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        self._started = threading.Condition()
        self._children: dict[str, Child] = {}
        self._count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, module: str, log: Path, env: Mapping[str, str], ended: Callable[[], None]) -> Child:
        """Run a module as a process of its own; `ended` is called when it is over."""
        self._count += 1
        key = str(self._count)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"key": key, "module": module, "log": str(log), "env": dict(env)}) + "\n")
        self._process.stdin.flush()
        with self._started:
            assert self._started.wait_for(lambda: key in self._children, 60), "no worker started within 60 s"
            child = self._children[key]
        threading.Thread(target=lambda: (child.ended.wait(), ended()), daemon=True).start()
        return child

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._started:
                if "pid" in event:
                    self._children[event["key"]] = Child(event["pid"])
                else:
                    child = next(c for c in self._children.values() if c.pid == event["ended"])
                    child.returncode = event["code"]
                    child.ended.set()
                self._started.notify_all()


def _become(order: Mapping[str, str | Mapping[str, str]]) -> None:
    """In the child: become the program that was asked for."""
    out = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for theirs, mine in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(theirs, mine)
    os.environ.update(order["env"])  # type: ignore[arg-type]
    code = 1
    try:
        runpy.run_module(str(order["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def _serve(orders: IO[str]) -> None:
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # imports as much as torch itself did
    answers = os.fdopen(os.dup(1), "w")

    def report(**what: object) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    for line in orders:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        report(key=order["key"], pid=pid)
        threading.Thread(
            target=lambda pid=pid: report(ended=pid, code=_code(os.waitpid(pid, 0)[1])), daemon=True
        ).start()


def _code(status: int) -> int:
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    _serve(sys.stdin)

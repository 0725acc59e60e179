"""Named fault points: places where a test may kill or stop this process.

`ELASTICDL_FAULTS="worker.after_ack@elasticdl-j-worker-0:3"` kills the replica of that name with SIGKILL the third time
it passes the point. `…:3=STOP` stops it with SIGSTOP, `*` stands for any replica, and commas separate entries.
A fault is first logged to the file `ELASTICDL_FAULT_LOG`, so that a test can count faults. An entry that is in the log
does not fire again, so that a replica which restarts under its name survives.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections import Counter
from pathlib import Path

POINTS = (
    "worker.between_pushes",  # one server has the batch, the next one does not
    "worker.before_confirm",  # every server has the batch of a synchronous round, none knows that all have it
    "worker.between_confirms",  # one server knows, and may be a version ahead of the next one
    "worker.after_ack",  # every server has the batch, the master does not know
    "worker.before_completion",  # the lease's last batch is committed, its completion is not reported
    "master.after_journal",  # events are in the journal, no command was executed
    "master.between_cut_phases",  # every server holds pushes, none has pinned
    "worker.before_manifest",  # the exported model is written, its manifest is not
    "server.before_freeze",  # every server holds pushes, some have pinned
    "server.writing",  # in the middle of a part of a checkpoint
    "server.part_written",  # a part is on disk, the master does not know
    "master.before_publishing",  # all parts are on disk, the manifest is not
    "server.restoring",  # the server has to roll back and has not read the checkpoint
)
# Of all-reduce jobs only.
WORLD_POINTS = (
    "worker.confirming",  # this worker has left its world, the master does not know
    "worker.building",  # the others know this worker's address and are about to connect
    "worker.copying",  # a part of the state was sent or received
    "worker.in_exchange",  # the others have part of this worker's sums, it has no total
    "worker.before_commit",  # the exchange is complete, the step is not in the model
    "worker.after_commit",  # the step is in this worker's model, the others do not know
    "worker.writing",  # in the middle of a checkpoint's files
    "worker.state_written",  # a checkpoint is on disk, the master does not know
)


class _Plan:
    def __init__(self, text: str, replica: str) -> None:
        # point -> at which pass, with which signal, and the entry
        self.at: dict[str, tuple[int, signal.Signals, str]] = {}
        self.seen: Counter[str] = Counter()
        for entry in filter(None, text.split(",")):
            point, _, rest = entry.partition("@")
            name, _, when = rest.partition(":")
            count, _, how = when.partition("=")
            if point not in POINTS + WORLD_POINTS:
                known = ", ".join(POINTS + WORLD_POINTS)
                raise ValueError(f"ELASTICDL_FAULTS: no fault point {point!r}; there are {known}")
            if name in ("*", replica):
                self.at[point] = (int(count or 1), signal.Signals[f"SIG{how or 'KILL'}"], entry)


_plan: _Plan | None = None


def arm(replica: str) -> None:
    """Read the plan for this replica; without this call a process has no fault points."""
    global _plan
    text = os.environ.get("ELASTICDL_FAULTS", "")
    _plan = _Plan(text, replica) if text else None


def point(name: str) -> None:
    """Die here if the plan says so."""
    if _plan is None or name not in _plan.at:
        return
    count, how, entry = _plan.at[name]
    _plan.seen[name] += 1
    if _plan.seen[name] != count:
        return
    log = os.environ.get("ELASTICDL_FAULT_LOG")
    if log:
        with Path(log).open("a+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)  # of several replicas that get here at once, one dies
            f.seek(0)
            if entry in f.read().split():
                return
            f.write(entry + "\n")
            f.flush()
            os.fsync(f.fileno())
    os.kill(os.getpid(), how)

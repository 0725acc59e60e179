"""Checkpoints and timelines: when the servers are saved, which cuts are on disk, and what a rollback goes back to.

When a server dies, the batches since the last checkpoint are lost. All servers then go back to that checkpoint: a new
timeline begins, in which those batches are trained again, and messages of an older timeline are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticdl.core.commands import Command, DeleteCheckpoints, PublishCheckpoint, RestoreServer, SettleSave
from elasticdl.core.plan import Position

TRANSIENT = 2  # of the checkpoints taken for the servers' sake: the newest, and one in case it turns out to be damaged


@dataclass(frozen=True)
class Schedule:
    """When to save, and what to keep of it."""

    steps: int = 0  # a lasting checkpoint every so many versions
    seconds: float = 0.0  # and one at least so often, in case a server dies; 0: none
    keep: int = 0  # how many lasting ones are kept; 0: all
    keep_transient: bool = False  # whether the others outlive a job that succeeds
    nowhere: bool = False  # there is no place for any that outlives the replicas: a stop does not wait for one


@dataclass
class Checkpoint:
    directory: str  # empty: the beginning, which needs no file
    position: Position
    lasting: bool = False

    def __str__(self) -> str:
        return f"version {self.position.version}" + (f" ({self.directory})" if self.directory else " (the beginning)")


@dataclass
class Writing:
    """A cut that is pinned on every server and on its way to the disk."""

    cut: int
    position: Position
    lasting: bool
    held: bool = False  # pushes stay held: it is the last thing that these servers do
    files: dict[str, str] = field(default_factory=dict)  # server -> its part, as JSON
    publishing: bool = False


@dataclass
class Checkpoints:
    servers: tuple[str, ...]
    schedule: Schedule = field(default_factory=Schedule)
    timeline: int = 1
    known: list[Checkpoint] = field(default_factory=lambda: [Checkpoint("", Position())])  # oldest first
    restored: set[str] = field(default_factory=set)  # servers that stand on this timeline
    writing: Writing | None = None
    settled: tuple[int, str] = (0, "")  # the last cut that was written, and where it was published, if it was
    reading: str = ""  # the one that a worker is about to read
    next_version: int = 0  # when the next lasting one is due; 0: not yet known
    next_time: float | None = None  # when the next one at all is due

    @property
    def newest(self) -> Checkpoint:
        return self.known[-1]

    @property
    def ready(self) -> bool:
        return self.restored == set(self.servers)

    # When.

    def started(self, now: float) -> None:
        """Training begins or goes on: count from here."""
        self._count(self.newest.position.version, now)

    def wanted(self, version: int, total: int, now: float) -> tuple[int, bool] | None:
        """At which version to cut for the next checkpoint, and whether it is a lasting one; None: none is due."""
        if self.writing is not None or not self.ready:
            return None
        if self.next_time is not None and now >= self.next_time and version > self.newest.position.version:
            lasting = bool(self.schedule.steps) and version >= self.next_version
            return 0, lasting
        if self.schedule.steps and self.next_version <= total:
            return self.next_version, True
        return None

    def deadline(self, version: int) -> float | None:
        """When the clock alone makes a checkpoint due."""
        if self.writing is not None or not self.ready or version <= self.newest.position.version:
            return None
        return self.next_time

    def _count(self, version: int, now: float) -> None:
        if self.schedule.steps:
            self.next_version = (version // self.schedule.steps + 1) * self.schedule.steps
        self.next_time = now + self.schedule.seconds if self.schedule.seconds else None

    # Writing.

    def begin(self, cut: int, position: Position, lasting: bool, held: bool, now: float) -> None:
        """Every server pinned the cut and writes it."""
        # Servers that hold at once go on a little: they may pass the version of a lasting one.
        passed = bool(self.schedule.steps) and position.version >= self.next_version
        self.writing = Writing(cut, position, lasting or passed, held)
        self._count(position.version, now)

    def wrote(self, server: str, cut: int, part: str) -> list[Command]:
        """A server's part is on disk."""
        w = self.writing
        if w is None or w.cut != cut or w.publishing or server not in self.servers:
            return []
        w.files[server] = part
        if set(w.files) != set(self.servers):
            return []
        w.publishing = True
        return self.unanswered()

    def unanswered(self) -> list[Command]:
        """The manifest that the shell was asked to write; after a restart of the master, once more."""
        w = self.writing
        if w is None or not w.publishing:
            return []
        return [PublishCheckpoint(w.cut, w.position, tuple(sorted(w.files.items())), w.lasting)]

    def give_up(self) -> list[Command]:
        """What is being written will never be complete."""
        w, self.writing = self.writing, None
        if w is None:
            return []
        self.settled = (w.cut, "")
        return [SettleSave(*self.settled)]

    def published(self, directory: str) -> tuple[Checkpoint, list[Command]]:
        """The manifest is there: from now on a rollback goes back to this, unless there is a newer one already."""
        w, self.writing = self.writing, None
        assert w is not None
        checkpoint = Checkpoint(directory, w.position, w.lasting)
        self.known = [c for c in self.known if c.directory != directory]  # of an older timeline, and overwritten
        self.known.append(checkpoint)
        self.known.sort(key=lambda c: c.position.version)  # one that another worker writes may be overtaken
        self.settled = (w.cut, directory)
        return checkpoint, [SettleSave(*self.settled), *self._forget()]

    def _forget(self) -> list[Command]:
        """What the schedule does not keep."""
        saved = [c for c in self.known if c.directory]
        lasting = [c for c in saved if c.lasting]
        kept = lasting[-self.schedule.keep :] if self.schedule.keep else lasting
        kept += saved[-TRANSIENT:]
        gone = [c for c in saved if c not in kept and c is not self.known[0] and c.directory != self.reading]
        self.known = [c for c in self.known if c not in gone]
        return [DeleteCheckpoints(tuple(c.directory for c in gone))] if gone else []

    def superfluous(self) -> list[DeleteCheckpoints]:
        """Once the job has succeeded: what was kept for the case that a server dies."""
        if self.schedule.keep_transient:
            return []
        gone = tuple(c.directory for c in self.known[1:] if c.directory and not c.lasting)
        return [DeleteCheckpoints(gone)] if gone else []

    # Going back.

    def roll_back(self) -> Checkpoint:
        """A new timeline begins at the newest checkpoint."""
        self.timeline += 1
        self.restored.clear()
        self.writing = None
        self.next_time = None
        return self.newest

    def damaged(self) -> Checkpoint | None:
        """The newest checkpoint cannot be read: the one before it, unless there is none."""
        if len(self.known) < 2:
            return None
        self.known.pop()
        return self.newest

    def restore(self, servers: Iterable[str]) -> list[Command]:
        to = self.newest
        return [RestoreServer(s, self.timeline, to.directory, to.position, len(self.servers)) for s in servers]

    def joined(self, server: str, timeline: int) -> list[Command]:
        """A server connected: it stands on this timeline, or has to restore it."""
        if timeline != self.timeline:
            self.restored.discard(server)
            return self.restore([server])
        self.restored.add(server)
        return [SettleSave(*self.settled, server)] if self.settled[0] else []

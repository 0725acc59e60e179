"""What happened: the only input of the machines, and what the journal keeps.

Every event is a frozen dataclass of plain values, so that the journal can write it as JSON and read it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter


@dataclass(frozen=True)
class Holding:
    """A lease as a worker sees it: what it holds, or finished and had no answer for."""

    shard: str
    attempt: int
    next_batch: int
    completed: bool = False
    result: str = ""
    skipped: int = 0  # batches of it that were skipped: their gradients were not finite


@dataclass_transform(frozen_default=True)
class Event:
    """Something that happened; every subclass is a frozen dataclass."""

    # A loss may be NaN or infinite. JSON has no word for them; null could not be read back.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="constants")

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


# What the cluster saw.


class ReplicaStarted(Event):
    name: str
    uid: str


class ReplicaGone(Event):
    name: str
    uid: str
    cause: str  # one of core.replicas.CAUSES
    reason: str
    last_lines: tuple[str, ...] = ()
    at: float = 0.0  # when it ended; 0: not known
    kind: str = ""  # what befell it, to be counted: preempted, evicted, deleted, crashed …


class ReplicaHeldUp(Event):
    """The cluster reports why a launched replica does not run yet; an empty note: nothing delays it."""

    name: str
    uid: str
    kind: str  # to be counted: unschedulable, image trouble …
    note: str


class MasterStarted(Event):
    """The master came (back) and listed the cluster: name and uid of each replica that is there, or was.

    For each that ended the cluster sends a `ReplicaGone`.
    """

    running: tuple[tuple[str, str], ...] = ()
    ended: tuple[tuple[str, str], ...] = ()
    waiting: tuple[str, ...] = ()  # of those that are there: the ones that do not run yet


# What the streams report.


class ReplicaJoined(Event):
    name: str
    incarnation: str
    address: str = ""
    holdings: tuple[Holding, ...] = ()
    capacity: int = 0
    timeline: int = 0  # of a server: the one it stands on
    generation: int = 0  # all-reduce: the world that a worker is in; 0: none
    fingerprint: str = ""  # what its arithmetic depends on


class ReplicaDropped(Event):
    """The stream broke; the process may well be alive."""

    name: str
    incarnation: str


# What workers report.


class BatchesCommitted(Event):
    """Every server acknowledged all batches below `next_batch`."""

    worker: str
    shard: str
    attempt: int
    next_batch: int
    loss: float = 0.0
    skipped: int = 0  # of these, how many were skipped


class ShardCompleted(Event):
    """A shard that is not trained (evaluation, summary, export, probe) is finished."""

    worker: str
    shard: str
    attempt: int
    result: str = ""


class BatchFailed(Event):
    """The user's code raised in a batch; the worker lives."""

    worker: str
    shard: str
    attempt: int
    batch: int
    error: str


class LeaseReturned(Event):
    """A worker gives a lease back because it is leaving or was refused by a server."""

    worker: str
    shard: str
    attempt: int
    reason: str


class ReplicaLeaving(Event):
    """A replica received SIGTERM: a worker takes no more leases, a server asks for its part to be saved."""

    name: str


class WorkerUnfit(Event):
    """The servers refuse the model itself: another worker would fare no better."""

    worker: str
    error: str


class RecordIdentified(Event):
    """Which record stands at a position: the answer to `IdentifyRecord`."""

    shard: str
    position: int
    record: int
    name: str


# What servers report.


class ServerHeld(Event):
    """A server holds all pushes; `counters` is the next batch it expects of each open shard.

    In synchronous training it holds at a version; if it is only coming there, because a round that it has begun ends
    there, it will report again.
    """

    server: str
    cut: int
    counters: tuple[tuple[str, int], ...]
    at: int = 0
    coming: bool = False


class ServerCut(Event):
    """A server pinned its part of the cut."""

    server: str
    cut: int


class ServerWrote(Event):
    """A server's part of a saved cut is on disk, or could not be written."""

    server: str
    cut: int
    part: str = ""  # its files, as JSON
    error: str = ""


class ServerRestored(Event):
    """A server restored the checkpoint that it was asked to, or cannot read it."""

    server: str
    timeline: int
    error: str = ""


# What workers of an all-reduce job report.


class WorldConfirmed(Event):
    """A worker has left the world it was in, and will be in this one; what it holds is `state`."""

    worker: str
    generation: int
    state: tuple[int, int]  # the generation that committed it, and its step
    left_seconds: float = 0.0  # from hearing of this world until the one before was left
    records: int = 0  # that the steps of its state trained


class WorldBroken(Event):
    """An exchange failed, or a group could not be built."""

    worker: str
    generation: int
    step: int
    error: str
    suspects: tuple[str, ...] = ()
    unreadable: str = ""  # the checkpoint that could not be read, where that was the trouble


class WorldFormed(Event):
    """A member's group stands, and it holds the state."""

    worker: str
    generation: int
    build_seconds: float = 0.0
    copy_seconds: float = 0.0
    copied_bytes: int = 0


class StepsCommitted(Event):
    """So many steps are in the model; reported now and then."""

    worker: str
    generation: int
    step: int
    loss: float | None = None
    first_step_seconds: float = 0.0  # of the first step of its world; 0: not known
    records: int = 0  # trained by those steps


class ModelEvaluated(Event):
    worker: str
    version: int
    metrics: str  # JSON


class ModelExported(Event):
    worker: str
    directory: str
    error: str = ""
    audit: str = ""
    number: int = 0  # of the request that it answers; 0: unknown


class RecordLeftOut(Event):
    """A worker left a record out of its part, since it cannot be read or fed. Every worker that meets it reports it."""

    worker: str
    record: int
    name: str
    error: str


class WorkerHung(Event):
    """A worker stands still while others wait for it."""

    worker: str
    reason: str
    since: float = 0.0  # 0: not known


# What the shell did.


class CheckpointPublished(Event):
    """The manifest of a saved cut is on disk (or could not be written): the answer to `PublishCheckpoint`."""

    cut: int
    directory: str
    error: str = ""


# What users and the clock ask for.


class StopRequested(Event):
    reason: str


class ScaleRequested(Event):
    role: str  # "worker" or "ps"
    count: int


class WorkerCame(Event):
    """A worker that was started by hand asked for its part."""

    index: int


class TimePassed(Event):
    pass


EVENTS: dict[str, type[Event]] = {c.__name__: c for c in Event.__subclasses__()}


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(EVENTS[name])


def encode(event: Event) -> tuple[str, bytes]:
    """Name and JSON of an event, as the journal keeps it."""
    name = type(event).__name__
    return name, _adapter(name).dump_json(event)


def decode(name: str, body: bytes) -> Event:
    event: Event = _adapter(name).validate_json(body)
    return event

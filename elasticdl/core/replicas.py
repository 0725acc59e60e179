"""The life of each replica: launched, running, joined, gone; which is replaced, under which name, and why.

Crashes have a budget and back off; preemption and loss have neither. A worker comes back under the next free index
(`worker-2`). A server comes back under its own name, and only once its predecessor is known to be gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.job.names import replica_name
from elasticdl.job.outcome import Outcome

PREEMPTED, CRASHED, OUT_OF_MEMORY, FINISHED = "preempted", "crashed", "out of memory", "finished"
TURNED_AWAY = "turned away"  # by a quota or a node: not the replica's fault, and tried again after a while
BLAMED = "crashed in a batch"  # the batch's records answer for it, not the worker's budget
BY_OTHERS = ("preempted", "evicted", "deleted", "node lost")  # kinds of ends, as a cluster reports them
CAUSES = (PREEMPTED, CRASHED, OUT_OF_MEMORY, FINISHED, TURNED_AWAY, BLAMED)
INITIAL = {"worker": "initial worker", "ps": "initial server"}  # why the first replicas are launched
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
MEMORY_GROWTH, MEMORY_RAISES = 1.5, 2
GRACE_SECONDS = 30.0  # for a worker that is dismissed


class State(StrEnum):
    LAUNCHED = "launched"  # asked of the cluster
    RUNNING = "running"  # the process is there, it has not spoken yet
    JOINED = "joined"
    LOST_TOUCH = "lost touch"  # the stream broke, the process may live
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True)
class Budget:
    """How patient to be."""

    crashes: int = 1  # relaunches after a crash, per worker's slot
    server_crashes: int = 1  # the same of a server
    start_seconds: float = 120.0
    reconnect_seconds: float = 30.0
    hang_seconds: float = 300.0
    raise_memory: bool = True


@dataclass
class Replica:
    name: str
    role: str
    index: int
    slot: int
    state: State = State.LAUNCHED
    uid: str = ""
    incarnation: str = ""
    address: str = ""
    since: float = 0.0  # when the state was entered
    detail: str = ""
    cause: str = ""  # why it is being stopped
    held_up: str = ""  # by what kind of trouble, before it runs


@dataclass(frozen=True)
class Lost:
    """A replica that is gone, or that failed too often."""

    name: str
    cause: str  # one of CAUSES
    reason: str  # as the cluster reported it, or as it was decided
    failures: int = 0  # how often its slot failed, where that was too often

    def __str__(self) -> str:
        how = f"failed {self.failures} time{'s' * (self.failures > 1)}" if self.failures else "is gone"
        return f"{self.name} {how}: {self.reason}"


@dataclass
class Slot:
    """A place that wants to be filled by one replica at a time."""

    role: str
    number: int  # a server's index; a worker's is chosen whenever one comes
    replica: str = ""  # the one that fills it
    crashes: int = 0
    turned_away: int = 0  # times in a row
    memory_raises: int = 0
    due: float = 0.0  # when the next one may be launched
    reason: str = ""
    past: list[str] = field(default_factory=list)  # uids and incarnations of those gone, where a name is used again
    wanted: bool = True
    on_trial: bool = False  # asked for while the job runs: if it cannot be had, the job goes on without


@dataclass
class Replicas:
    job: str
    budget: Budget = field(default_factory=Budget)
    slots: list[Slot] = field(default_factory=list)
    replicas: dict[str, Replica] = field(default_factory=dict)
    next_index: dict[str, int] = field(default_factory=dict)
    losses: int = 0  # replicas lost and replaced
    incidents: dict[str, int] = field(default_factory=dict)  # by kind, as the cluster reports what happened
    lost_servers: list[Lost] = field(default_factory=list)  # not yet dealt with by the machine
    not_to_be_had: list[Lost] = field(default_factory=list)  # the same of those that were on trial
    fatal: Lost | None = None  # the one that failed too often, which ends the job
    finished: bool = False  # the job is over: no replica is replaced

    @classmethod
    def wanting(cls, job: str, wanted: dict[str, int], budget: Budget) -> Replicas:
        slots = [Slot(role, n, reason=INITIAL.get(role, role)) for role, count in wanted.items() for n in range(count)]
        return cls(job, budget, slots)

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        out: list[c.Command] = []
        match event:
            case e.MasterStarted(running, ended, waiting):
                self._master_started(dict(running), dict(ended), waiting, now, out)
            case e.ReplicaStarted(name, uid):
                self._started(name, uid, now)
            case e.ReplicaGone(name, uid, cause, reason, last_lines):
                self._count(event)
                self._gone(name, uid, cause, reason, last_lines, now, out)
            case e.ReplicaHeldUp(name, uid, kind, note):
                self._held_up(name, uid, kind, note)
            case e.ReplicaJoined(name, incarnation, address):
                r = self.replicas.get(name)
                if r is not None and self.admits(name, incarnation):
                    r.incarnation, r.address = incarnation, address
                    self.slots[r.slot].turned_away = 0
                    self._enter(r, State.JOINED, now)
            case e.ReplicaDropped(name, incarnation):
                r = self.replicas.get(name)
                if r is not None and r.state is State.JOINED and r.incarnation == incarnation:
                    self._enter(r, State.LOST_TOUCH, now)
            case e.WorkerCame(index):
                self._came(index, now, out)
            case e.TimePassed():
                self._overdue(now, out)
            case _:
                return []
        self._fill(now, out)
        return out

    # Questions.

    def admits(self, name: str, incarnation: str) -> bool:
        """Whether a process may speak for this replica: it is expected, and no newer process took the name."""
        r = self.replicas.get(name)
        if r is None or r.state in (State.STOPPING, State.GONE):
            return False
        return r.incarnation in ("", incarnation) and incarnation not in self.slots[r.slot].past

    def role_of(self, name: str) -> str:
        return self.replicas[name].role if name in self.replicas else ""

    def concerns(self, name: str, uid: str) -> bool:
        """Whether news of this end are about the replica that bears the name now, and are news."""
        r = self.replicas.get(name)
        if r is None or r.state is State.GONE or (uid and uid in self.slots[r.slot].past):
            return False
        return not (r.uid and uid and r.uid != uid)

    def joined(self, role: str) -> list[Replica]:
        return [r for r in self.replicas.values() if r.role == role and r.state is State.JOINED]

    def can_grow(self, name: str) -> bool:
        """Whether a replica that ran out of memory may come back with more of it."""
        return self.budget.raise_memory and self.slots[self.replicas[name].slot].memory_raises < MEMORY_RAISES

    def deadline(self) -> float | None:
        """When `TimePassed` should come next."""
        times = [s.due for s in self.slots if not s.replica and s.wanted]
        for r in self.replicas.values():
            if r.state is State.RUNNING:
                times.append(r.since + self.budget.start_seconds)
            elif r.state is State.LOST_TOUCH:
                times.append(r.since + self.budget.reconnect_seconds)
        return min(times, default=None)

    # How many.

    def resize(self, role: str, count: int, now: float) -> list[c.Command]:
        """Have so many replicas of a role: make places, or send some away; of workers those that do least."""
        slots = [s for s in self.slots if s.role == role]
        if role != "ps":
            slots.sort(key=self._idleness)
        for slot in slots[:count]:
            if not slot.wanted:
                slot.wanted, slot.on_trial, slot.crashes, slot.due = True, True, 0, now
                slot.reason = f"scaling to {count}"
        for number in range(len(slots), count):
            self.slots.append(Slot(role, number, due=now, reason=f"scaling to {count}", on_trial=True))
        out: list[c.Command] = []
        for slot in slots[count:]:
            slot.wanted = False
            r = self.replicas.get(slot.replica)
            if r is not None and r.state not in (State.STOPPING, State.GONE):
                self._dismiss(r, f"scaling to {count}", now, out)
        self._fill(now, out)
        return out

    def _idleness(self, slot: Slot) -> int:
        """Working replicas are dismissed last, those still to come first."""
        r = self.replicas.get(slot.replica)
        if r is None or not slot.wanted:
            return 3
        return {State.JOINED: 0, State.LOST_TOUCH: 1}.get(r.state, 2)

    def _dismiss(self, r: Replica, reason: str, now: float, out: list[c.Command]) -> None:
        """Stop it without a replacement. A worker may finish its batch; a server's part is held by others already."""
        if r.role == "ps":
            self._enter(r, State.STOPPING, now, reason)
            r.cause = PREEMPTED
        out.append(c.StopReplica(r.name, reason, 0.0 if r.role == "ps" else GRACE_SECONDS))

    # Steps.

    def _enter(self, r: Replica, state: State, now: float, detail: str = "") -> None:
        r.state, r.since, r.detail = state, now, detail

    def _started(self, name: str, uid: str, now: float) -> None:
        r = self.replicas.get(name)
        if r is None or r.uid == uid or r.state in (State.STOPPING, State.GONE) or uid in self.slots[r.slot].past:
            return
        early = bool(r.incarnation) and not r.uid  # it connected before the cluster reported it
        r.uid = uid
        if not early:
            self._enter(r, State.RUNNING, now)
            r.incarnation = ""

    def _came(self, index: int, now: float, out: list[c.Command]) -> None:
        """A worker started by hand gets a slot of its own, which stays empty once it is gone."""
        name = replica_name(self.job, "worker", index)
        r = self.replicas.get(name)
        if r is not None and r.state is not State.GONE:
            return
        self.slots.append(Slot("worker", index, name, wanted=False))
        self.next_index["worker"] = max(self.next_index.get("worker", 0), index + 1)
        self.replicas[name] = Replica(name, "worker", index, len(self.slots) - 1, State.RUNNING, since=now)
        out.append(c.Announce(f"{name} was started by hand"))

    def _held_up(self, name: str, uid: str, kind: str, note: str) -> None:
        r = self.replicas.get(name)
        if r is None or r.state is not State.LAUNCHED or uid in self.slots[r.slot].past:
            return
        r.detail = note
        if kind and kind != r.held_up:
            self.incidents[kind] = self.incidents.get(kind, 0) + 1
        r.held_up = kind

    def _count(self, event: e.ReplicaGone) -> None:
        """Count what happened to a replica; not one that we stop, unless the cluster reports a cause of its own."""
        r = self.replicas.get(event.name)
        if r is None or self.finished or not event.kind or not self.concerns(event.name, event.uid):
            return
        by_us = r.state is State.STOPPING or not self.slots[r.slot].wanted
        if not by_us or event.kind in BY_OTHERS:  # a server that others stop is then stopped by us
            self.incidents[event.kind] = self.incidents.get(event.kind, 0) + 1

    def _master_started(
        self, running: dict[str, str], ended: dict[str, str], waiting: tuple[str, ...], now: float, out: list[c.Command]
    ) -> None:
        """Compare the journal with what is there."""
        for r in list(self.replicas.values()):
            if r.state is State.GONE or (r.state is State.LAUNCHED and r.name in waiting):
                continue
            if r.name in running:
                self._started(r.name, running[r.name], now)
                if r.state is State.JOINED:
                    self._enter(r, State.LOST_TOUCH, now, "the master restarted")
                elif r.state is State.STOPPING:
                    out.append(c.StopReplica(r.name, r.detail, 0.0))
                else:
                    r.since = now
            elif r.state is State.LAUNCHED and r.name in ended and ended[r.name] not in self.slots[r.slot].past:
                r.uid = ended[r.name]  # it came and went; launched again under its name, both would be mixed up
            elif r.state is State.LAUNCHED:
                out.append(self._launch(r, "decided before the master restarted"))
            else:
                self._gone(r.name, r.uid, PREEMPTED, "ended while the master was away", (), now, out)

    def _launch(self, r: Replica, reason: str) -> c.LaunchReplica:
        slot = self.slots[r.slot]
        return c.LaunchReplica(r.role, r.index, reason, MEMORY_GROWTH**slot.memory_raises, slot.number)

    def _fill(self, now: float, out: list[c.Command]) -> None:
        if self.finished:
            return
        for position, slot in enumerate(self.slots):
            if slot.replica or now < slot.due or not slot.wanted:
                continue
            if slot.role != "ps":
                slot.number = self._free_number(slot.role)
            index = slot.number if slot.role == "ps" else self.next_index.get(slot.role, 0)
            self.next_index[slot.role] = max(self.next_index.get(slot.role, 0), index + 1)
            name = replica_name(self.job, slot.role, index)
            self.replicas[name] = Replica(name, slot.role, index, position, since=now)
            slot.replica = name
            out.append(self._launch(self.replicas[name], slot.reason))

    def _free_number(self, role: str) -> int:
        """The lowest that no wanted replica has: so numbers stay 0, 1, 2 … whichever replicas went before."""
        taken = {s.number for s in self.slots if s.role == role and s.replica and s.wanted}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _gone(
        self, name: str, uid: str, cause: str, reason: str, lines: tuple[str, ...], now: float, out: list[c.Command]
    ) -> None:
        if not self.concerns(name, uid):
            return
        r = self.replicas[name]
        replaced = r.state is State.STOPPING
        why = r.detail if replaced else reason
        self._enter(r, State.GONE, now, why)
        if r.role == "ps":
            # Its process may still run, where a pod was removed by force or a node is lost.
            self.slots[r.slot].past += [uid or r.uid, *filter(None, [r.incarnation])]
            cause = r.cause or cause
        elif replaced:
            return
        if not self.finished:
            self._vacate(r, cause, why, lines, now, out)

    def _vacate(
        self, r: Replica, cause: str, reason: str, last_lines: tuple[str, ...], now: float, out: list[c.Command]
    ) -> None:
        slot = self.slots[r.slot]
        slot.replica, slot.due = "", now
        if not slot.wanted:
            return
        lost = Lost(r.name, cause, reason)
        then = when = ""
        self.losses += 1
        tail = "\n".join(last_lines)
        allowed = self.budget.crashes
        if r.role == "ps":
            self.lost_servers.append(lost)
            allowed = self.budget.server_crashes
        if cause == OUT_OF_MEMORY and self.can_grow(r.name):
            slot.memory_raises += 1
            then = f"; restarting with {MEMORY_GROWTH**slot.memory_raises:g} times the memory"
        elif cause == TURNED_AWAY:
            wait = BACKOFF_SECONDS[min(slot.turned_away, len(BACKOFF_SECONDS) - 1)]
            slot.turned_away, slot.due = slot.turned_away + 1, now + wait
            when = f"; retrying in {wait:g} s"
        elif cause not in (PREEMPTED, BLAMED):
            slot.crashes += 1
            if slot.crashes > allowed and slot.on_trial:
                slot.wanted = False
                self.not_to_be_had.append(replace(lost, failures=slot.crashes))
                return
            if slot.crashes > allowed:
                self.finished, self.fatal = True, replace(lost, failures=slot.crashes)
                out.append(c.FinishJob(Outcome.FAILED, f"{self.fatal}\n{tail}".rstrip()))
                return
            wait = BACKOFF_SECONDS[min(slot.crashes, len(BACKOFF_SECONDS)) - 1]
            slot.due = now + wait
            then, when = f"; restart {slot.crashes} of {allowed}", f" in {wait:g} s"
        slot.reason = f"replaces {'its lost process' if r.role == 'ps' else r.name}, {reason}{then}"
        out.append(c.Announce(f"{lost}{then}{when}"))

    def _overdue(self, now: float, out: list[c.Command]) -> None:
        for r in list(self.replicas.values()):
            if r.state is State.RUNNING and now >= r.since + self.budget.start_seconds:
                self.replace(r.name, CRASHED, f"did not connect within {self.budget.start_seconds:g} s", now, out)
            elif r.state is State.LOST_TOUCH and now >= r.since + self.budget.reconnect_seconds:
                self.replace(r.name, PREEMPTED, f"silent for {self.budget.reconnect_seconds:g} s", now, out)

    def replace(self, name: str, cause: str, reason: str, now: float, out: list[c.Command]) -> None:
        """Stop a replica that is there but of no use, and fill its slot anew; a server's once it is gone."""
        r = self.replicas[name]
        self._enter(r, State.STOPPING, now, reason)
        r.cause = cause
        out.append(c.StopReplica(name, reason, 0.0))
        if r.role != "ps":
            self._vacate(r, cause, reason, (), now, out)

"""All-reduce workers in the simulation: the real session, messages and relay, a history for a model."""

from __future__ import annotations

import json
from typing import Any

from elasticdl.collective.session import Todo, WorldSession
from elasticdl.collective.world_membership import State, WorldMembership
from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import CRASHED
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Send
from elasticdl.strategies.allreduce.messages import Commands, events_of
from elasticdl.strategies.allreduce.relay import Relay
from elasticdl.wire import control_pb2 as pb
from tests.core.invariants import holds
from tests.core.worlds import GRACE_SECONDS, Worker, Worlds

HANG_SECONDS = 20.0  # much less than calm lasts


class SessionWorker(Worker):
    """A process whose knowledge is its session's."""

    def __init__(self, name: str, fingerprint: str, now: float, worlds: SessionWorlds) -> None:
        self.session = worlds.session(name, f"inc-{name}", GRACE_SECONDS, fingerprint)
        self.session.world = worlds.membership(name)
        super().__init__(name, f"uid-{name}", f"inc-{name}", fingerprint, history=(name,), away_since=now)
        self.session.disconnected(now)
        self.inbox: Any
        self.outbox: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in SESSION:  # what the session knows is not kept twice
            object.__setattr__(self, name, value)

    @property
    def world(self) -> c.StartWorld | None:  # type: ignore[override]
        w = self.session.world.current
        if w is None:
            return None
        members = tuple(w.members)
        return c.StartWorld(
            w.generation, members, members, (w.state.generation, w.state.step), dict(w.copies), w.directory
        )


PARTS = {
    "world": ("state", "formed", "stopping", "newest", "left", "confirmed", "proposal", "answered", "start"),
    "saving": ("saves", "wrote", "export", "exported"),
}
SESSION = ("leaving", "world", "broke", "called_off", *(name for names in PARTS.values() for name in names))


def _of_session(part: str, name: str) -> property:
    return property(lambda self: getattr(getattr(self.session, part), name))


for _part, _names in PARTS.items():
    for _name in _names:
        setattr(SessionWorker, _name, _of_session(_part, _name))
setattr(SessionWorker, "leaving", property(lambda self: self.session.leaving))  # noqa: B010
setattr(SessionWorker, "called_off", property(lambda self: bool(self.session.called_off)))  # noqa: B010
setattr(SessionWorker, "broke", None)  # noqa: B010


class SessionWorlds(Worlds):
    """Messages are those of the wire; groups are built through the store that the master relays."""

    session: type[WorldSession] = WorldSession
    membership: type[WorldMembership] = WorldMembership

    def __init__(self, *what: Any, **more: Any) -> None:
        self.epoch = 1
        super().__init__(*what, **more)

    def process(self, name: str, fingerprint: str) -> SessionWorker:
        return SessionWorker(name, fingerprint, self.now, self)

    @property
    def relay(self) -> Relay:
        known: Relay | None = self.__dict__.get("_relay")
        if known is None or known._job is not self.job:  # a master that comes back has heard nothing yet
            known = self.__dict__["_relay"] = Relay(self.job, self.put)
            known.hangs.pulses.hang_seconds = HANG_SECONDS
        return known

    def put(self, name: str, message: pb.ToReplica) -> None:
        w = self.workers.get(name)
        if w is not None and w.alive and w.up:
            w.inbox.append(message)

    def send(self, name: str, command: c.Command) -> None:
        for effect in Commands(self.job, CheckpointFolder("", self.job.terms.job)).effects(command):
            if isinstance(effect, Send) and effect.replica == name:
                self.put(name, effect.message)

    def tell(self, w: Worker, messages: list[pb.FromReplica]) -> None:
        if w.up:
            w.outbox.extend(messages)

    def restart_master(self) -> None:
        self.epoch += 1
        super().restart_master()

    # Streams.

    def terminate(self, name: str) -> None:
        w: Any = self.workers.get(name)
        if w is not None and w.alive and not w.leaving:
            self.tell(w, w.session.leave())

    def connect(self, name: str) -> None:
        w: Any = self.workers.get(name)
        if w is None or not w.alive or w.up or w.hung or self.finished or self.over(w):
            return
        if not self.job.replicas.admits(name, w.incarnation):
            if name in self.job.replicas.replicas:
                self.kill(name)
            return
        w.up = True
        self.unnoticed.discard(name)
        hello = w.session.hello()
        self.put(name, pb.ToReplica(welcome=pb.Welcome(master_epoch=self.epoch)))
        for event in events_of(name, hello):
            self.hear(event)
        self.relay.again(name, self.now, hello.hello.generation)

    def break_stream(self, name: str) -> None:
        super().break_stream(name)
        w: Any = self.workers.get(name)
        if w is not None and not w.up:
            w.session.disconnected(w.away_since)

    def deliver(self, name: str, dies: bool = False) -> None:
        w: Any = self.workers[name]
        if w.outbox:
            message = w.outbox.popleft()
            match message.WhichOneof("body"):
                case "pulse":
                    event = self.relay.pulse(name, message.pulse, self.now)
                    if event is not None:
                        self.hear(event)
                case "stored":
                    self.relay.stored(name, message.stored)
                case _:
                    [self.hear(event, dies) for event in events_of(name, message)]
        if w.inbox and w.alive and not w.hung:
            w.session.connected()
            self.tell(w, w.session.receive(w.inbox.popleft()))

    # What main threads do.

    def over(self, w: Any) -> bool:
        return bool(w.alive and w.session.cut_off(self.now))

    def act(self, name: str) -> bool:
        w: Any = self.workers[name]
        if not w.alive or w.hung:
            return False
        if self.over(w):
            self.kill(name, CRASHED)
            return True
        session: WorldSession = w.session
        match session.todo(idle=self.done(w)):
            case Todo.END:
                if session.saving.wrote and not session.shutdown:
                    return False  # what it wrote is not yet part of a checkpoint
                self.go(w)
            case Todo.LEAVE:
                w.pending = None
                self.note_bereaved(w, w.called_off)
                session.world.leave()
            case Todo.CONFIRM:
                self.tell(w, session.world.confirm())
            case Todo.BUILD:
                return self.build(w)
            case Todo.SAVE:
                self.save(w)
            case Todo.EXPORT:
                assert session.saving.export is not None
                self.tell(w, session.saving.export_done(session.saving.export))
            case Todo.TRAIN | Todo.WAIT:
                return False
        return True

    def build(self, w: Any) -> bool:
        session: WorldSession = w.session
        if session.world.current is None:
            start = session.enter()
            assert start is not None
            self.tell(w, session.world.store(start.generation, w.name, b"address"))
            return True
        start = session.world.current
        if set(start.members) - {w.name} - set(session.world.stored_for(start.generation)):
            return False
        members = [self.workers[n] for n in start.members]
        if any(not p.alive or (p.left >= start.generation) for p in members):
            self.break_world(w.name)  # they were there, and are not
            return True
        before = w.history
        if start.directory and w.name == start.members[0]:
            if start.directory in self.damaged:
                self.met.add("damaged checkpoint")
                self.break_world(w.name, unreadable=start.directory)
                return True
            w.history = self.disk[start.directory]
        elif w.name in start.copies:
            peer = self.workers[start.copies[w.name]]
            if peer.generation != start.generation or not peer.formed or peer.hung:
                return False
            w.history = peer.history
            self.met.add("state copied")
        else:
            held: State = (start.state.generation, start.state.step)
            holds(w.state == held, f"{w.name} is to begin at {held}, and holds {w.state}")
        if w.history is not before:
            session.loaded(self.trained(w.history))
            if start.generation % 5 == 0 and w.name in start.copies:
                self.met.add("source died after the copy")
                self.kill(start.copies[w.name])
                self.break_world(w.name)
                return True
        self.tell(w, session.form(pb.Formed()))
        holds(len(w.history) - 1 == w.state[1], f"{w.name} holds {len(w.history) - 1} steps, and calls it {w.state}")
        return True

    def commit(self, w: Any, stop: bool, speaks: bool = True) -> None:
        w.pending = None
        w.history += (w.generation,)
        w.session.commit(0.5, 0.1, stop, self.trained(w.history))
        known = self.contents.setdefault(w.state, w.history)
        holds(known == w.history, f"{w.state} is the name of {known} and of {w.history}")
        if speaks:
            self.tell(w, [w.session.pulse(self.now)])

    def break_world(self, name: str, suspects: tuple[str, ...] = (), unreadable: str = "") -> None:
        w: Any = self.workers[name]
        if w.alive and not w.hung and w.world is not None:
            w.pending = None
            self.note_bereaved(w, True)
            broken = pb.Broken(error="connection reset", suspects=suspects, unreadable=unreadable)
            self.tell(w, w.session.world.leave(broken))

    def save(self, w: Any, error: str = "") -> bool:
        save = w.session.saving.begin(w.state[1])
        if save is None:
            return False
        self.writes[save.cut] = w.history
        part = {"step": w.state[1], "records": self.trained(w.history)}
        self.tell(w, w.session.saving.saved(save.cut, json.dumps(part), error))
        return True

    def pulse(self, w: Any) -> None:
        if w.alive and not w.hung:
            self.tell(w, [w.session.pulse(self.now)])

    def find_all_hung(self) -> None:
        """Not by itself: the relay finds them when it is calm."""

    def calm_turn(self, turn: int) -> None:
        super().calm_turn(turn)
        for event in self.relay.hangs.hung(self.now):
            assert isinstance(event, e.WorkerHung)
            holds(self.workers[event.worker].hung, f"{event.worker} is taken for hung, and is not: {event.reason}")
            self.met.add("hung found")
            self.hear(event)

    def say(self, w: Worker, event: e.Event) -> None:
        raise AssertionError("a session speaks in messages")

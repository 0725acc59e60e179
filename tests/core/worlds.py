"""An all-reduce job under test with workers that keep to the protocol, and everything that can happen to them.

A worker's model is told by its history: how it was built, and the generation that committed each step. So it can be
seen whether two models are the same, whether a step is in one twice, and what a world that starts would lose.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import CRASHED, FINISHED, PREEMPTED, Budget
from elasticdl.core.replicas import State as Life
from elasticdl.core.steps import StepPlan
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from elasticdl.strategies.allreduce.core.membership import NOTHING, NOTICE_SECONDS, Membership, State
from elasticdl.strategies.allreduce.core.proposals import Phase
from elasticdl.strategies.allreduce.core.terms import AllreduceTerms
from tests.core.invariants import check_replicas, holds

JOB: TypeAdapter[AllreduceMachine] = TypeAdapter(AllreduceMachine)
History = tuple[Any, ...]  # how it was built, then the generation of each step
GRACE_SECONDS = 20.0
ROUNDS, CALM_SECONDS = 400, 0.5  # how long calm may take to end a job


@dataclass
class Worker:
    """A process: what its main thread and its control thread know."""

    name: str
    uid: str
    incarnation: str
    fingerprint: str = ""
    alive: bool = True
    hung: bool = False
    leaving: bool = False
    state: State = NOTHING
    history: History = ()
    world: c.StartWorld | None = None
    formed: bool = False
    stopping: bool = False
    pending: bool | None = None  # inside an exchange that others have finished: whether all were to stop after it
    proposal: c.ProposeWorld | None = None
    answered: bool = False
    newest: int = 0
    called_off: bool = False  # an urgent proposal was heard in this world
    left: int = 0
    confirmed: int = 0
    start: c.StartWorld | None = None
    broke: e.WorldBroken | None = None  # of the generation left last
    midway: bool = False  # that one was left in the middle of a step
    released: int = 0  # the newest generation that does without it
    bereaved: History = ()  # what no other worker had when it left a world midway
    saves: dict[int, int] = field(default_factory=dict)
    wrote: dict[int, e.ServerWrote] = field(default_factory=dict)
    export: int = 0  # the request to do so
    exported: e.ModelExported | None = None
    up: bool = False  # there is a stream
    away_since: float = 0.0
    inbox: deque[c.Command] = field(default_factory=deque)
    outbox: deque[e.Event] = field(default_factory=deque)

    @property
    def generation(self) -> int:
        return self.world.generation if self.world is not None else 0

    def receive(self, command: c.Command) -> list[e.Event]:
        """What the control thread makes of it, and answers at once."""
        match command:
            case c.ProposeWorld() if command.generation >= self.newest:
                self._hear_of(command.generation)
                self.proposal, self.answered = command, False
                self.released = self.released if command.members else command.generation
                self.called_off = self.called_off or (command.urgent and command.generation > self.generation > 0)
            case c.StartWorld() if self.name not in command.members:
                self.released = max(self.released, command.generation)
            case c.StartWorld() if command.generation >= self.newest:
                self._hear_of(command.generation)
                if command.generation > self.left and command.generation != self.generation:
                    self.start = command
                elif self.broke is not None and self.broke.generation == command.generation:
                    return [self.broke]
            case c.SaveState(_, cut, at):
                if cut in self.wrote:
                    return [self.wrote[cut]]
                self.saves[cut] = at
            case c.SettleSave(cut):
                self.saves.pop(cut, None)
                self.wrote.pop(cut, None)
            case c.ExportModel(_, number):
                self.export = number
                return [self.exported] if self.exported is not None and self.exported.number == number else []
        return []

    def _hear_of(self, generation: int) -> None:
        if generation > self.newest:
            self.newest, self.start = generation, None

    def leave_world(self, broken: bool = False) -> None:
        self.midway = broken or self.called_off
        self.left, self.world = self.generation, None
        self.formed = self.stopping = self.called_off = False
        self.pending, self.broke = None, None


class Worlds:
    """The cluster, the master and the workers; every method is something that may happen."""

    def __init__(
        self, workers: int = 2, least: int = 1, standby: int = 0, records: int = 40, schedule: Schedule | None = None,
        membership: Callable[..., Membership] = Membership, deterministic: bool = True, share: int = 0,
    ) -> None:  # fmt: skip
        plan = StepPlan(records, 4, 8, 1, share=share)
        budget = Budget(crashes=1000, start_seconds=60.0, reconnect_seconds=10.0)
        self.terms = AllreduceTerms(
            "j", workers, plan, least, standby=standby, deterministic=deterministic, grace_seconds=GRACE_SECONDS,
            export=True, budget=budget, schedule=schedule or Schedule(seconds=5.0),
        )  # fmt: skip
        self.kind = membership
        self.job = self._new()
        self.now = 0.0
        self.journal: list[tuple[str, bytes, float]] = []
        self.workers: dict[str, Worker] = {}  # every process that ever was
        self.launching: list[tuple[str, int]] = []
        self.doomed: list[str] = []
        self.news: list[e.Event] = []  # what the cluster saw and has not told
        self.unnoticed: set[str] = set()  # whose stream broke, and the master does not know
        self.publishing: list[c.PublishCheckpoint] = []
        self.writes: dict[int, History] = {}  # what was written for a cut
        self.disk: dict[str, History] = {}
        self.damaged: set[str] = set()
        self.worlds: dict[int, tuple[str, ...]] = {}
        self.starts: dict[int, c.StartWorld] = {}
        self.entered: dict[int, set[str]] = {}
        self.contents: dict[State, History] = {}  # what a name stands for
        self.told: list[str] = []
        self.finished: c.FinishJob | None = None
        self.met: set[str] = set()  # kinds of things that happened
        self.hear(e.MasterStarted())

    def _new(self) -> AllreduceMachine:
        job = AllreduceMachine.new(self.terms)
        m = job.membership
        job.membership = self.kind(m.wanted, m.least, m.grace_seconds, m.same_arithmetic)
        return job

    # The master.

    def hear(self, event: e.Event, dies: bool = False) -> list[c.Command]:
        """The master hears something, and acts; or dies between writing it down and acting."""
        self.journal.append((*e.encode(event), self.now))
        out = self.job.handle(event, self.now)
        self.check()
        if dies:
            self.restart_master()
        else:
            for command in out:
                self.obey(command)
        return out

    def obey(self, command: c.Command) -> None:
        match command:
            case c.LaunchReplica(_, index):
                name = f"elasticdl-j-worker-{index}"
                if name not in self.workers and (name, index) not in self.launching:
                    self.launching.append((name, index))
            case c.StopReplica(name):
                if self.job.replicas.replicas[name].state is not Life.STOPPING:
                    self.terminate(name)
                elif name not in self.doomed:  # it counts no more, and gets no message any more
                    self.doomed.append(name)
                    self.break_stream(name)
            case c.ProposeWorld(generation, members, to):
                if generation not in self.worlds:
                    most = max(2, self.job.membership.wanted)  # with one that stays until another has the state
                    holds(not members or self.terms.least <= len(members) <= most, f"{len(members)} are to train")
                holds(self.worlds.setdefault(generation, members) == members, f"two worlds are called {generation}")
                holds(generation == max(self.worlds), f"generation {generation} is proposed after {max(self.worlds)}")
                for name in to:
                    self.send(name, command)
            case c.StartWorld():
                self.check_start(command)
                for name in command.to:
                    self.send(name, command)
            case c.SaveState(worker) | c.ExportModel(worker):
                self.send(worker, command)
            case c.SettleSave(_, _, name):
                for worker in [name] if name else list(self.workers):
                    self.send(worker, command)
            case c.PublishCheckpoint():
                self.publishing.append(command)
            case c.DeleteCheckpoints(directories):
                for directory in directories:
                    self.disk.pop(directory, None)
            case c.FinishJob():
                self.finished = command
            case c.Announce(text):
                self.told.append(text)

    def send(self, name: str, command: c.Command) -> None:
        w = self.workers.get(name)
        if w is not None and w.alive and w.up:
            w.inbox.append(command)

    def restart_master(self) -> None:
        """Killed and back: the journal is read, streams are made anew."""
        self.met.add("master restarted")
        replayed = self.replayed()
        holds(replayed == self.job, "what the journal tells is not what happened")
        if self.kind is Membership:
            holds(JOB.validate_json(JOB.dump_json(self.job)) == self.job, "the state cannot be written down")
        self.job = replayed
        for w in self.workers.values():
            self.break_stream(w.name)
        self.unnoticed.clear()
        self.publishing.clear()
        running = tuple((w.name, w.uid) for w in self.workers.values() if w.alive)
        ended = tuple((w.name, w.uid) for w in self.workers.values() if not w.alive)
        self.hear(e.MasterStarted(running, ended))

    def replayed(self) -> AllreduceMachine:
        job = self._new()
        for kind, body, at in self.journal:
            job.handle(e.decode(kind, body), at)
        return job

    def publish(self, error: str = "", damaged: bool = False) -> None:
        if self.publishing:
            asked = self.publishing.pop(0)
            directory = "" if error else f"step-{asked.position.version}"
            if directory:
                self.disk[directory] = self.writes[asked.cut]
                holds(len(self.writes[asked.cut]) - 1 == asked.position.version, "a checkpoint is of another step")
                self.damaged.discard(directory)
                if damaged:
                    self.damaged.add(directory)
            self.hear(e.CheckpointPublished(asked.cut, directory, error))

    # The cluster.

    def launch(self, fingerprint: str = "cpu") -> str:
        if not self.launching:
            return ""
        name, _ = self.launching.pop(0)
        w = self.workers[name] = self.process(name, fingerprint)
        self.news.append(e.ReplicaStarted(name, w.uid))
        return name

    def process(self, name: str, fingerprint: str) -> Worker:
        return Worker(name, f"uid-{name}", f"inc-{name}", fingerprint, history=(name,), away_since=self.now)

    def kill(self, name: str, cause: str = PREEMPTED) -> None:
        w = self.workers.get(name)
        if w is None or not w.alive:
            return
        self.break_stream(name)
        w.alive = False
        self.news.append(e.ReplicaGone(name, w.uid, cause, "killed" if cause == PREEMPTED else cause))

    def reap(self) -> None:
        if self.doomed:
            self.kill(self.doomed.pop(0))

    def tell_news(self) -> None:
        if self.news:
            self.hear(self.news.pop(0))

    def terminate(self, name: str) -> None:
        """SIGTERM."""
        w = self.workers.get(name)
        if w is not None and w.alive and not w.leaving:
            w.leaving = True
            if w.up:
                w.outbox.append(e.ReplicaLeaving(name))

    # Streams.

    def connect(self, name: str) -> None:
        w = self.workers.get(name)
        if w is None or not w.alive or w.up or w.hung or self.finished:
            return
        if not self.job.replicas.admits(name, w.incarnation):
            if name in self.job.replicas.replicas:
                self.kill(name)  # it is told to go, and does
            return
        w.up = True
        self.unnoticed.discard(name)
        self.hear(
            e.ReplicaJoined(
                name, w.incarnation, capacity=0 if w.leaving else 1, generation=w.generation, fingerprint=w.fingerprint
            )
        )
        if w.world is not None and w.formed:
            w.outbox.append(e.WorldFormed(name, w.generation))
        w.outbox.extend(w.wrote.values())
        if w.exported is not None:
            w.outbox.append(w.exported)

    def break_stream(self, name: str) -> None:
        """What is on its way is lost."""
        w = self.workers.get(name)
        if w is not None and w.up:
            # The worker may find out later than the master, which may have restarted: every second one does.
            w.up, w.away_since = False, self.now + len(self.journal) % 2 * NOTICE_SECONDS
            w.inbox.clear()
            w.outbox.clear()
            self.unnoticed.add(name)

    def notice(self, name: str) -> None:
        if name in self.unnoticed:
            self.unnoticed.discard(name)
            self.hear(e.ReplicaDropped(name, self.workers[name].incarnation))

    def deliver(self, name: str, dies: bool = False) -> None:
        """A message arrives, in each direction."""
        w = self.workers[name]
        if w.outbox:
            self.hear(w.outbox.popleft(), dies)
        if w.inbox and w.alive:  # a stopped process is not: its kernel keeps the message
            if w.hung:
                return
            w.outbox.extend(w.receive(w.inbox.popleft()))

    # What main threads do.

    def trained(self, history: History) -> int:
        """How many records are in a model: where the batch follows the workers, its worlds tell."""
        total = 0
        for number, generation in enumerate(history[1:]):
            total += self.terms.plan.step(number, total, len(self.worlds[generation])).records
        return total

    def done(self, w: Worker) -> bool:
        return self.terms.plan.over(len(w.history) - 1, self.trained(w.history))

    def over(self, w: Worker) -> bool:
        return w.alive and not w.up and self.now - w.away_since > GRACE_SECONDS

    def act(self, name: str) -> bool:
        """The next thing that does not need the others to be done at the same time."""
        w = self.workers[name]
        if not w.alive or w.hung:
            return False
        if self.over(w):
            self.kill(name, CRASHED)
            return True
        if w.world is not None:
            idle = self.done(w)
            if w.stopping or w.called_off or (idle and w.newest > w.generation):
                self.note_bereaved(w, w.called_off)
                w.leave_world()
                return True
            if not w.formed:
                return self.build(w)
            return self.save(w) or (idle and self.export(w))
        if self.save(w):
            return True
        if w.start is not None and w.start.generation == w.confirmed:
            w.world, w.start = w.start, None
            self.entered.setdefault(w.generation, set()).add(name)
            return True
        wanted = w.proposal is not None and name in w.proposal.members and w.newest > w.left
        if w.leaving and not wanted:
            if w.wrote or (w.midway and w.state[1] and w.released <= w.left):
                return False
            self.go(w)
            return True
        if wanted and not w.answered:
            assert w.proposal is not None
            w.confirmed, w.answered = w.proposal.generation, True
            self.say(w, e.WorldConfirmed(name, w.confirmed, w.state, records=self.trained(w.history)))
            return True
        return False

    def say(self, w: Worker, event: e.Event) -> None:
        if w.up:
            w.outbox.append(event)

    def build(self, w: Worker) -> bool:
        assert w.world is not None
        start = w.world
        if not self.entered[start.generation] >= set(start.members):
            return False
        if start.directory and w.name == start.members[0]:
            if start.directory in self.damaged:
                self.met.add("damaged checkpoint")
                self.break_world(w.name, unreadable=start.directory)
                return True
            holds(start.directory in self.disk, f"{start.directory} is to be read, and is not there")
            w.history = self.disk[start.directory]
        elif (source := start.copies.get(w.name)) is not None:
            peer = self.workers[source]
            if peer.generation != start.generation or not peer.alive:
                self.break_world(w.name, suspects=(source,))
                return True
            if not peer.formed or peer.hung:
                return False
            w.history = peer.history
            self.met.add("state copied")
        else:
            holds(w.state == start.state, f"{w.name} is to begin at {start.state}, and holds {w.state}")
        w.state, w.formed = start.state, True
        holds(len(w.history) - 1 == w.state[1], f"{w.name} holds {len(w.history) - 1} steps, and calls it {w.state}")
        self.say(w, e.WorldFormed(w.name, start.generation))
        return True

    def exchange(self, commits: Callable[[], bool] = lambda: True, speaks: Callable[[], bool] = lambda: True) -> bool:
        """The world that can, adds its gradients up; some may learn the sum later, or never."""
        able = [g for g in self.able() if self.may_exchange(g)]
        if not able:
            return False
        members = [self.workers[n] for n in self.worlds[able[0]]]
        histories = {w.history for w in members}
        holds(len(histories) == 1, f"members of {able[0]} train different models: {[w.history for w in members]}")
        flag = any(w.newest > w.generation for w in members)
        for w in members:
            if commits():
                self.commit(w, flag, speaks())
            else:
                w.pending = flag
                self.met.add("sum missed")
        return True

    def may_exchange(self, generation: int) -> bool:
        members = [self.workers[n] for n in self.worlds[generation]]
        ready = all(w.formed and not w.hung and w.pending is None and not w.stopping for w in members)
        return ready and len({w.state for w in members}) == 1 and not self.done(members[0])

    def commit(self, w: Worker, stop: bool, speaks: bool = True) -> None:
        w.pending = None
        w.history += (w.generation,)
        w.state = (w.generation, w.state[1] + 1)
        w.stopping = w.stopping or stop
        known = self.contents.setdefault(w.state, w.history)
        holds(known == w.history, f"{w.state} is the name of {known} and of {w.history}")
        if speaks:
            self.say(w, self.progress(w))

    def progress(self, w: Worker) -> e.StepsCommitted:
        return e.StepsCommitted(w.name, w.generation, w.state[1], 0.5, records=self.trained(w.history))

    def commit_late(self, name: str) -> None:
        w = self.workers[name]
        if w.alive and not w.hung and w.world is not None and w.pending is not None and not self.over(w):
            self.commit(w, w.pending)

    def break_world(self, name: str, suspects: tuple[str, ...] = (), unreadable: str = "") -> None:
        """An exchange or a build fails by itself."""
        w = self.workers[name]
        if w.alive and not w.hung and w.world is not None:
            generation = w.generation
            self.note_bereaved(w, True)
            w.leave_world(broken=True)
            w.broke = e.WorldBroken(name, generation, w.state[1], "connection reset", suspects, unreadable)
            self.say(w, w.broke)

    def note_bereaved(self, w: Worker, midway: bool) -> None:
        """Whether the master could know that it must not go. Where several are the least, it may have been let go, with
        no worker training, when others were still there."""
        others = [p for p in self.workers.values() if p is not w and p.alive and p.state[1] >= w.state[1] - 1]
        last = w.generation == max(self.starts, default=0)
        known = last and w.formed and self.terms.least == 1 and self.job.step > 0 and w.state[1] > 0
        known = known and len(self.worlds[w.generation]) > 1  # else there was no other to lose
        w.bereaved = w.history if midway and known and not others else ()

    def go(self, w: Worker) -> None:
        """After SIGTERM a worker ends: not with what no other has."""
        if w.bereaved:
            self.met.add("bereaved leaver")
            what = f"{w.name} goes, and with it all of step {w.state[1]}"
            written = max((len(h) for h in self.writes.values()), default=0)
            asked = any(
                s.worker != w.name for s in self.job.saves.asked
            )  # another, of whose death the master has yet to hear
            holds(asked or written >= len(w.bereaved) - 1 or len(w.history) > len(w.bereaved), what)
        self.kill(w.name, FINISHED)

    def save(self, w: Worker, error: str = "") -> bool:
        due = [cut for cut, at in w.saves.items() if at <= w.state[1]]
        if not due or (w.world is not None and not w.formed):
            return False
        cut = due[0]
        del w.saves[cut]
        self.writes[cut] = w.history
        part = {"step": w.state[1], "records": self.trained(w.history)}
        w.wrote[cut] = e.ServerWrote(w.name, cut, json.dumps(part), error)
        self.say(w, w.wrote[cut])
        return True

    def export(self, w: Worker) -> bool:
        if not w.export or (w.exported is not None and w.exported.number == w.export):
            return False
        w.exported = e.ModelExported(w.name, "model", number=w.export)
        self.say(w, w.exported)
        return True

    def pulse(self, w: Worker) -> None:
        """Said a few times a second, whatever was lost."""
        if w.alive and not w.hung and w.formed and w.state[0] == w.generation and w.state[1] > self.job.step:
            self.say(w, self.progress(w))

    def hang(self, name: str) -> None:
        self.workers[name].hung = True

    def find_hung(self, name: str) -> None:
        """The watchdog, which sees that a worker does not move."""
        if self.workers[name].hung:
            self.hear(e.WorkerHung(name, "compute lasts 10 s already"))

    def find_all_hung(self) -> None:
        for name in list(self.workers):
            self.find_hung(name)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for w in list(self.workers.values()):  # a worker that has heard nothing for so long stops, whatever it is at
            if self.over(w) and not w.hung:
                self.kill(w.name, CRASHED)
        deadline = self.job.deadline()
        if deadline is not None and deadline <= self.now:
            self.hear(e.TimePassed())
            deadline = self.job.deadline()
        holds(self.job.outcome or deadline is None or deadline > self.now, f"due at {deadline}, and it is {self.now}")

    # Promises.

    def able(self) -> list[int]:
        """Generations that could finish an exchange: all their members are alive, and have not left."""
        there: dict[int, int] = {}
        for w in self.workers.values():
            if w.alive and w.world is not None and not self.over(w):
                there[w.generation] = there.get(w.generation, 0) + 1
        return [g for g, n in there.items() if n == len(self.worlds[g])]

    def check(self) -> None:
        able = self.able()
        holds(len(able) <= 1, f"{len(able)} worlds can commit side by side: {able}")
        running, begun = self.job.membership.running_generation, self.job.membership.begun
        state = (running, self.job.step) if self.job.step > begun.state[1] else begun.state
        known = self.contents.get(state, self.disk.get(begun.directory))
        if known is not None and len(known) - 1 == self.job.step:
            holds(self.job.records == self.trained(known), f"{self.job.records} records are said to be in {known}")
        if not self.job.outcome:
            check_replicas(self.job.replicas)
            m = self.job.membership
            living = {n for n, r in self.job.replicas.replicas.items() if r.state not in (Life.GONE, Life.STOPPING)}
            holds(set(m.workers) <= living, f"{set(m.workers) - living} are counted on and gone")
            holds(m.phase is not Phase.RUNNING or m.generation == m.running_generation, "another world runs")
            holds(m.holders <= set(m.workers), "a worker that is not there holds the state")

    def check_start(self, start: c.StartWorld) -> None:
        again = self.starts.setdefault(start.generation, start)
        same = (again.members, again.state, again.copies, again.directory)
        holds(same == (start.members, start.state, start.copies, start.directory), "a world is started in two ways")
        if again is not start:
            return
        members = [self.workers[n] for n in start.members]
        holds(start.members == self.worlds[start.generation], "another world is started than was proposed")
        for w in members:
            holds(w.confirmed >= start.generation, f"{w.name} has not confirmed {start.generation}")
            if w.alive and w.confirmed == start.generation:
                holds(w.generation in (0, start.generation), f"{w.name} is in a world of before")
                holds(w.state[1] <= start.state[1], f"{w.name} holds {w.state}, more than {start.state}")
                own = w.state == start.state and start.state != NOTHING and not start.directory
                holds(own != (w.name in start.copies) or w is members[0], f"{w.name} copies in vain, or does not")
        holds(start.state[1] >= self.job.membership.checkpoint[1], f"it starts at {start.state}, below the checkpoint")
        kinds = {w.fingerprint for w in members} if self.terms.deterministic else {""}
        holds(len(kinds) == 1, f"{kinds} train together")
        for source in start.copies.values():
            holds(source not in start.copies, f"{source} is copied from, and has nothing itself")
        newest = max(w.state[0] for w in self.workers.values())
        before = self.starts[max([g for g in self.starts if g < start.generation], default=start.generation)].members
        for w in self.workers.values():
            counts = w.alive and not w.hung and not self.over(w) and w.name in self.job.membership.workers
            # One step may go with a worker that goes: the one in flight.
            if counts and w.state[0] == newest and w.name in before:
                what = f"{start.generation} starts at {start.state}, and {w.name} lives and holds {w.state}"
                holds(start.state[1] >= w.state[1] - 1, what)

    # Calm.

    def settle(self) -> None:
        """Nothing goes wrong any more: a world of all that are ready forms, steps go on, the job ends."""
        events = len(self.journal)
        self.find_all_hung()
        for turn in range(ROUNDS):
            if self.job.outcome:
                break
            before = len(self.journal)
            self.calm_turn(turn)
            holds(len(self.journal) - before < 300, "one thing leads to another without end")
        m = self.job.membership
        state = (
            f"{self.job.reason} {m.phase}, {m.members}, confirmed {m.confirmed}, formed {m.formed}, at {self.job.step}"
        )
        holds(self.job.outcome == "succeeded", f"calm does not end the job: {self.job.outcome} {state}")
        holds(self.job.records == self.terms.plan.total_records, f"{self.job.records} records are trained")
        holds(len(self.journal) - events < 20 * ROUNDS, "too much was said")

    def calm_turn(self, turn: int) -> None:
        """No exchange breaks by itself here: the master knows enough to abort it."""
        while self.launching:
            self.launch(self.job.membership.fingerprint or "cpu")
        while self.doomed:
            self.reap()
        while self.news:
            self.tell_news()
        for name, w in list(self.workers.items()):
            self.notice(name)
            self.connect(name)
            self.pulse(w)
        for name, w in list(self.job.membership.workers.items()):
            if w.refused:  # its place is taken by a machine like the others
                self.kill(name)
        for _ in range(12):
            moved = False
            for name, w in list(self.workers.items()):
                while w.inbox or w.outbox:
                    if w.hung:
                        w.outbox.clear()
                        break
                    self.deliver(name)
                    moved = True
                moved = self.act(name) or moved
            while self.publishing:
                self.publish()
            if not moved:
                break
        m = self.job.membership
        ready = [n for n, w in m.workers.items() if w.in_touch and not w.leaving and not w.refused]
        steady = not self.launching and not self.news and m.training and not m.workers.keys() - set(ready)
        if steady and turn > 10 and not self.job.trained_out and not self.job.saves.stopping:
            holds(len(m.members) == min(m.wanted, len(ready)), f"{len(ready)} are ready, {m.members} train")
        self.exchange()
        for name in list(self.workers):
            self.commit_late(name)
        self.wait(CALM_SECONDS)


def pick(things: Sequence[Any], which: int) -> Any:
    return things[which % len(things)]

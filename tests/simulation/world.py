"""A whole job on a virtual clock: the real core, brain, session and ledger; simulated processes, network and faults.

Servers keep a witness of what they really applied, apart from the counters that decide it: a job is right when every
record of every epoch stands there exactly once on every server.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.job import Job, Terms
from elasticdl.core.plan import Kind, Plan
from elasticdl.core.replicas import CRASHED, FINISHED, PREEMPTED, Budget
from elasticdl.job.names import replica_name
from elasticdl.master.brain import Brain, Send, event_of
from elasticdl.ps.ledger import Ledger, Push, Ruling, Verdict
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.session import Session, Work
from tests.simulation.clock import Clock
from tests.simulation.network import Datagrams, Stream, Weather


@dataclass(frozen=True)
class Scenario:
    """One simulated job and what goes wrong in it."""

    seed: int
    records: int = 40
    minibatch: int = 3
    batches_per_shard: int = 2
    epochs: int = 2
    workers: int = 2
    servers: int = 2
    validation: int = 10
    evaluation_steps: int = 7
    max_step: int = 0
    kill_workers_every: float = 0.0
    kill_master_every: float = 0.0
    miss_events: float = 0.0
    bad_records: tuple[int, ...] = ()
    segfault: bool = False  # a bad record kills the process instead of raising
    max_bad_records: int = 0
    stop_at: float = 0.0
    churn_until: float = 60.0
    weather: Weather = field(default_factory=Weather)


@dataclass
class Parts:
    """What the simulation is built from; mutants replace a part with one that has a bug."""

    job: Callable[[Terms], Job] = Job.new
    session: type[Session] = Session
    ledger: type[Ledger] = Ledger


class Violation(AssertionError):
    """The job broke a promise."""


class Server:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.ledger = world.parts.ledger()
        self.witness: Counter[tuple[int, int]] = Counter()  # (epoch, position) -> times applied
        self.views: dict[int, tuple[int, Counter[tuple[int, int]]]] = {}
        self.waiting: list[tuple[Push, tuple[int, ...], Callable[[Ruling], None]]] = []
        self.incarnation = f"{name}@{world.random.random()}"
        self.stream: Stream | None = None
        self.alive = True

    def hello(self) -> pb.FromReplica:
        hello = pb.Hello(protocol=1, replica=self.name, incarnation=self.incarnation, address=f"sim://{self.name}")
        return pb.FromReplica(hello=hello)

    def receive(self, m: pb.ToReplica) -> None:
        match m.WhichOneof("body"):
            case "opened":
                o = m.opened
                self.ledger.opened(o.shard, o.attempt, o.next_batch, o.batches)
            case "open_shards":
                for o in m.open_shards.open:
                    self.ledger.opened(o.shard, o.attempt, o.next_batch, o.batches)
                self.ledger.open_only({o.shard for o in m.open_shards.open})
            case "close_shard":
                self.ledger.close(m.close_shard.shard)
            case "close_epoch":
                self.ledger.close_epoch(m.close_epoch.epoch)
            case "hold":
                self.ledger.hold(m.hold.cut, m.hold.at)
            case "advance":
                self.ledger.advance(m.advance.cut, {x.shard: x.next_batch for x in m.advance.counters})
            case "release":
                self.ledger.release(m.release.cut)
            case "freeze":
                cut = m.freeze.cut
                self.views.setdefault(cut, (self.ledger.version, self.witness.copy()))
                self.world.say(self, pb.FromReplica(frozen=pb.Frozen(cut=cut, detail=self.name)))
        self.settle()

    def push(self, push: Push, positions: tuple[int, ...], answer: Callable[[Ruling], None]) -> None:
        self.waiting.append((push, positions, answer))
        self.settle()

    def settle(self) -> None:
        """Judge what waits until nothing changes any more."""
        moved = True
        while moved:
            moved = False
            for entry in list(self.waiting):
                push, positions, answer = entry
                ruling = self.ledger.judge(push)
                if ruling.verdict is Verdict.WAIT:
                    continue
                self.waiting.remove(entry)
                if ruling.verdict is Verdict.APPLY:
                    for p in positions:
                        self.witness[(push.epoch, p)] += 1
                    self.ledger.applied(push)
                    moved = True
                answer(ruling)
        report = self.ledger.report()
        if report is not None:
            counters = [pb.Counter(shard=s, next_batch=n) for s, n in report[1].items()]
            self.world.say(self, pb.FromReplica(held=pb.Held(cut=report[0], counters=counters)))


class Worker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.session = world.parts.session(name, f"{name}@{world.random.random()}", capacity=2)
        self.stream: Stream | None = None
        self.alive = True
        self.busy = False

    @property
    def incarnation(self) -> str:
        return self.session.incarnation

    def hello(self) -> pb.FromReplica:
        return self.session.hello()

    def receive(self, m: pb.ToReplica) -> None:
        self.session.receive(m)
        self.go_on()

    def go_on(self) -> None:
        if self.session.shutdown and self.alive:
            self.world.process_ends(self.name, FINISHED, "exit code 0")
        if not self.alive or self.busy or not self.session.servers:
            return
        work = self.session.current()
        if work is not None:
            self.busy = True
            self.world.clock.after(self.world.random.uniform(0.01, 0.05), lambda: self.compute(work))

    def compute(self, work: Work) -> None:
        if not self.alive:
            return None
        world = self.world
        if not self.session.holds(work):
            return self.done()
        if work.kind == Kind.TRAIN:
            positions = world.positions(work, work.next_batch)
            if self.crashes(work, positions):
                return None
            return self.push(work, work.next_batch, positions)
        if work.kind == Kind.PROBE:
            if self.crashes(work, tuple(range(work.start, work.stop))):
                return None
            result = ""
        elif work.kind == Kind.EVALUATE:
            world.check_view(int(work.payload))
            result = json.dumps(list(range(work.start, work.stop)))
        elif work.kind == Kind.SUMMARIZE:
            seen = sorted(p for part in json.loads(work.payload) for p in json.loads(part))
            if seen != list(range(world.scenario.validation)):
                raise Violation(f"an evaluation round saw {seen}")
            result = json.dumps({"accuracy": 1.0})
        else:
            result = "model"
        world.say(self, self.session.completed(work, result))
        return self.done()

    def crashes(self, work: Work, positions: tuple[int, ...]) -> bool:
        bad = set(self.world.scenario.bad_records) - set(work.bad_records)
        if not bad & set(positions):
            return False
        if self.world.scenario.segfault:
            self.world.process_ends(self.name, CRASHED, "killed by SIGSEGV")
        else:
            self.world.say(self, self.session.failed(work, "ValueError: bad record"))
            self.done()
        return True

    def push(self, work: Work, batch: int, positions: tuple[int, ...]) -> None:
        """Push to every server, again and again until all have it or somebody says no."""
        world = self.world
        owed = set(world.servers)
        over = False
        epoch, index = work.round, work.index
        kept = tuple(p for p in positions if p not in work.bad_records)
        push = Push(self.session.timeline, epoch, index, work.attempt, batch)

        def answered(server: str, ruling: Ruling) -> None:
            nonlocal over
            if over or not self.alive:
                return
            if ruling.verdict in (Verdict.APPLY, Verdict.REPEAT):
                owed.discard(server)
                if not owed:
                    over = True
                    world.say(self, self.session.committed(work, batch + 1, 0.5))
                    self.done()
            elif ruling.verdict is Verdict.REFUSE:
                over = True
                if self.session.holds(work):
                    world.say(self, self.session.returned(work, ruling.reason))
                self.done()
            else:
                raise Violation(f"{self.name} was asked to resend from {ruling.next_batch} at batch {batch}")

        def send() -> None:
            if over or not self.alive:
                return
            for name in sorted(owed):
                server = world.servers[name]

                def reply(ruling: Ruling, name: str = name) -> None:
                    world.datagrams.send(lambda: answered(name, ruling))

                world.datagrams.send(lambda server=server, reply=reply: server.push(push, kept, reply))
            world.clock.after(1.0, send)

        send()

    def done(self) -> None:
        self.busy = False
        self.go_on()


class World:
    def __init__(self, scenario: Scenario, parts: Parts | None = None) -> None:
        self.scenario, self.parts = scenario, parts or Parts()
        self.random, self.clock = Random(scenario.seed), Clock()
        self.datagrams = Datagrams(self.clock, self.random, scenario.weather)
        plan = Plan(
            scenario.records, scenario.minibatch, scenario.batches_per_shard, scenario.epochs, scenario.max_step
        )
        self.terms = Terms(
            "sim", scenario.workers, scenario.servers, plan, scenario.validation, scenario.evaluation_steps,
            scenario.max_bad_records, export=True,
            budget=Budget(crashes=1, start_seconds=20, reconnect_seconds=10, hang_seconds=120),
        )  # fmt: skip
        self.journal: list[tuple[e.Event, float]] = []
        self.brain: Brain | None = None
        self.servers: dict[str, Server] = {}
        self.workers: dict[str, Worker] = {}
        self.uids: dict[str, str] = {}
        self.exits: dict[str, e.ReplicaGone] = {}
        self.streams: dict[str, Stream] = {}
        self.metrics: list[int] = []
        self.announced: list[str] = []
        self.outcome: tuple[str, str] | None = None
        self.published: c.PublishCheckpoint | None = None
        self.kills = self.master_kills = 0

    # The master.

    def start_master(self) -> None:
        job = self.parts.job(self.terms)
        now = 0.0
        for event, at in self.journal:
            job.handle(event, at)
            now = at
        self.brain = Brain(job)
        self.clock.now = max(self.clock.now, now)
        if job.outcome:
            self.outcome = (job.outcome, job.reason)
            return
        running = tuple((n, self.uids[n]) for n in self.uids if n not in self.exits)
        self.hear(e.MasterStarted(running))
        for name in list(self.uids):
            if name not in self.exits:
                self.reconnect(name)

    def hear(self, event: e.Event) -> None:
        if self.brain is None or self.outcome is not None:
            return
        self.journal.append((event, self.clock.now))
        brain = self.brain
        effects = brain.decide(event, self.clock.now)
        self.check_conservation(brain.job)
        for effect in effects:
            self.act(effect)

    def act(self, effect: Send | c.Command) -> None:
        match effect:
            case Send(replica, message):
                process = self.process(replica)
                stream = self.streams.get(replica)
                if process is not None and stream is not None:
                    stream.send("down", process.receive, message)
            case c.LaunchReplica(role, index):
                self.clock.after(self.random.uniform(0.1, 2.0), lambda: self.launch(role, index))
            case c.StopReplica(name):
                self.clock.after(0.1, lambda: self.process_ends(name, PREEMPTED, "stopped"))
            case c.IdentifyRecord(shard, position):
                self.hear(e.RecordIdentified(shard, position, position, f"record {position}"))
            case c.ReportMetrics(version):
                self.metrics.append(version)
            case c.PublishCheckpoint():
                self.published = effect
                self.clock.after(0.05, lambda: self.hear(e.CheckpointPublished("checkpoint")))
            case c.Announce(text):
                self.announced.append(text)
            case c.FinishJob(outcome, reason):
                self.outcome = self.outcome or (outcome, reason)

    def kill_master(self) -> None:
        if self.brain is None or self.outcome is not None:
            return
        self.master_kills += 1
        self.brain = None
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.clock.after(self.random.uniform(0.2, 3.0), self.start_master)

    # Processes.

    def process(self, name: str) -> Worker | Server | None:
        return self.workers.get(name) or self.servers.get(name)

    def launch(self, role: str, index: int) -> None:
        name = replica_name("sim", role, index)
        if name in self.uids and name not in self.exits:
            return
        self.exits.pop(name, None)
        self.uids[name] = f"{name}#{self.random.random()}"
        if role == "ps":
            self.servers[name] = Server(self, name)
        else:
            self.workers[name] = Worker(self, name)
        self.tell(e.ReplicaStarted(name, self.uids[name]))
        self.clock.after(self.random.uniform(0.5, 3.0), lambda: self.reconnect(name))

    def process_ends(self, name: str, cause: str, reason: str) -> None:
        process = self.process(name)
        if process is None or not process.alive:
            return
        process.alive = False
        stream = self.streams.pop(name, None)
        if stream is not None:
            stream.close()
        self.exits[name] = e.ReplicaGone(name, self.uids[name], cause, reason)
        self.tell(self.exits[name])

    def tell(self, event: e.Event) -> None:
        """A cluster event, which may be missed; the relist brings it up again."""
        if self.random.random() >= self.scenario.miss_events:
            self.clock.after(self.random.uniform(0.0, 0.2), lambda: self.hear(event))

    def relist(self) -> None:
        for name, uid in list(self.uids.items()):
            if name in self.exits:
                self.hear(self.exits[name])
            else:
                self.hear(e.ReplicaStarted(name, uid))
        self.clock.after(15.0, self.relist)

    # Streams.

    def reconnect(self, name: str) -> None:
        process = self.process(name)
        if process is None or not process.alive or self.brain is None or self.outcome is not None:
            return
        old = self.streams.get(name)
        if old is not None and old.open:
            return
        job = self.brain.job
        if not job.replicas.admits(name, process.incarnation):
            if name in job.replicas.replicas:
                self.process_ends(name, PREEMPTED, "refused by the master")
            return
        stream = self.streams[name] = Stream(self.clock, self.random, self.scenario.weather)
        welcome = pb.ToReplica(welcome=pb.Welcome(master_epoch=self.master_kills + 1))
        stream.send("down", process.receive, welcome)
        self.say(process, process.hello())
        if isinstance(process, Server):
            process.settle()
        if self.scenario.weather.break_every and self.clock.now < self.scenario.churn_until:
            self.clock.after(
                self.random.expovariate(1 / self.scenario.weather.break_every), lambda: self.break_stream(name, stream)
            )

    def break_stream(self, name: str, stream: Stream) -> None:
        process = self.process(name)
        if not stream.open or process is None or not process.alive:
            return
        stream.close()
        if self.streams.get(name) is stream:
            del self.streams[name]
        broken = process.incarnation
        self.clock.after(self.random.uniform(0, 0.05), lambda: self.dropped(name, broken))
        self.clock.after(self.random.uniform(0.05, 1.0), lambda: self.reconnect(name))
        on_break = getattr(getattr(process, "session", None), "stream_broke", None)
        if on_break is not None:  # a mutant's hook
            on_break()
            process.go_on()  # type: ignore[union-attr]

    def dropped(self, name: str, incarnation: str) -> None:
        if name not in self.streams:
            self.hear(e.ReplicaDropped(name, incarnation))

    def say(self, process: Worker | Server, message: pb.FromReplica) -> None:
        stream = self.streams.get(process.name)
        if stream is not None:
            stream.send("up", lambda m: self.hear(event_of(process.name, m)), message)

    # Faults and the clock.

    def later(self, mean: float, action: Callable[[], None]) -> None:
        if not mean:
            return

        def fire() -> None:
            if self.clock.now < self.scenario.churn_until and self.outcome is None:
                action()
                self.clock.after(self.random.expovariate(1 / mean), fire)

        self.clock.after(self.random.expovariate(1 / mean), fire)

    def kill_worker(self) -> None:
        alive = [n for n, w in self.workers.items() if w.alive]
        if alive:
            self.kills += 1
            self.process_ends(self.random.choice(alive), PREEMPTED, "killed by SIGKILL")

    def tick(self) -> None:
        if self.brain is not None:
            deadline = self.brain.job.deadline()
            if deadline is not None and deadline <= self.clock.now:
                self.hear(e.TimePassed())
        self.clock.after(0.5, self.tick)

    def run(self) -> None:
        s = self.scenario
        self.start_master()
        self.tick()
        self.relist()
        self.later(s.kill_workers_every, self.kill_worker)
        self.later(s.kill_master_every, self.kill_master)
        if s.stop_at:
            self.clock.after(s.stop_at, lambda: self.hear(e.StopRequested("asked to")))
        self.clock.run(lambda: self.outcome is not None, deadline=3600.0)
        self.check()

    # Promises.

    def positions(self, work: Work, batch: int) -> tuple[int, ...]:
        start = work.start + batch * self.scenario.minibatch
        return tuple(range(start, min(start + self.scenario.minibatch, work.stop)))

    def check_conservation(self, job: Job) -> None:
        shards = job.shards
        plan, open_records = shards.plan, 0
        for s in [
            *shards.leased.values(), *shards.waiting, *(x.shard for x in shards.searches.values())
        ]:  # fmt: skip
            if s.kind is Kind.TRAIN:
                open_records += sum(plan.batch_records(s, b) for b in range(s.next_batch, s.batches))
        fresh, epoch, index = 0, *shards._fresh()
        while (s := plan.shard(epoch, index)) is not None:
            fresh += s.stop - s.start
            epoch, index = (epoch, index + 1) if index + 1 < plan.shards_per_epoch else (epoch + 1, 0)
        if shards.done_records + open_records + fresh != plan.total_records:
            raise Violation(f"{shards.done_records} + {open_records} + {fresh} != {plan.total_records}")

    def check_view(self, cut: int) -> None:
        views = [s.views.get(cut) for s in self.servers.values()]
        if any(v is None or v != views[0] for v in views):
            raise Violation(f"the servers' views of cut {cut} differ")

    def check(self) -> None:
        s, plan = self.scenario, self.terms.plan
        if self.outcome is None:
            raise Violation(f"the job hangs at {self.clock.now:.0f} s")
        hung = [t for t in self.announced if "no batch finished" in t]
        if hung:
            raise Violation(f"a worker was given work and did nothing: {hung[0]}")
        assert self.brain is not None
        job = self.brain.job
        for server in self.servers.values():
            worst = server.witness.most_common(1)
            if worst and worst[0][1] > 1:
                raise Violation(f"{server.name} applied {worst[0][0]} {worst[0][1]} times")
        outcome, reason = self.outcome
        if s.stop_at and outcome == "stopped":
            if self.published is not None:
                first, *rest = [server.views[self.published.cut] for server in self.servers.values()]
                if any(v != first for v in rest) or first[0] != self.published.version:
                    raise Violation("the checkpoint is no consistent cut")
            return
        if len(s.bad_records) > s.max_bad_records:
            if outcome != "failed" or not ("record" in reason or "first batch" in reason):
                raise Violation(f"a bad record must fail the job by name: {outcome}, {reason}")
            return
        if outcome != "succeeded":
            raise Violation(f"the job {outcome}: {reason}")
        expected = Counter({(epoch, p): 1 for epoch in range(s.epochs) for p in range(plan.epoch_records(epoch))})
        for epoch, position in list(expected):
            if position in s.bad_records:
                del expected[(epoch, position)]
        for server in self.servers.values():
            if server.witness != expected:
                missing = expected - server.witness
                raise Violation(f"{server.name} lacks {sorted(missing)[:5]}")
        if job.shards.version != plan.total_batches or job.shards.done_records != plan.total_records:
            raise Violation("the master's counts are wrong")
        if s.validation and (not job.evaluation.done or job.evaluation.done[-1][0] != plan.total_batches):
            raise Violation("the last evaluation is not of the last version")


def simulate(scenario: Scenario, parts: Parts | None = None) -> World:
    world = World(scenario, parts)
    world.run()
    return world


def random_scenario(seed: int) -> Scenario:
    """A job of random shape with random faults."""
    r = Random(seed)
    stormy = r.random() < 0.7
    base = Scenario(
        seed=seed,
        records=r.randint(1, 60),
        minibatch=r.randint(1, 5),
        batches_per_shard=r.randint(1, 4),
        epochs=r.randint(1, 3),
        workers=r.randint(1, 4),
        servers=r.randint(1, 3),
        validation=r.choice([0, r.randint(1, 20)]),
        evaluation_steps=r.choice([0, r.randint(1, 15)]),
        max_step=r.choice([0, 0, 0, r.randint(1, 40)]),
        weather=Weather(
            delay=r.choice([0.001, 0.01, 0.05]),
            loss=r.choice([0, 0, 0.05]) if stormy else 0,
            repeat=r.choice([0, 0.1]) if stormy else 0,
            break_every=r.choice([0, 3.0, 10.0]) if stormy else 0,
        ),
        kill_workers_every=r.choice([0, 2.0, 6.0]) if stormy else 0,
        kill_master_every=r.choice([0, 0, 6.0, 15.0]) if stormy else 0,
        miss_events=r.choice([0, 0, 0.3]) if stormy else 0,
        stop_at=r.choice([0, 0, 0, 0, r.uniform(0, 20)]),
    )
    if r.random() < 0.15:
        count = r.randint(1, 2)
        bad = tuple(sorted(r.sample(range(base.records), min(count, base.records))))
        return replace(
            base, bad_records=bad, segfault=r.random() < 0.5, max_bad_records=r.choice([0, 10]), stop_at=0, max_step=0
        )
    return base

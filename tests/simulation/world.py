"""A whole job on a virtual clock: the real core, messages, session and ledger; simulated processes, network and faults.

Servers keep a witness of what they really applied, apart from the counters that decide it: a job is right when every
record of every epoch stands there exactly once on every server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import OUT_OF_MEMORY, PREEMPTED
from elasticdl.job.names import replica_name
from elasticdl.master.checkpoint_folder import CheckpointFolder
from elasticdl.master.side import Effect, Send
from elasticdl.ps.ledger import Ledger
from elasticdl.ps.rounds import Rounds
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from elasticdl.strategies.parameter_servers.messages import Commands, event_of
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.session import Session, Work
from tests.core.invariants import check_clock, check_job
from tests.simulation.clock import Clock
from tests.simulation.network import Datagrams, Stream
from tests.simulation.processes import Server, Violation, Witness, Worker
from tests.simulation.scenario import GRACE_SECONDS, Scenario

STATE: TypeAdapter[ParameterServerMachine] = TypeAdapter(ParameterServerMachine)  # as the journal keeps it
PATIENCE_SECONDS = 3600.0


@dataclass
class Parts:
    """What the simulation is built from; mutants replace a part with one that has a bug."""

    job: Callable[[ParameterServerTerms], ParameterServerMachine] = ParameterServerMachine.new
    session: type[Session] = Session
    ledger: type[Ledger] = Ledger
    rounds: type[Rounds] = Rounds
    server: type[Server] = Server
    worker: type[Worker] = Worker
    replay_acts: bool = False


class World:
    def __init__(
        self, scenario: Scenario, parts: Parts | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.scenario, self.parts, self.tell = scenario, parts or Parts(), tell
        self.random, self.clock = Random(scenario.seed), Clock()
        self.faults: Counter[str] = Counter()
        self.datagrams = Datagrams(self.clock, self.random, scenario.weather, self.faults)
        self.terms = scenario.terms()
        self.journal: list[tuple[str, bytes, float]] = []
        self.machine: ParameterServerMachine | None = None
        self.left: ParameterServerMachine | None = None  # the state that the last master had when it died
        self.servers: dict[str, Server] = {}
        self.workers: dict[str, Worker] = {}
        self.uids: dict[str, str] = {}
        self.exits: dict[str, e.ReplicaGone] = {}
        self.asked: set[str] = set()  # launches that take their time
        self.stopped: set[str] = set()
        self.streams: dict[str, Stream] = {}
        self.seen: dict[int, tuple[int, Witness]] = {}  # what evaluation rounds read
        self.metrics: list[int] = []
        self.outcome: tuple[str, str] | None = None
        self.disk: dict[str, dict[str, tuple[int, Witness]]] = {}  # directory -> server -> what it wrote
        self.damaged: set[str] = set()
        self.most_workers = scenario.workers
        self.published: c.PublishCheckpoint | None = None

    def note(self, text: str) -> None:
        if self.tell is not None:
            self.tell(f"{self.clock.now:8.3f}  {text}")

    def fault(self, kind: str, text: str = "") -> None:
        self.faults[kind] += 1
        self.note(f"FAULT {kind} {text}".rstrip())

    # The master.

    def start_master(self) -> None:
        job = self.parts.job(self.terms)
        for name, body, at in self.journal:
            commands = job.handle(e.decode(name, body), at)
            if self.parts.replay_acts:
                for command in commands:
                    self.act(command)
        if self.left is not None:
            if job != self.left:
                raise Violation("the journal leads to another state than the master had")
            body = STATE.dump_json(job)
            if self.parts.job == ParameterServerMachine.new and STATE.validate_json(body) != job:
                raise Violation("the state does not survive being written down")
        self.machine = job
        self.note("master starts")
        if job.outcome:
            self.outcome = (job.outcome, job.reason)
            return
        running = tuple((n, uid) for n, uid in self.uids.items() if n not in self.exits)
        ended = tuple((n, uid) for n, uid in self.uids.items() if n in self.exits)
        for name, _ in ended:  # how they ended comes before what is missing
            self.hear(self.exits[name])
        self.hear(e.MasterStarted(running, ended))
        for name in list(self.uids):
            if name not in self.exits:
                self.reconnect(name)

    def hear(self, event: e.Event) -> None:
        if self.machine is None or self.outcome is not None:
            return
        self.journal.append((*e.encode(event), self.clock.now))
        commands = Commands(self.machine, CheckpointFolder("", self.terms.job))
        self.note(f"heard {event}")
        effects = [x for command in self.machine.handle(event, self.clock.now) for x in commands.effects(command)]
        check_job(self.machine)
        if self.churning and self.random.random() < self.scenario.kill_master_acting:
            for effect in effects[: self.random.randint(0, len(effects))]:
                self.act(effect)
            self.kill_master("while it acted")
            return
        for effect in effects:
            self.act(effect)

    def act(self, effect: Effect) -> None:
        if not isinstance(effect, Send):
            self.note(f"  does {effect}")
        match effect:
            case Send(replica, message):
                process = self.process(replica)
                stream = self.streams.get(replica)
                if process is not None and stream is not None:
                    stream.send("down", process.receive, message)
            case c.LaunchReplica(role, index):
                name = replica_name("sim", role, index)
                there = name in self.uids and name not in self.exits
                if there and role == "ps":
                    raise Violation(f"{name} is launched while a process of that name is still there")
                if not there and name not in self.asked:  # idempotent by name
                    self.asked.add(name)
                    self.clock.after(self.random.uniform(0.1, 2.0), lambda: self.launch(role, name))
            case c.StopReplica(name, reason):
                self.stop(name, reason)
            case c.IdentifyRecord(shard, _, position):
                self.hear(e.RecordIdentified(shard, position, position, f"record {position}"))
            case c.ReportMetrics(version):
                if version not in {v for v, _ in self.seen.values()}:
                    raise Violation(f"metrics are labelled {version}, but no round read that version")
                every = self.scenario.evaluation_steps
                if not every or (version % every and version != self.terms.plan.total_versions):
                    self.faults["evaluation delayed"] += bool(every)
                self.metrics.append(version)
            case c.PublishCheckpoint():
                self.publish(effect)
            case c.DeleteCheckpoints(directories):
                for directory in directories:
                    self.disk.pop(directory, None)
            case c.Announce(text):
                self.faults["torn cut repaired"] += "reached only some servers" in text
                self.faults["cut gave way"] += "while pushes were held" in text
                self.faults["bad record set aside"] += "it cannot be trained (" in text
                if self.faults["bad record set aside"] > len(self.scenario.bad_records):
                    raise Violation(f"set aside once more: {text}")
            case c.FinishJob(outcome, reason):
                self.outcome = self.outcome or (outcome, reason)

    def publish(self, command: c.PublishCheckpoint) -> None:
        """The manifest is written: the parts become a checkpoint, in which all servers stand at one moment."""
        directory, partial = f"version-{command.position.version}", f"/sim.cut-{command.cut}.partial"
        if partial in self.disk:
            self.disk[directory] = self.disk.pop(partial)
            self.damaged.discard(directory)
            if self.churning and self.random.random() < self.scenario.damage:
                self.damaged.add(directory)
        elif directory not in self.disk:
            raise Violation(f"there is nothing to publish as {directory}")
        assert self.machine is not None
        missing = set(self.machine.servers.checkpoints.servers) - set(self.disk[directory])
        if missing:
            raise Violation(f"{directory} is published without the parts of {sorted(missing)}")
        first, *rest = self.disk[directory].values()
        trained = sum(first[1].values())
        if any(v != first for v in rest) or first[0] != command.position.version:
            raise Violation(f"the checkpoint {directory} is no consistent cut")
        aside = len(self.scenario.bad_records) * self.scenario.epochs
        counted = sum(d.records for d in command.position.done.values())
        if not trained <= counted <= trained + aside:
            raise Violation(f"{directory} counts {counted} records, and {trained} were trained")
        self.published = command
        self.faults["checkpoint"] += 1
        self.clock.after(0.05, lambda: self.hear(e.CheckpointPublished(command.cut, directory)))

    def kill_master(self, when: str = "") -> None:
        if self.machine is None or self.outcome is not None:
            return
        self.fault("master killed" if not when else f"master killed {when}")
        self.left = self.machine
        self.machine = None
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.clock.after(self.random.uniform(0.2, 3.0), self.start_master)

    # Processes.

    def process(self, name: str) -> Worker | Server | None:
        return self.workers.get(name) or self.servers.get(name)

    def launch(self, role: str, name: str) -> None:
        self.asked.remove(name)
        self.exits.pop(name, None)
        self.uids[name] = f"{name}#{self.random.random()}"
        if role == "ps":
            self.servers[name] = self.parts.server(self, name)
        else:
            self.workers[name] = self.parts.worker(self, name)
            alive = [n for n, w in self.workers.items() if w.alive and n not in self.stopped]
            if len(alive) > self.most_workers:
                raise Violation(f"{self.most_workers} workers were asked for, {len(alive)} run")
        self.note(f"{name} starts")
        self.cluster_says(e.ReplicaStarted(name, self.uids[name]))
        self.clock.after(self.random.uniform(0.5, 3.0), lambda: self.reconnect(name))

    def stop(self, name: str, reason: str) -> None:
        worker = self.workers.get(name)
        if "no batch finished" in reason and worker is not None and not worker.stalled:
            raise Violation(f"{name} was held for hung, and was not: {reason}")
        self.stopped.add(name)
        if worker is not None and worker.cut_off:  # no signal reaches it: it goes on, and its messages must not count
            self.clock.after(1.0, lambda: self.stop(name, reason))
        else:
            self.clock.after(0.1, lambda: self.process_ends(name, PREEMPTED, "stopped"))

    def process_ends(self, name: str, cause: str, reason: str) -> None:
        process = self.process(name)
        if process is None or not process.alive:
            return
        process.alive = False
        self.note(f"{name} ends: {reason}")
        stream = self.streams.pop(name, None)
        if stream is not None:
            stream.close()
            self.clock.after(self.random.uniform(0, 0.05), lambda: self.dropped(name, process.incarnation))
        self.exits[name] = e.ReplicaGone(name, self.uids[name], cause, reason)
        self.cluster_says(self.exits[name])

    def cluster_says(self, event: e.Event) -> None:
        """A cluster event, which may be missed; the relist brings it up again."""
        if self.random.random() < self.scenario.miss_events:
            self.fault("event missed", str(event))
        else:
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
        if process is None or not process.alive or self.machine is None or self.outcome is not None:
            return
        if isinstance(process, Worker) and (process.stalled or process.cut_off):
            return
        old = self.streams.get(name)
        if old is not None and old.open:
            return
        job = self.machine
        if not job.replicas.admits(name, process.incarnation):
            if name in job.replicas.replicas:
                self.process_ends(name, PREEMPTED, "refused by the master")
            return
        stream = self.streams[name] = Stream(self.clock, self.random, self.scenario.weather)
        welcome = pb.ToReplica(welcome=pb.Welcome(master_epoch=1))
        stream.send("down", process.receive, welcome)
        self.say(process, process.hello())
        if isinstance(process, Server):
            process.settle()
        if self.scenario.weather.break_every and self.churning:
            self.clock.after(
                self.random.expovariate(1 / self.scenario.weather.break_every), lambda: self.break_stream(name, stream)
            )

    def break_stream(self, name: str, stream: Stream) -> None:
        process = self.process(name)
        if not stream.open or process is None or not process.alive:
            return
        self.fault("stream broken", name)
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

    @property
    def churning(self) -> bool:
        return self.clock.now < self.scenario.churn_until and self.outcome is None

    def later(self, mean: float, action: Callable[[], None]) -> None:
        if not mean:
            return

        def fire() -> None:
            if self.churning:
                action()
                self.clock.after(self.random.expovariate(1 / mean), fire)

        self.clock.after(self.random.expovariate(1 / mean), fire)

    def some_worker(self) -> Worker | None:
        alive = [w for w in self.workers.values() if w.alive and not w.stalled and not w.session.leaving]
        return self.random.choice(alive) if alive else None

    def kill_worker(self) -> None:
        if (worker := self.some_worker()) is not None:
            self.fault("worker killed", worker.name)
            self.process_ends(worker.name, PREEMPTED, "killed by SIGKILL")

    def preempt_worker(self) -> None:
        if (worker := self.some_worker()) is not None:
            self.fault("worker preempted", worker.name)
            worker.terminate()

    def stall_worker(self) -> None:
        if (worker := self.some_worker()) is not None and worker.session.queue:
            self.fault("worker stalled", worker.name)
            worker.stalled = True

    def cut_off_worker(self) -> None:
        """The master and a worker cannot reach each other for a while; the worker and the servers can."""
        worker = self.some_worker()
        if worker is None or worker.cut_off or worker.name not in self.streams:
            return
        self.fault("worker cut off", worker.name)
        worker.cut_off = True
        self.break_stream(worker.name, self.streams[worker.name])

        def mend() -> None:
            worker.cut_off = False
            self.reconnect(worker.name)

        self.clock.after(self.random.uniform(1, 30), mend)

    def exhaust_memory(self) -> None:
        if (worker := self.some_worker()) is not None and self.outcome is None:
            self.fault("out of memory", worker.name)
            self.process_ends(worker.name, OUT_OF_MEMORY, "out of memory")

    def kill_server(self) -> None:
        alive = [s.name for s in self.servers.values() if s.alive]
        if alive and self.outcome is None:
            self.fault("server killed")
            self.process_ends(self.random.choice(alive), PREEMPTED, "killed by SIGKILL")

    def preempt_server(self) -> None:
        alive = [s for s in self.servers.values() if s.alive]
        if alive and self.outcome is None:
            server = self.random.choice(alive)
            self.fault("server preempted", server.name)
            self.say(server, pb.FromReplica(leaving=pb.Leaving()))
            self.clock.after(GRACE_SECONDS, lambda: self.grace_over(server))

    def grace_over(self, server: Server) -> None:
        if self.servers.get(server.name) is server:
            self.process_ends(server.name, PREEMPTED, "the grace is over")

    def scale(self, role: str) -> None:
        if self.machine is not None and self.outcome is None:
            count = self.random.randint(1, 4)
            self.fault(f"{role} scaled", str(count))
            self.most_workers = max(self.most_workers, count)
            self.hear(e.ScaleRequested(role, count))

    def ask_to_stop(self) -> None:
        if self.machine is None:  # the command tries again until there is a master
            self.clock.after(0.5, self.ask_to_stop)
        elif self.outcome is None:
            self.fault("stop asked for")
            self.hear(e.StopRequested("asked to"))

    def tick(self) -> None:
        if self.machine is not None:
            deadline = self.machine.deadline()
            if deadline is not None and deadline <= self.clock.now:
                self.hear(e.TimePassed())
                if self.machine is not None:
                    check_clock(self.machine, self.clock.now)
        self.clock.after(0.5, self.tick)

    def run(self) -> None:
        s = self.scenario
        self.start_master()
        self.tick()
        self.relist()
        self.later(s.kill_workers_every, self.kill_worker)
        self.later(s.preempt_workers_every, self.preempt_worker)
        self.later(s.stall_workers_every, self.stall_worker)
        self.later(s.cut_off_workers_every, self.cut_off_worker)
        self.later(s.kill_master_every, self.kill_master)
        for _ in range(s.out_of_memory):
            self.clock.after(self.random.uniform(2, 20), self.exhaust_memory)
        self.later(s.kill_servers_every, self.kill_server)
        self.later(s.preempt_servers_every, self.preempt_server)
        self.later(s.scale_servers_every, lambda: self.scale("ps"))
        self.later(s.scale_workers_every, lambda: self.scale("worker"))
        if s.stop_at:
            self.clock.after(s.stop_at, self.ask_to_stop)
        self.clock.run(lambda: self.outcome is not None, deadline=PATIENCE_SECONDS)
        self.check()

    # Promises.

    def positions(self, work: Work, batch: int) -> tuple[int, ...]:
        start = work.start + batch * self.scenario.minibatch
        return tuple(range(start, min(start + self.scenario.minibatch, work.stop)))

    def check_view(self, cut: int, servers: Collection[str]) -> None:
        """Every shard of a round reads the same picture on every server, however long the round lasts."""
        views = [self.servers[name].view(cut) for name in servers if self.servers[name].alive]
        for view in views:
            if view is None or view != self.seen.setdefault(cut, view):
                raise Violation(f"an evaluation shard read another model than the rest of the round of cut {cut}")

    def holding(self) -> list[Server]:
        """The servers that hold the model, as the master sees it."""
        assert self.machine is not None
        return [self.servers[name] for name in self.machine.servers.names if name in self.servers]

    def check(self) -> None:
        if self.outcome is None:
            raise Violation(f"the job hangs at {self.clock.now:.0f} s")
        s = self.scenario
        outcome, reason = self.outcome
        self.note(f"{outcome}: {reason}")
        for server in self.servers.values():
            for (epoch, position), times in server.witness.items():
                if times > 1:
                    raise Violation(f"{server.name} applied record {position} of epoch {epoch} {times} times")
        if outcome == "failed" and "checkpoint could not be written" in reason and self.faults["disk full"]:
            return None
        if outcome == "stopped" and self.faults["stop asked for"]:
            return self.check_checkpoint(reason)
        if len(s.bad_records) > s.max_bad_records:
            if outcome != "failed" or not ("record" in reason or "first batch" in reason):
                raise Violation(f"a bad record must fail the job by name: {outcome}, {reason}")
            self.faults["job failed by a bad record"] += 1
            return None
        if outcome != "succeeded":
            raise Violation(f"the job {outcome}: {reason}")
        return self.check_success()

    def check_checkpoint(self, reason: str) -> None:
        if "lost with a server" in reason:
            return
        if "nothing was trained" in reason:
            if any(server.witness for server in self.servers.values()):
                raise Violation("the job says that nothing was trained, and something was")
            return
        assert self.machine is not None
        job = self.machine
        if job.checkpoint not in self.disk or "the checkpoint holds version" not in reason:
            raise Violation(f"there is no checkpoint {job.checkpoint}, yet {reason}")
        if job.checkpoint != f"version-{job.servers.checkpoints.newest.position.version}":
            raise Violation(f"{job.checkpoint} is not the newest checkpoint")

    def check_success(self) -> None:
        s, plan = self.scenario, self.terms.plan
        assert self.machine is not None
        job = self.machine
        expected = Counter(
            {
                (epoch, p): 1
                for epoch in range(s.epochs)
                for p in range(plan.epoch_records(epoch))
                if p not in s.bad_records
            }
        )
        for server in self.holding():
            if server.witness != expected:
                raise Violation(f"{server.name} lacks {sorted(expected - server.witness)[:5]}")
        if job.shards.version != plan.total_versions or job.shards.done_records != plan.total_records:
            raise Violation("the master's counts are wrong")
        evaluated = [version for version, _ in job.evaluation.done]
        if sorted(set(evaluated)) != evaluated:
            raise Violation(f"metrics are kept of versions that never were: {evaluated}")
        if s.validation and (not job.evaluation.done or job.evaluation.done[-1][0] != plan.total_versions):
            raise Violation("the last evaluation is not of the last version")


def simulate(scenario: Scenario, parts: Parts | None = None) -> World:
    world = World(scenario, parts)
    world.run()
    return world

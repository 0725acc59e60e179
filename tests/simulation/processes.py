"""Simulated servers and workers: the real ledger and session, with a witness in the place of parameters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticdl.core.plan import Kind
from elasticdl.core.replicas import CRASHED, FINISHED, PREEMPTED
from elasticdl.ps.ledger import Push, Ruling, Verdict
from elasticdl.ps.rounds import Rounds, ledger_of
from elasticdl.strategies.parameter_servers.core.cuts import SAVE
from elasticdl.wire import PROTOCOL
from elasticdl.wire import control_pb2 as pb
from elasticdl.worker.session import Work
from tests.simulation.scenario import GRACE_SECONDS

if TYPE_CHECKING:
    from tests.simulation.world import World

Witness = Counter[tuple[int, int]]  # (epoch, position) -> times applied
RESEND_SECONDS = 1.0


class Violation(AssertionError):
    """The job broke a promise."""


class Server:
    """Applies pushes as its ledger says, and remembers what it really applied."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.ledger = world.parts.ledger()
        self.witness: Witness = Counter()
        self.views: dict[int, tuple[int, Witness]] = {}
        self.written: dict[int, pb.Wrote] = {}
        self.asked = 0  # the timeline it was last told to begin
        self.newest: Counter[str] = Counter()  # shard -> the newest lease it was told of
        self.closed: set[str] = set()
        self.waiting: list[tuple[Push, tuple[int, ...], Callable[[Ruling], None]]] = []
        self.early: list[tuple[int, Callable[[int], None]]] = []  # pulls of a version that is yet to come
        self.kept: list[tuple[Push, tuple[int, ...]]] = []  # of rounds that are not whole
        self.incarnation = f"{name}@{world.random.random()}"
        self.alive = True

    def hello(self) -> pb.FromReplica:
        hello = pb.Hello(
            protocol=PROTOCOL,
            replica=self.name,
            incarnation=self.incarnation,
            address=f"sim://{self.name}",
            timeline=self.ledger.timeline,
        )
        return pb.FromReplica(hello=hello)

    def receive(self, m: pb.ToReplica) -> None:
        self.ledger.direct(m)
        match m.WhichOneof("body"):
            case "opened":
                self.heard_of(m.opened)
            case "open_shards":
                for o in m.open_shards.open:
                    self.heard_of(o)
            case "close_shard":
                self.closed.add(m.close_shard.shard)
            case "advance":
                self.world.faults["cut found unequal"] += 1
            case "freeze":
                self.freeze(m.freeze)
            case "settle":
                self.views.pop(m.settle.cut, None)
            case "restore":
                self.restore(m.restore)
            case "drop_view":
                self.views.pop(m.drop_view.cut, None)
        self.settle()

    def freeze(self, freeze: pb.Freeze) -> None:
        cut = freeze.cut
        if self.kept and cut not in self.views:
            raise Violation(f"{self.name} is cut in the middle of a round")
        known = cut in self.views
        self.views.setdefault(cut, (self.ledger.version, self.witness.copy()))
        self.world.say(self, pb.FromReplica(frozen=pb.Frozen(cut=cut)))
        if freeze.purpose == SAVE:
            if cut in self.written:
                self.world.say(self, pb.FromReplica(wrote=self.written[cut]))
            elif not known:
                takes = self.world.random.choice([0.0, self.world.random.uniform(0.05, 2.0)])
                self.world.clock.after(takes, lambda: self.write(cut, freeze.directory))

    def write(self, cut: int, directory: str) -> None:
        """In the background, while pushes go on."""
        if not self.alive or cut not in self.views:
            return
        wrote = pb.Wrote(cut=cut, part=self.name)
        if self.world.churning and self.world.random.random() < self.world.scenario.full_disk:
            self.world.fault("disk full", self.name)
            wrote = pb.Wrote(cut=cut, error="No space left on device")
        else:
            self.world.disk.setdefault(directory, {})[self.name] = self.views[cut]
        self.written[cut] = wrote
        self.world.say(self, pb.FromReplica(wrote=wrote))

    def restore(self, restore: pb.Restore) -> None:
        """Everything that is here goes; it takes a while to read what takes its place."""
        if restore.timeline == self.ledger.timeline:
            self.world.say(self, pb.FromReplica(restored=pb.Restored(timeline=restore.timeline)))
            return
        asked = self.asked = restore.timeline

        def read() -> None:
            if not self.alive or self.asked != asked or self.ledger.timeline == asked:
                return
            restored = pb.Restored(timeline=asked)
            parts = self.world.disk.get(restore.directory, {})
            if restore.directory and restore.directory in self.world.damaged:
                self.world.faults["damaged checkpoint met"] += 1
                restored.error = "its checksum is wrong"
            elif restore.directory and not parts:
                raise Violation(f"{self.name} was told to begin at {restore.directory}, which is not there")
            else:
                self.views.clear()
                self.written.clear()
                self.newest.clear()
                self.closed.clear()
                self.kept.clear()
                self.early.clear()
                self.ledger = ledger_of(restore, self.world.parts.ledger, self.world.parts.rounds)
                version, saved = next(iter(parts.values()), (0, Counter()))  # all parts hold the same witness
                self.witness = saved.copy() if restore.directory else Counter()
                if restore.directory and version != restore.version:
                    raise Violation(f"{restore.directory} is of version {version}, not {restore.version}")
            self.world.say(self, pb.FromReplica(restored=restored))
            self.settle()

        self.world.clock.after(self.world.random.uniform(0.01, 0.5), read)

    def heard_of(self, o: pb.Opened) -> None:
        self.newest[o.shard] = max(self.newest[o.shard], o.attempt)

    def view(self, cut: int) -> tuple[int, Witness] | None:
        """What an evaluation round reads: the version it is of, and everything that was applied by then."""
        return self.views.get(cut)

    def push(self, push: Push, positions: tuple[int, ...], answer: Callable[[Ruling], None]) -> None:
        if self.alive:
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
                if push.timeline != self.ledger.timeline and ruling.verdict is not Verdict.OVER:
                    raise Violation(f"{self.name} stands on timeline {self.ledger.timeline} and judged {push}")
                if ruling.verdict is Verdict.WAIT:
                    continue
                self.waiting.remove(entry)
                if ruling.verdict in (Verdict.APPLY, Verdict.KEEP):
                    if push.attempt < self.newest[push.shard] or push.shard in self.closed:
                        raise Violation(f"{self.name} applied {push} though that lease was over")
                    self.take(push, positions)
                    moved = True
                answer(ruling)
        for entry in [x for x in self.early if x[0] <= self.ledger.version]:
            self.early.remove(entry)
            entry[1](self.ledger.version)
        report = self.ledger.report()
        if report is not None:
            counters = [pb.Counter(shard=s, next_batch=n) for s, n in report[1].items()]
            coming = not self.ledger.holding
            held = pb.Held(cut=report[0], counters=counters, at=self.ledger.holds_at, coming=coming)
            self.world.say(self, pb.FromReplica(held=held))

    def take(self, push: Push, positions: tuple[int, ...]) -> None:
        ledger = self.ledger
        if not isinstance(ledger, Rounds):
            self.apply(push, positions)
            return ledger.applied(push)
        self.kept.append((push, positions))
        ledger.keep(push)
        return None

    def confirm(self, push: Push, answer: Callable[[], None]) -> None:
        """Every server has the batch, says its worker."""
        ledger = self.ledger
        if not self.alive or push.timeline != ledger.timeline or not isinstance(ledger, Rounds):
            return
        ledger.confirm(push.epoch, push.index)
        while ledger.whole():
            self.apply_round(ledger.version)
            ledger.round_applied()
        answer()
        self.settle()

    def apply(self, push: Push, positions: tuple[int, ...]) -> None:
        for p in positions:
            self.witness[(push.epoch, p)] += 1

    def apply_round(self, number: int) -> None:
        """All that is kept of a round goes in at once; that it is whole and fresh is worked out here once more."""
        plan = self.world.terms.plan
        mine = [x for x in self.kept if plan.version_before(x[0].epoch, x[0].index) == number]
        self.kept = [x for x in self.kept if x not in mine]
        epoch, place = divmod(number, plan.versions_per_epoch)
        first = place * plan.round_batches
        batches = [(epoch, i) for i in range(first, min(first + plan.round_batches, plan.batches_per_epoch))]
        if sorted((p.epoch, p.index) for p, _ in mine) != batches:
            raise Violation(f"{self.name} applied round {number} as {[p.shard for p, _ in mine]}")
        for other in self.world.servers.values():
            # Else a worker computes what is missing there on values of two versions.
            same = other.ledger.timeline == self.ledger.timeline and other.ledger.version == number
            theirs = {(p.epoch, p.index) for p, _ in other.kept}
            if other is not self and other.alive and same and not theirs >= set(batches):
                raise Violation(f"{self.name} applied round {number}, which {other.name} does not have whole")
        for push, positions in mine:
            if push.computed_on < number - plan.tolerance:
                raise Violation(f"{self.name} applied {push} in round {number}")
            self.apply(push, positions)
        self.world.faults["round"] += 1

    def pull(self, timeline: int, at_least: int, answer: Callable[[int], None]) -> None:
        """Tell the version of what is pulled, once it is as new as asked for."""
        if self.alive and timeline == self.ledger.timeline:
            self.early.append((at_least, answer))
            self.settle()


class Worker:
    """Does with a lease what a worker does, in virtual time."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        in_order = world.terms.plan.synchronous
        self.session = world.parts.session(name, f"{name}@{world.random.random()}", capacity=2, in_order=in_order)
        self.alive = True
        self.busy = False
        self.over = 0  # the timeline that servers say is over
        self.stalled = False  # there, and doing nothing
        self.cut_off = False  # from the master, not from the servers

    @property
    def incarnation(self) -> str:
        return self.session.incarnation

    def hello(self) -> pb.FromReplica:
        return self.session.hello()

    def receive(self, m: pb.ToReplica) -> None:
        if not self.stalled:
            self.session.receive(m)
            self.go_on()

    def server_names(self) -> set[str]:
        return {address.removeprefix("sim://") for address in self.session.servers}

    def terminate(self) -> None:
        """SIGTERM: give back what waits, finish the batch in flight, go."""
        if self.session.leaving:
            return
        for message in self.session.leave():
            self.world.say(self, message)
        self.world.clock.after(
            GRACE_SECONDS, lambda: self.world.process_ends(self.name, PREEMPTED, "the grace is over")
        )
        self.go_on()

    def go_on(self) -> None:
        if not self.alive or self.stalled:
            return
        over = self.session.leaving and not self.busy and not self.session.queue
        if self.session.shutdown or over:
            how = (FINISHED, "exit code 0") if self.session.shutdown else (PREEMPTED, "exit code 143")
            self.world.process_ends(self.name, *how)
            return
        if self.busy or not self.session.servers or self.session.timeline == self.over:
            return
        work = self.session.current()
        if work is not None:
            self.busy = True
            self.world.clock.after(self.world.random.uniform(0.01, 0.05), lambda: self.compute(work))

    def compute(self, work: Work) -> None:
        if not self.alive or self.stalled:
            return
        if not self.session.holds(work):
            self.done()
        elif work.kind == Kind.TRAIN:
            plan = self.world.terms.plan
            if plan.synchronous:
                self.pull(work, plan.version_needed(work.round, work.index))
            else:
                self.train(work, 0)
        elif work.kind == Kind.EVALUATE and not all(self.world.servers[n].alive for n in self.server_names()):
            self.world.clock.after(0.5, lambda: self.compute(work))  # no answer
        elif work.kind != Kind.PROBE or not self.crashes(work, tuple(range(work.start, work.stop))):
            self.world.say(self, self.session.completed(work, self.result(work)))
            self.done()

    def train(self, work: Work, computed_on: int) -> None:
        positions = self.world.positions(work, work.next_batch)
        if not self.crashes(work, positions):
            self.push(work, work.next_batch, positions, computed_on)

    def pull(self, work: Work, at_least: int) -> None:
        """Ask every server for its values until all answered; then compute on them."""
        world = self.world
        owed = self.server_names()
        versions: dict[str, int] = {}
        timeline = self.session.timeline
        over = False
        if world.scenario.impatient:
            at_least = 0

        def answered(server: str, version: int) -> None:
            nonlocal over
            if over or not self.alive or self.stalled:
                return
            versions[server] = version
            owed.discard(server)
            if not owed:
                over = True
                world.clock.after(world.random.uniform(0.01, 0.05), compute)

        def compute() -> None:
            if not self.alive or self.stalled:
                return
            if self.session.holds(work) and self.session.timeline == timeline:
                self.train(work, min(versions.values()))
            else:
                self.done()

        def send() -> None:
            nonlocal over
            if over or not self.alive or self.stalled:
                return
            gone = not self.session.holds(work) or self.session.timeline != timeline
            leaving = self.session.leaving and self.session.holds(work)
            if gone or leaving or self.session.preceded(work):
                over = True
                if leaving:
                    world.say(self, self.session.returned(work, "the worker is leaving"))
                self.done()
                return
            for name in sorted(owed):
                server = world.servers[name]

                def reply(version: int, name: str = name) -> None:
                    world.datagrams.send(lambda: answered(name, version))

                world.datagrams.send(lambda server=server, reply=reply: server.pull(timeline, at_least, reply))
            world.clock.after(RESEND_SECONDS, send)

        send()

    def result(self, work: Work) -> str:
        world = self.world
        if work.kind == Kind.EVALUATE:
            world.check_view(int(work.payload), self.server_names())
            return json.dumps(list(range(work.start, work.stop)))
        if work.kind == Kind.SUMMARIZE:
            seen = sorted(p for part in json.loads(work.payload) for p in json.loads(part))
            if seen != list(range(world.scenario.validation)):
                raise Violation(f"an evaluation round saw {seen}")
            return json.dumps({"accuracy": 1.0})
        return "model" if work.kind == Kind.EXPORT else ""

    def read_ahead(self, work: Work) -> tuple[int, ...]:
        """What the process touches besides the batch at work, and dies of just the same."""
        if work.careful:
            return ()
        out = self.world.positions(work, work.next_batch + 1) if work.next_batch + 1 < work.batches else ()
        for other in self.session.queue.values():
            if other.kind == Kind.TRAIN and other.shard != work.shard and not other.careful:
                out += self.world.positions(other, other.next_batch)
        return out

    def crashes(self, work: Work, positions: tuple[int, ...]) -> bool:
        bad = set(self.world.scenario.bad_records) - set(work.bad_records)
        if self.world.scenario.segfault and work.kind == Kind.TRAIN:
            positions += self.read_ahead(work)
        if not bad & set(positions):
            return False
        self.world.faults["bad record met"] += 1
        if self.world.scenario.segfault:
            self.world.process_ends(self.name, CRASHED, "killed by SIGSEGV")
        else:
            self.world.say(self, self.session.failed(work, "ValueError: bad record"))
            self.done()
        return True

    def push(self, work: Work, batch: int, positions: tuple[int, ...], computed_on: int) -> None:
        """Push to every server, again and again until all have it or one refuses."""
        world = self.world
        owed = self.server_names()
        unaware: set[str] = set()  # in synchronous training: those that do not know that all have it
        over = False
        kept = tuple(p for p in positions if p not in work.bad_records)
        push = Push(self.session.timeline, work.round, work.index, work.attempt, batch, computed_on)

        def answered(server: str, ruling: Ruling) -> None:
            nonlocal over
            if over or not self.alive or self.stalled:
                return
            if ruling.verdict in (Verdict.APPLY, Verdict.KEEP, Verdict.REPEAT):
                owed.discard(server)
                if not owed and world.terms.plan.synchronous:
                    unaware.update(self.server_names())
                    send()
                elif not owed:
                    committed()
            elif ruling.verdict is Verdict.STALE:
                over = True
                world.faults["gradient rejected as stale"] += 1
                self.done()  # and begin again
            elif ruling.verdict is Verdict.OVER:
                over, self.over = True, push.timeline
                world.faults["told that the timeline is over"] += 1
                self.done()
            elif ruling.verdict is Verdict.REFUSE:
                over = True
                world.faults["push refused"] += 1
                if self.session.holds(work):
                    world.say(self, self.session.returned(work, ruling.reason))
                self.done()
            else:
                raise Violation(f"{self.name} was asked to resend from {ruling.next_batch} at batch {batch}")

        def heard(server: str) -> None:
            unaware.discard(server)
            if not (unaware or over or self.stalled) and self.alive:
                committed()

        def committed() -> None:
            nonlocal over
            over = True
            world.say(self, self.session.committed(work, batch + 1, 0.5))
            if self.session.leaving and self.session.holds(work):
                world.say(self, self.session.returned(work, "the worker is leaving"))
            self.done()

        def send() -> None:
            if over or not self.alive or self.stalled:
                return
            if not self.session.holds(work) or self.session.preceded(work):
                give_up()
                return
            for name in sorted(unaware):
                server = world.servers[name]

                def known(name: str = name) -> None:
                    world.datagrams.send(lambda: heard(name))

                world.datagrams.send(lambda server=server, known=known: server.confirm(push, known))
            for name in sorted(owed):
                server = world.servers[name]

                def reply(ruling: Ruling, name: str = name) -> None:
                    world.datagrams.send(lambda: answered(name, ruling))

                world.datagrams.send(lambda server=server, reply=reply: server.push(push, kept, reply))
            world.clock.after(RESEND_SECONDS, send)

        def give_up() -> None:
            nonlocal over
            over = True
            self.done()

        send()

    def done(self) -> None:
        self.busy = False
        self.go_on()

"""A job under test with obedient replicas: what core asks for is done, unless the test does it otherwise."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.plan import Plan
from elasticdl.core.replicas import Budget
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from elasticdl.strategies.parameter_servers.core.terms import ParameterServerTerms
from tests.core.invariants import check_job

STATE: TypeAdapter[ParameterServerMachine] = TypeAdapter(ParameterServerMachine)


def name(role: str, index: int) -> str:
    return f"elasticdl-j-{role}-{index}"


W0, W1, W2, PS0, PS1 = name("worker", 0), name("worker", 1), name("worker", 2), name("ps", 0), name("ps", 1)


class Play:
    """Feeds events, keeps the journal, checks the invariants, and remembers every command."""

    def __init__(
        self, records: int = 8, minibatch: int = 2, per_shard: int = 2, epochs: int = 1, workers: int = 1,
        servers: int = 1, max_step: int = 0, budget: Budget | None = None, rounds: int = 0, **terms: Any,
    ) -> None:  # fmt: skip
        plan = Plan(records, minibatch, per_shard, epochs, max_step, rounds)
        self.terms = ParameterServerTerms("j", workers, servers, plan, budget=budget or Budget(), **terms)
        self.job = ParameterServerMachine.new(self.terms)
        self.now = 0.0
        self.journal: list[tuple[str, bytes, float]] = []
        self.all: list[c.Command] = []
        self.lives: dict[str, int] = {}  # how many processes bore a name before this one
        self.timelines: dict[str, int] = {}  # what servers stand on
        self.hear(e.MasterStarted())

    def hear(self, event: e.Event, after: float = 1.0) -> list[c.Command]:
        self.now += after
        self.journal.append((*e.encode(event), self.now))
        out = self.job.handle(event, self.now)
        check_job(self.job)
        self.all += out
        return out

    # What replicas do.

    def uid(self, replica: str) -> str:
        life = self.lives.get(replica, 0)
        return f"uid-{replica}" + (f"-{life}" if life else "")

    def incarnation(self, replica: str) -> str:
        return self.uid(replica).replace("uid", "inc", 1)

    def join(self, replica: str, *holdings: e.Holding, capacity: int = 2) -> list[c.Command]:
        self.hear(e.ReplicaStarted(replica, self.uid(replica)), 0.0)
        timeline = self.timelines.get(replica, 0)
        joined = e.ReplicaJoined(
            replica, self.incarnation(replica), f"at-{replica}", holdings, capacity, timeline=timeline
        )
        out = self.hear(joined)
        return out + self.restored(replica) if of(c.RestoreServer, out) else out

    def restored(self, *servers: str, error: str = "") -> list[c.Command]:
        """Servers restored what they were asked to, or cannot; none named: all that are there."""
        out: list[c.Command] = []
        for server in servers or [r.name for r in self.job.replicas.joined("ps")]:
            timeline = self.job.servers.checkpoints.timeline
            if not error:
                self.timelines[server] = timeline
            out += self.hear(e.ServerRestored(server, timeline, error), 0.0)
        return out

    def join_all(self) -> list[c.Command]:
        out: list[c.Command] = []
        for index in range(self.terms.servers):
            out += self.join(name("ps", index))
        for index in range(self.terms.workers):
            out += self.join(name("worker", index))
        return out

    def end(self, replica: str, cause: str, reason: str = "exit code 1") -> list[c.Command]:
        gone = e.ReplicaGone(replica, self.uid(replica), cause, reason, ("Traceback", "ValueError: 7"))
        self.lives[replica] = self.lives.get(replica, 0) + 1
        self.timelines.pop(replica, None)
        return self.hear(gone)

    def commit(self, shard: str, next_batch: int, loss: float = 0.5) -> list[c.Command]:
        s = self.job.shards.leased[shard]
        return self.hear(e.BatchesCommitted(s.worker, shard, s.attempt, next_batch, loss))

    def complete(self, shard: str, result: str = "r") -> list[c.Command]:
        s = self.job.shards.leased[shard]
        return self.hear(e.ShardCompleted(s.worker, shard, s.attempt, result))

    def hold(self, cut: int, **counters: int) -> list[c.Command]:
        """All servers report the same counters; `a=2` means shard train/0/0, `b` train/0/1."""
        return [x for i in range(self.terms.servers) for x in self.held(name("ps", i), cut, **counters)]

    def held(self, server: str, cut: int, **counters: int) -> list[c.Command]:
        pairs = tuple((f"train/0/{'abcdefgh'.index(k)}", n) for k, n in counters.items())
        return self.hear(e.ServerHeld(server, cut, pairs))

    def freeze(self, cut: int) -> list[c.Command]:
        """All servers pinned the cut."""
        return [x for i in range(self.terms.servers) for x in self.hear(e.ServerCut(name("ps", i), cut))]

    def write(self, cut: int, error: str = "") -> list[c.Command]:
        """All servers wrote their parts, or could not."""
        out: list[c.Command] = []
        for i in range(self.terms.servers):
            out += self.hear(e.ServerWrote(name("ps", i), cut, "" if error else f"f{i}", error))
        return out

    def publish(self, error: str = "") -> list[c.Command]:
        """The shell writes the manifest that it was last asked for."""
        asked = of(c.PublishCheckpoint, self.all)[-1]
        directory = "" if error else f"/c/version-{asked.position.version}"
        return self.hear(e.CheckpointPublished(asked.cut, directory, error))

    def save(self, **counters: int) -> list[c.Command]:
        """The cut that is under way, from the barrier to the manifest; with the counters of all open shards."""
        cut = self.job.servers.cuts.active
        assert cut is not None
        shards = {f"train/0/{'abcdefgh'.index(k)}": n for k, n in counters.items()}
        mine = {s.id: max(s.next_batch, shards.get(s.id, 0)) for s in self.job.shards.open_training()}
        out: list[c.Command] = []
        for i in range(self.terms.servers):
            out += self.hear(e.ServerHeld(name("ps", i), cut.number, tuple(mine.items())))
        return out + self.freeze(cut.number) + self.write(cut.number) + self.publish()

    def train_out(self) -> None:
        for _ in range(1000):
            lease = next((s for s in self.job.shards.leased.values() if s.kind == "train"), None)
            if lease is None:
                return
            self.commit(lease.id, lease.next_batch + 1)
        raise AssertionError("training does not end")

    # What a master that comes back does.

    def replayed(self) -> ParameterServerMachine:
        job = ParameterServerMachine.new(self.terms)
        for kind, body, at in self.journal:
            job.handle(e.decode(kind, body), at)
        return job


def of(kind: type[c.Command], commands: list[c.Command]) -> list[Any]:
    return [x for x in commands if isinstance(x, kind)]

"""Seeded storms over worlds: many more, and longer, than hypothesis has time for; a seed tells the same story again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from elasticdl.core import events as e
from elasticdl.core.checkpoints import Schedule
from elasticdl.core.replicas import CRASHED, PREEMPTED
from elasticdl.strategies.allreduce.core.membership import Membership
from tests.core.worlds import Worlds

SCHEDULES = (Schedule(), Schedule(seconds=5.0), Schedule(steps=3), Schedule(steps=4, seconds=3.0, keep=1))
# What happens, and how often: most of the time things go their way.
ORDINARY = {"turn": 30, "act": 30, "exchange": 12, "news": 8, "launch": 8, "connect": 8, "publish": 6, "wait": 6}
FAULTS = {
    "kill": 3, "terminate": 2, "break stream": 4, "break world": 2, "hang": 1, "find hung": 2, "reap": 4,
    "scale": 1, "silence": 1, "restart master": 1, "master dies acting": 1, "commit late": 2, "kill all": 1,
}  # fmt: skip
# Streams and worlds break, and workers rarely die: what is held where is the question.
WIND = {"break stream": 12, "break world": 8, "commit late": 6, "connect": 10, "kill": 2, "terminate": 2, "scale": 2}
SILENCE = {"break stream": 12, "silence": 6, "connect": 4}  # for longer than a worker goes on without the master
# A leaving worker may be the last one.
LAST = {"terminate": 8, "kill": 8, "break world": 4, "break stream": 2, "scale": 1}
LEAVERS = {"terminate": 8, "kill": 2, "scale": 2}


class Storm:
    def __init__(
        self, seed: int, membership: Callable[..., Membership] = Membership, faults: dict[str, int] | None = None,
        other: float = 0.05, worlds: Callable[..., Worlds] = Worlds, share: int = 0,
    ) -> None:  # fmt: skip
        r = self.random = Random(seed)
        workers = r.randint(1, 3)
        self.other = other if r.random() < 0.5 else 0.0  # how many machines have another arithmetic
        self.worlds = worlds(
            workers, 1 if self.other else r.randint(1, workers), r.randint(0, 1), r.choice([8, 40, 120]),
            r.choice(SCHEDULES), membership, deterministic=r.random() < 0.8, share=share,
        )  # fmt: skip
        fierce = r.choice([0.3, 1.0, 2.0])
        kinds = {k: n * fierce for k, n in (faults or FAULTS).items() if r.random() < 0.7 or faults}
        self.kinds = {**ORDINARY, **kinds}
        self.length = r.randint(40, 160)

    def run(self) -> Worlds:
        names, weights = list(self.kinds), list(self.kinds.values())
        for turn in range(self.random.randint(0, 8)):
            self.worlds.calm_turn(turn)
        for kind in self.random.choices(names, weights, k=self.length):
            if self.worlds.job.outcome:
                break
            self.happen(kind)
        self.worlds.settle()
        assert self.worlds.replayed() == self.worlds.job
        return self.worlds

    def happen(self, kind: str) -> None:
        worlds, r = self.worlds, self.random
        alive = [n for n, w in worlds.workers.items() if w.alive]
        name = r.choice(alive) if alive else ""
        match kind:
            case "turn":
                for n in alive:
                    worlds.deliver(n)
                    worlds.act(n)
            case "exchange":
                every = r.random() < 0.7
                worlds.exchange(lambda: every or r.random() < 0.5, lambda: r.random() < 0.5)
            case "news":
                worlds.tell_news()
            case "launch":
                worlds.launch("gpu" if r.random() < self.other else "cpu")
            case "publish":
                worlds.publish(r.choice(["", "", "", "disk full"]), damaged=r.random() < 0.2)
            case "wait":
                worlds.wait(r.choice([0.1, 0.5, 2.0, 4.0]))
            case "silence":
                worlds.wait(r.choice([12.0, 25.0]))
            case "scale":
                worlds.hear(e.ScaleRequested("worker", r.randint(1, 4)))
            case "restart master":
                worlds.restart_master()
            case "kill all":
                for n in alive:
                    worlds.kill(n)
            case "reap":
                worlds.reap()
            case "find hung":
                for n in [n for n in alive if worlds.workers[n].hung]:
                    worlds.find_hung(n)
            case _ if name:
                self.happen_to(name, kind)

    def happen_to(self, name: str, kind: str) -> None:
        worlds, r = self.worlds, self.random
        match kind:
            case "act":
                for _ in range(r.randint(1, 4)):
                    worlds.deliver(name)
                    worlds.act(name)
            case "connect":
                worlds.connect(name)
            case "kill":
                worlds.kill(name, r.choice([PREEMPTED, CRASHED]))
                if r.random() < 0.5:
                    worlds.notice(name)
            case "terminate":
                worlds.terminate(name)
            case "break stream":
                worlds.break_stream(name)
                if r.random() < 0.6:
                    worlds.notice(name)
            case "break world":
                worlds.break_world(name, (r.choice(list(worlds.workers)),))
            case "hang":
                worlds.hang(name)
            case "commit late":
                worlds.commit_late(name)
            case "master dies acting":
                if worlds.workers[name].outbox:
                    worlds.deliver(name, dies=True)

"""The servers of a job as a whole: how many there are, the cut under way, what is written of it, and which leave.

Another number of servers begins with a cut that every server writes and that stays held. The rows of partitions that
change hands are then read from it; those that stay are in memory already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from elasticdl.core.checkpoints import Checkpoints, Schedule
from elasticdl.core.commands import Announce, Command, CutServers, DeleteCheckpoints, FinishJob, ReleaseServers
from elasticdl.core.replicas import PREEMPTED, Replicas
from elasticdl.job.names import replica_name
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.parameter_servers.core.cuts import SAVE, Cuts, Phase

MOST_SERVERS = 1024  # as many as there are partitions of rows


@dataclass
class Servers:
    job: str
    names: tuple[str, ...]  # those that hold the model now
    wanted: int
    cuts: Cuts
    checkpoints: Checkpoints
    stopping: str = ""  # why a stop was requested
    leaving: set[str] = field(default_factory=set)  # received SIGTERM: they wait for their part to be saved

    @classmethod
    def new(cls, job: str, count: int, schedule: Schedule) -> Self:
        names = server_names(job, count)
        return cls(job, names, count, Cuts(names), Checkpoints(names, schedule))

    # Questions.

    def there(self, replicas: Replicas) -> list[str]:
        """Those that hold the model and are in touch."""
        return [r.name for r in replicas.joined("ps") if r.name in self.names]

    def ready(self, replicas: Replicas) -> bool:
        return self.checkpoints.ready and _all_joined(self.names, replicas)

    def ready_to_resize(self, replicas: Replicas) -> bool:
        return self.resizing and _all_joined(server_names(self.job, self.wanted), replicas)

    def parting(self, replicas: Replicas) -> bool:
        """Whether leaving servers still wait for their part to be saved."""
        return any(r.name in self.leaving for r in replicas.joined("ps"))

    @property
    def resizing(self) -> bool:
        return self.wanted != len(self.names)

    def ending(self, replicas: Replicas) -> bool:
        """Whether the next cut is the last thing that these servers do together."""
        return bool(self.stopping or self.leaving) or self.ready_to_resize(replicas)

    def writes(self, cut: int) -> bool:
        return self.checkpoints.writing is not None and self.checkpoints.writing.cut == cut

    @property
    def holding_on(self) -> bool:
        """What is being written is the last that these servers do: nothing moves any more."""
        return self.checkpoints.writing is not None and self.checkpoints.writing.held

    @property
    def frozen(self) -> bool:
        """No batch can be applied, whatever workers do."""
        cut = self.cuts.active
        return self.holding_on or (cut is not None and cut.phase is Phase.CUTTING)

    # Streams.

    def back(self, server: str) -> list[Command]:
        """A server's stream is back: where the cut stands, and what it has to write."""
        writing = self.checkpoints.writing
        if writing is None:
            return self.cuts.joined(server)
        again: list[Command] = [CutServers(writing.cut, SAVE, server)] if server not in writing.files else []
        return again if self.holding_on else [*self.cuts.joined(server), *again]

    def leave(self, server: str) -> list[Command]:
        if server in self.leaving:
            return []
        self.leaving.add(server)
        return [Announce(f"{server} received SIGTERM; saving its part first")]

    # Saving.

    def wrote(self, server: str, number: int, part: str, error: str, replicas: Replicas, now: float) -> list[Command]:
        cut = self.cuts.active
        if cut is not None and cut.number == number:  # it has written before the last server froze
            cut.early[server] = (part, error)
            return []
        if error:
            return self.not_saved(number, f"{server}: {error}", replicas, now)
        return self.checkpoints.wrote(server, number, part)

    def published(self, number: int, directory: str) -> list[Command]:
        if not self.writes(number):  # a rollback came in between
            known = any(k.directory == directory for k in self.checkpoints.known)
            return [] if known else [DeleteCheckpoints((directory,))]
        checkpoint, out = self.checkpoints.published(directory)
        return [*out, Announce(f"Saved the checkpoint of version {checkpoint.position.version} in {directory}")]

    def not_saved(self, number: int, error: str, replicas: Replicas, now: float) -> list[Command]:
        if not self.writes(number):
            return []
        held = self.holding_on
        if self.stopping and held:
            return [FinishJob(Outcome.FAILED, f"the checkpoint could not be written: {error}")]
        out = self.checkpoints.give_up()
        kept = self.checkpoints.newest
        out.append(Announce(f"Cannot write the checkpoint ({error}); training continues, and {kept} stays the newest"))
        if self.resizing and held:
            out.append(Announce(f"Keeping {len(self.names)} servers"))
            out += self.stay(replicas, now)
        return out + ([ReleaseServers(number), *self._dismiss("received SIGTERM", replicas, now)] if held else [])

    def end_hold(self, number: int, replicas: Replicas, now: float) -> list[Command]:
        """What these servers were held for is on disk."""
        if self.stopping:
            version = self.checkpoints.newest.position.version
            return [FinishJob(Outcome.STOPPED, f"{self.stopping}; the checkpoint holds version {version}")]
        release: list[Command] = [] if self.leaving else [ReleaseServers(number)]  # the request was withdrawn
        return release + self._dismiss("received SIGTERM; its part is saved", replicas, now)

    def _dismiss(self, reason: str, replicas: Replicas, now: float) -> list[Command]:
        """Replace the leaving servers."""
        out: list[Command] = []
        for name in sorted(self.leaving & {r.name for r in replicas.joined("ps")}):
            replicas.replace(name, PREEMPTED, reason, now, out)
        return out

    # Another number of them.

    def refused(self, count: int) -> str:
        """Why there cannot be so many; empty when there can."""
        if count > MOST_SERVERS:
            return f"rows are spread over {MOST_SERVERS} partitions, so there can be at most {MOST_SERVERS} servers"
        return ""

    def scale(self, count: int, replicas: Replicas, now: float) -> list[Command]:
        self.wanted = count
        told = Announce(f"Scaling from {len(self.names)} to {count} servers")
        # Those that are too many go when the others hold their rows.
        return [told, *replicas.resize("ps", max(count, len(self.names)), now)]

    def stay(self, replicas: Replicas, now: float) -> list[Command]:
        """As many as there are."""
        self.wanted = len(self.names)
        return replicas.resize("ps", self.wanted, now)

    def resize(self, replicas: Replicas) -> None:
        """The cut that all servers wrote is where the new ones begin: rows that stay are not moved."""
        for slot in replicas.slots:
            slot.on_trial = False
        self.names = self.cuts.servers = self.checkpoints.servers = server_names(self.job, self.wanted)

    # Going back.

    def go_back(self, replicas: Replicas) -> list[Command]:
        """All begin at the newest checkpoint."""
        self.cuts.active = None
        self.leaving &= {r.name for r in replicas.joined("ps")}
        return self.checkpoints.restore(self.there(replicas))


def server_names(job: str, count: int) -> tuple[str, ...]:
    return tuple(replica_name(job, "ps", i) for i in range(count))


def _all_joined(servers: Iterable[str], replicas: Replicas) -> bool:
    return set(servers) <= {r.name for r in replicas.joined("ps")}

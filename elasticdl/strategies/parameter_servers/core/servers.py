"""What happens to a job's servers: they are cut and saved, lost and restored, told to go, made more or fewer."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.core.commands import (
    Announce,
    Command,
    CutServers,
    DeleteCheckpoints,
    FinishJob,
    ReleaseServers,
    RevokeLease,
    TellMembers,
)
from elasticdl.core.machine import NOWHERE, Recovery
from elasticdl.core.replicas import PREEMPTED
from elasticdl.core.shards import ShardsAdded
from elasticdl.job.outcome import Outcome
from elasticdl.strategies.parameter_servers.core.cuts import SAVE, VIEW, Cut, Phase
from elasticdl.strategies.parameter_servers.core.state import JobState


@dataclass
class JobOfServers(JobState):
    """Everything that is decided about the servers as a whole."""

    # Streams.

    def _tell_of_cuts(self, server: str) -> list[Command]:
        """A server's stream is back: where the cut stands, and what it has to write."""
        writing = self.checkpoints.writing
        if writing is None:
            return self.cuts.joined(server)
        again: list[Command] = [CutServers(writing.cut, SAVE, server)] if server not in writing.files else []
        return again if self._holding_on else [*self.cuts.joined(server), *again]

    def _go_on(self, now: float) -> list[Command]:
        """Once every server stands on this timeline there is work again."""
        if not self.servers_ready or not self.shards.paused:
            return []
        self.shards.paused = False
        self.checkpoints.started(now)
        return [TellMembers(), *self.shards.resume(now)]

    # Cuts and checkpoints.

    def _wanted_cut(self, now: float) -> tuple[str, int, bool] | None:
        """Which cut comes next, at which version: the nearest of all that are due."""
        version, over = self.shards.version, self.shards.trained_out
        if self._ending:
            return (SAVE, 0, bool(self.stopping)) if self.checkpoints.writing is None else None
        wanted: list[tuple[str, int, bool]] = []
        at = self.evaluation.wanted_at(version, self.terms.plan.total_versions, over)
        if at is not None:
            wanted.append((VIEW, at, False))
        saved = self.checkpoints.wanted(version, self.terms.plan.total_versions, now)
        if saved is not None and not over:
            wanted.append((SAVE, *saved))
        return min(wanted, key=lambda w: max(w[1], version), default=None)

    def _cut_done(self, cut: Cut, now: float) -> list[Command]:
        position = self.shards.position(cut.counters)
        self.shards.rest(now)
        out: list[Command] = []
        if cut.purpose == VIEW:
            out.append(ReleaseServers(cut.number))
            opened = self.evaluation.opened(cut.number, position.version)
            return out + self.shards.handle(ShardsAdded(opened), now)
        if self.stopping and position.version == 0:
            return [FinishJob(Outcome.STOPPED, f"{self.stopping}; nothing was trained yet")]
        self.checkpoints.begin(cut.number, position, cut.lasting, self._ending, now)
        out += [] if self._holding_on else [ReleaseServers(cut.number)]
        for server, (part, error) in cut.early.items():
            out += self._wrote(server, cut.number, part, error, now)
        return out

    def _published(self, number: int, directory: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != number:  # a rollback came in between
            known = any(k.directory == directory for k in self.checkpoints.known)
            return [] if known else [DeleteCheckpoints((directory,))]
        checkpoint, out = self.checkpoints.published(directory)
        self.checkpoint, version = directory, checkpoint.position.version
        out.append(Announce(f"the checkpoint of version {version} is in {directory}"))
        if writing.held and self.stopping:
            return [*out, FinishJob(Outcome.STOPPED, f"{self.stopping}; the checkpoint holds version {version}")]
        if writing.held and self._ready_to_resize:
            return out + self._resize(now)
        if writing.held and not self.servers_leaving:  # somebody changed their mind
            out.append(ReleaseServers(number))
        return out + (self._dismiss("told to go; its part is saved", now) if writing.held else [])

    def _dismiss(self, reason: str, now: float) -> list[Command]:
        """Servers that were told to go, go; others take their place."""
        out: list[Command] = []
        for name in sorted(self.servers_leaving & {r.name for r in self.replicas.joined("ps")}):
            self.replicas.replace(name, PREEMPTED, reason, now, out)
        return out

    def _wrote(self, server: str, number: int, part: str, error: str, now: float) -> list[Command]:
        cut = self.cuts.active
        if cut is not None and cut.number == number:  # it has written before the last server froze
            cut.early[server] = (part, error)
            return []
        if error:
            return self._not_saved(server, number, error, now)
        return self.checkpoints.wrote(server, number, part)

    def _not_saved(self, server: str, number: int, error: str, now: float) -> list[Command]:
        writing = self.checkpoints.writing
        if writing is None or writing.cut != number:
            return []
        who = f"{server}: " if server else ""
        if self.stopping and writing.held:
            return [FinishJob(Outcome.FAILED, f"the checkpoint could not be written: {who}{error}")]
        out = self.checkpoints.give_up()
        kept = self.checkpoints.newest
        out.append(Announce(f"the checkpoint could not be written ({who}{error}); training goes on, {kept} stays"))
        if self.scaling.resizing and writing.held:
            out.append(Announce(f"there stay {len(self.scaling.servers)} servers"))
            out += self._stay(now)
        return out + ([ReleaseServers(number), *self._dismiss("told to go", now)] if writing.held else [])

    def _stop(self, reason: str) -> list[Command]:
        if self.stopping:
            return []
        self.stopping, self.shards.draining = reason, True
        if self.terms.schedule.nowhere:
            return [FinishJob(Outcome.STOPPED, f"{reason}; {NOWHERE}")]
        if self.shards.paused:
            newest = self.checkpoints.newest
            if not newest.directory:
                lost = "what was trained is lost with a server" if self.rollbacks else "nothing was trained yet"
                return [FinishJob(Outcome.STOPPED, f"{reason}; {lost}")]
            self.checkpoint = newest.directory
            return [FinishJob(Outcome.STOPPED, f"{reason}; the checkpoint holds version {newest.position.version}")]
        out: list[Command] = [Announce(f"stopping: {reason}; the servers write a checkpoint first")]
        cut = self.cuts.active
        if cut is not None and cut.purpose == VIEW and cut.phase is not Phase.CUTTING:
            out += self.cuts.cancel()
        return out

    # Another number of replicas.

    def _scale(self, role: str, count: int, now: float) -> list[Command]:
        refused = self.refused(role, count)
        if refused or self.stopping:
            return [Announce(f"not scaled to {count} of {role}: {refused or 'the job is stopping'}")]
        if role == "worker":
            return [Announce(f"scaling to {count} workers"), *self.replicas.resize("worker", count, now)]
        self.scaling.wanted = count
        out: list[Command] = [Announce(f"scaling from {len(self.scaling.servers)} servers to {count}")]
        # Those that are too many go when the others hold their rows.
        return out + self.replicas.resize("ps", max(count, len(self.scaling.servers)), now)

    def _resize(self, now: float) -> list[Command]:
        """The cut that all servers wrote is where the new ones begin: rows that stay are not moved."""
        before, after = len(self.scaling.servers), self.scaling.next_servers()
        for s in self.replicas.slots:
            s.on_trial = False
        self.scaling.servers = self.cuts.servers = self.checkpoints.servers = after
        out = self._roll_back(f"there are {len(after)} servers instead of {before}", now)
        return out + self.replicas.resize("ps", len(after), now)

    def _not_to_be_had(self, now: float) -> list[Command]:
        """A replica that was asked for while the job runs fails again and again: go on without."""
        out: list[Command] = []
        while self.replicas.not_to_be_had:
            lost = self.replicas.not_to_be_had.pop(0)
            out.append(Announce(f"{lost}; the job goes on without it"))
            if self.replicas.role_of(lost.name) == "ps":
                out += self._stay(now)
        return out

    def _stay(self, now: float) -> list[Command]:
        self.scaling.wanted = len(self.scaling.servers)
        return self.replicas.resize("ps", self.scaling.wanted, now)

    # Going back.

    def _roll_back(self, why: str, now: float, server: str = "") -> list[Command]:
        """A server and what it held are lost, or another number begins: all go back to the newest checkpoint."""
        reached = self.shards.version
        to = self.checkpoints.roll_back()
        out: list[Command] = []
        for s in self.shards.leased.values():
            out.append(RevokeLease(s.worker, s.id, s.attempt, why))
        self.cuts.active = None
        self.shards.go_back(to.position)
        self.shards.paused = True
        self.evaluation.go_back(to.position.version)
        self.exporting = self.auditing = False
        self.exported = self.audited = ""
        self.rolled_back = now
        self.repeated += max(0, reached - to.position.version)
        self.servers_leaving &= {r.name for r in self.replicas.joined("ps")}
        if server:
            self.recoveries.append(Recovery(server, now, [], server=True))
            self.rollbacks += 1
        told = f"{why}; everybody goes back from version {reached} to {to} and trains on from there"
        if reached <= to.position.version:  # nothing is lost
            told = f"{why}; everybody goes on from {to}"
        out += [Announce(told), TellMembers()]
        return out + self.checkpoints.restore(
            r.name for r in self.replicas.joined("ps") if r.name in self.scaling.servers
        )

    def _restored(self, server: str, timeline: int, error: str, now: float) -> list[Command]:
        if timeline != self.checkpoints.timeline:
            return []
        if not error:
            self.checkpoints.restored.add(server)
            return self._go_on(now)
        damaged = self.checkpoints.newest
        if self.checkpoints.damaged() is None:
            return [FinishJob(Outcome.FAILED, f"{server} cannot go back to {damaged}: {error}")]
        out: list[Command] = [Announce(f"the checkpoint of {damaged} cannot be used: {error}")]
        return out + self._roll_back(f"{server} cannot read it", now, server)

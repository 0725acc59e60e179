"""How many replicas of each role there should be, when somebody asks for another number while the job runs."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.job.names import replica_name

MOST_SERVERS = 1024  # as many as there are partitions of rows


@dataclass
class Scaling:
    """The servers that hold the model now, and how many there should be.

    Another number of servers begins with a cut that every server writes and that stays held. The rows of partitions
    that change hands are then read from it; those that stay are in memory already.
    """

    job: str
    servers: tuple[str, ...]
    wanted: int

    @property
    def resizing(self) -> bool:
        return self.wanted != len(self.servers)

    def next_servers(self) -> tuple[str, ...]:
        return server_names(self.job, self.wanted)

    def refused(self, role: str, count: int) -> str:
        """Why there cannot be so many; empty when there can."""
        if role not in ("ps", "worker"):
            return f"there is no role {role} to scale"
        if count < 1:
            return f"a job needs at least one {role}"
        if role == "ps" and count > MOST_SERVERS:
            return f"rows are spread over {MOST_SERVERS} partitions, so there can be no more servers than that"
        return ""


def server_names(job: str, count: int) -> tuple[str, ...]:
    return tuple(replica_name(job, "ps", i) for i in range(count))

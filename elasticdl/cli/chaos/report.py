"""The outcome of the faults: counted, judged and printed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from elasticdl.cli.chaos.schedule import ROLES, Kind
from elasticdl.cli.summary import show_end, status_of
from elasticdl.cli.view import duration
from elasticdl.job.outcome import Outcome

NOT_AUDITED = "not requested; start the job with --audit"


@dataclass(frozen=True)
class Delivery:
    """One fault as it happened."""

    number: int
    at: float  # seconds since 1970
    records_done: int
    replica: str  # its short name; empty when there was none to hit
    role: str
    kind: str
    detail: str  # of a cut: the connection; of a pause: how long
    not_delivered: str = ""  # why


@dataclass
class Report:
    """The outcome of one job under one schedule."""

    job: str
    seed: int
    deliveries: list[Delivery] = field(default_factory=list)
    outcome: str = ""
    reason: str = ""
    audit: str = ""
    losses: int = 0
    rollbacks: int = 0
    repeated_batches: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    master_starts: int = 0
    records_done: int = 0
    elapsed_seconds: float = 0.0
    orphans: list[str] = field(default_factory=list)
    ports_open: list[int] = field(default_factory=list)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Take in how the job ended."""
        s = status_of(result)
        self.outcome = str(result.get("outcome", "died"))
        self.reason = str(result.get("reason", "" if result else "its launcher ended without a result"))
        self.audit = s.audit
        self.losses, self.repeated_batches = s.losses, s.repeated_batches
        self.rollbacks = s.rollbacks
        self.recovery_seconds = [round(seconds, 3) for seconds in s.recovery_seconds]
        self.master_starts, self.records_done = s.master_starts, s.records_done
        self.elapsed_seconds = float(result.get("elapsed_seconds", 0.0))

    @property
    def passed(self) -> bool:
        """A wrong audit fails the job by itself."""
        return self.outcome == Outcome.SUCCEEDED and not self.orphans and not self.ports_open

    def delivered(self) -> dict[str, dict[str, int]]:
        """How many faults of each kind hit each role."""
        counts = Counter((d.role, d.kind) for d in self.deliveries if not d.not_delivered)
        return {role: {kind: counts[role, kind] for kind in Kind} for role in ROLES}

    def write(self, path: Path) -> None:
        about = {**asdict(self), "delivered": self.delivered(), "passed": self.passed}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about, indent=1) + "\n")

    def rows(self) -> list[tuple[str, str]]:
        """The report as (label, text)."""
        counted = self.delivered()
        missed = [d for d in self.deliveries if d.not_delivered]
        found = [("faults", f"{len(self.deliveries) - len(missed)} delivered (seed {self.seed})")]
        for role in ROLES:
            kinds = [f"{count} {kind}" for kind, count in counted[role].items() if count]
            if kinds:
                found.append((f"  {role}", ", ".join(kinds)))
        reasons = Counter(d.not_delivered for d in missed)
        found += [("  not delivered", f"{count}: {why}") for why, count in reasons.items()]
        found.append(("replicas lost and replaced", str(self.losses)))
        found.append(("master restarted", str(max(0, self.master_starts - 1))))
        found.append(("rollbacks", f"{self.rollbacks}, {self.repeated_batches:,} batches trained again"))
        if self.recovery_seconds:
            median, most = statistics.median(self.recovery_seconds), max(self.recovery_seconds)
            found.append(("recovery", f"median {median:.2f} s, longest {most:.2f} s"))
        found.append(("audit", self.audit or NOT_AUDITED))
        found.append(("processes left over", ", ".join(self.orphans) or "none"))
        found.append(("ports left open", ", ".join(map(str, self.ports_open)) or "none"))
        return [*found, ("time", duration(self.elapsed_seconds))]

    def show(self, console: Console) -> None:
        show_end(console, self.job, self.outcome, self.reason, self.rows())

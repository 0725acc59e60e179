"""What comes once everything is trained and evaluated: one worker audits the job, one writes the model."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.core.commands import Announce
from elasticdl.core.plan import Kind, Shard


@dataclass
class Closing:
    audit: bool
    export: bool
    auditing: bool = False
    audited: str = ""  # what the audit found
    exporting: bool = False
    exported: str = ""  # where the model was written

    @property
    def over(self) -> bool:
        return bool(self.audited or not self.audit) and bool(self.exported or not self.export)

    def next(self, version: int) -> tuple[Shard, ...]:
        """What is to be handed out now; nothing while the step before is under way."""
        if self.audit and not self.audited:
            begun, self.auditing = self.auditing, True
            return () if begun else (Shard(Kind.AUDIT, 0, 0, 0, 0, 1),)
        if self.export and not self.exported:
            begun, self.exporting = self.exporting, True
            return () if begun else (Shard(Kind.EXPORT, 0, 0, 0, 0, 1, payload=str(version)),)
        return ()

    def finished(self, kind: Kind, result: str) -> Announce:
        if kind is Kind.AUDIT:
            self.audited = result
            return Announce(f"Audit: {result}")
        self.exported = result
        return Announce(f"Exported the model to {result}")

    def go_back(self) -> None:
        """Servers are lost: both begin anew."""
        self.auditing = self.exporting = False
        self.audited = self.exported = ""

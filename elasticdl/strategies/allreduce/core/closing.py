"""What comes once everything is trained and evaluated: one worker writes the model and reports the audit."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.core.commands import Announce, Command, ExportModel, FinishJob
from elasticdl.core.events import ModelExported
from elasticdl.job.outcome import Outcome


@dataclass
class Closing:
    exporter: str = ""  # the worker that was asked to write the model
    exports: int = 0  # how often one was asked
    exported: str = ""
    audited: str = ""
    over: bool = False

    def ask(self, worker: str) -> list[Command]:
        self.exporter, self.exports = worker, self.exports + 1
        return [ExportModel(worker, self.exports)]

    def again(self, worker: str) -> list[Command]:
        """Its stream is back."""
        return [ExportModel(worker, self.exports)] if self.exporter == worker and not self.over else []

    def forget(self, worker: str) -> None:
        if self.exporter == worker:
            self.exporter = ""

    def answered(self, event: ModelExported) -> list[Command]:
        """Only the answer to the last request counts: earlier ones were replaced, and their answers may come late."""
        if self.over or event.worker != self.exporter or event.number not in (0, self.exports):
            return []
        if event.error:
            return [FinishJob(Outcome.FAILED, f"{event.worker} cannot write the model: {event.error}")]
        self.over, self.exported, self.audited = True, event.directory, event.audit
        out: list[Command] = [Announce(f"Audit: {event.audit}")] if event.audit else []
        return [*out, Announce(f"Exported the model to {event.directory}")] if event.directory else out

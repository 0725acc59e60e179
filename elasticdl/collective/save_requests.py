"""The master's requests to write checkpoints and the export, and a worker's answers to them, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.wire import control_pb2 as pb


@dataclass
class SaveRequests:
    saves: dict[int, pb.Save] = field(default_factory=dict)  # requested and not begun
    unsettled: set[int] = field(default_factory=set)  # begun, and not yet published or dropped by the master
    wrote: dict[int, pb.Wrote] = field(default_factory=dict)  # answers that the master has not settled
    export: pb.Export | None = None
    exported: pb.Exported | None = None

    def save_requested(self, save: pb.Save) -> list[pb.FromReplica]:
        if save.cut in self.wrote:
            return [pb.FromReplica(wrote=self.wrote[save.cut])]
        if save.cut not in self.unsettled:  # a second writer would use the same folder
            self.saves[save.cut] = save
        return []

    def settled(self, cut: int) -> None:
        self.saves.pop(cut, None)
        self.wrote.pop(cut, None)
        self.unsettled.discard(cut)

    def export_requested(self, export: pb.Export) -> list[pb.FromReplica]:
        if self.exported is not None and _answers(self.exported, export):
            return [pb.FromReplica(exported=self.exported)]
        self.export = export
        return []

    def due(self, step: int) -> pb.Save | None:
        """The checkpoint to write now."""
        return next((save for save in self.saves.values() if save.at <= step), None)

    def begin(self, step: int) -> pb.Save | None:
        """The same; the caller writes it and answers with `saved`."""
        save = self.due(step)
        if save is not None:
            del self.saves[save.cut]
            self.unsettled.add(save.cut)
        return save

    def saved(self, cut: int, part: str, error: str = "") -> list[pb.FromReplica]:
        self.wrote[cut] = pb.Wrote(cut=cut, part=part, error=error)
        return [pb.FromReplica(wrote=self.wrote[cut])]

    def export_done(self, request: pb.Export, error: str = "", audit: str = "") -> list[pb.FromReplica]:
        self.exported = pb.Exported(directory=request.directory, error=error, audit=audit, number=request.number)
        if self.export is not None and _answers(self.exported, self.export):  # no newer request came meanwhile
            self.export = None
        return [pb.FromReplica(exported=self.exported)]


def _answers(exported: pb.Exported, request: pb.Export) -> bool:
    return (exported.directory, exported.number) == (request.directory, request.number)

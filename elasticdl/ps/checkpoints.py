"""A server's side of checkpoints: the part that it writes, and the checkpoint that it begins from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticdl import faults, files
from elasticdl.ps import snapshot
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.saving import Chain, Saving
from elasticdl.wire import control_pb2 as pb


class Checkpoints:
    """Belongs to the thread that owns the parameters."""

    def __init__(self, index: int, seed: int, ring: Callable[[], None]) -> None:
        self.index, self.seed, self._ring = index, seed, ring
        self._chain = Chain()
        self._saving: Saving | None = None
        self._reported = False
        self._last = ("", 0)  # the last checkpoint that has a part of this server, and the version it holds
        self._begin_from: tuple[Path, list[list[files.File]]] | None = None

    # Writing.

    def save(self, parameters: Parameters, freeze: pb.Freeze, version: int) -> None:
        """Freeze the present values and write them; for a repeated request, report the part again."""
        if self._saving is None or self._saving.cut != freeze.cut:
            self.give_up()
            faults.point("server.before_freeze")
            self._saving = Saving(parameters, freeze.cut, version, Path(freeze.directory), self._chain, self._ring)
        self._reported = False

    def feed(self) -> bool:
        """Pass one more piece to the writer; returns whether the next one may follow at once."""
        return self._saving is not None and self._saving.feed()

    def written(self) -> pb.Wrote | None:
        """The report to the master, once the part is on disk or has failed."""
        saving = self._saving
        if saving is None or not saving.finished or self._reported:
            return None
        self._reported = True
        return pb.Wrote(cut=saving.cut, part="" if saving.error else saving.part(), error=saving.error)

    def settle(self, settle: pb.Settle) -> None:
        saving = self._saving
        if saving is None or saving.cut != settle.cut:
            return
        self._saving = None
        saving.settle(settle.published)
        if settle.published:
            self._chain = Chain(Path(settle.directory), saving.files)
            self._last = (settle.directory, saving.version)

    def give_up(self) -> None:
        if self._saving is not None:
            self._saving.settle(False)
            self._saving = None

    # Beginning.

    def begin(self, restore: pb.Restore, servers: int, held: Parameters | None, version: int) -> Parameters | None:
        """Check the checkpoint to begin from; raises DataError. Returns the parameters if `held` still has them. Else
        `fill` reads them, once a worker has declared the model."""
        self.give_up()
        self._chain, self._begin_from = Chain(), None
        if not restore.directory:
            return None
        directory = Path(restore.directory)
        parts = snapshot.needed(snapshot.read_manifest(directory), self.index, servers)
        if self._last != (restore.directory, restore.version) or version != restore.version:
            held = None
        if held is not None and held.servers == servers:
            self._chain = self._own_chain(directory, parts, servers)
            held.forget_views()
            return held
        files.verify(directory, [f for p in parts for f in p])
        faults.point("server.restoring")
        if held is not None:
            return snapshot.resized(held, servers, directory, parts, self.seed)
        self._begin_from = directory, parts
        return None

    def fill(self, parameters: Parameters) -> bool:
        """Read the values from the checkpoint to begin from; False where there is none."""
        if self._begin_from is None:
            return False
        snapshot.restore(parameters, *self._begin_from)
        for store in parameters.stores:  # what was read has not changed since
            store.release(store.mark())
        self._chain = self._own_chain(*self._begin_from, parameters.servers)
        return True

    def _own_chain(self, directory: Path, parts: list[list[files.File]], servers: int) -> Chain:
        """The files that the next part adds to: none, where another number of servers wrote the checkpoint."""
        own = len(parts) == 1 and parts[0][-1]["name"].startswith(f"ps-{self.index}-of-{servers}.")
        return Chain(directory, parts[0]) if own else Chain()

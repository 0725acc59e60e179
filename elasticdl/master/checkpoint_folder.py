"""The folder of a job's checkpoints: one appears at once or not at all, and goes at once."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elasticdl.core.commands import PublishCheckpoint
from elasticdl.files import MANIFEST, fsync_directory, write_durably


@dataclass(frozen=True)
class CheckpointFolder:
    path: str
    job: str

    def partial(self, cut: int | str) -> str:
        """Where replicas write their parts of a cut: a checkpoint only once the master has renamed it."""
        return f"{self.path}/{self.job}.cut-{cut}.partial"

    def publish(
        self,
        command: PublishCheckpoint,
        manifest: Mapping[str, Any],
        files: Mapping[str, int] = MappingProxyType({}),  # that must be there, with their sizes
        open_cuts: Collection[int] = (),  # what is written of them stays
    ) -> str:
        """Make a checkpoint of a cut whose parts are all on disk: write the manifest and give the folder its name."""
        home, partial = Path(self.path), Path(self.partial(command.cut))
        final = home / f"version-{command.position.version}"
        if not partial.exists() and _cut_of(final) == command.cut:
            return str(final)  # the master before this one came so far
        for name, size in files.items():
            if (partial / name).stat().st_size != size:
                raise OSError(errno.EIO, f"does not have the {size} bytes that were written", str(partial / name))
        write_durably(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        old = _set_aside(final) if final.exists() else None  # of an older timeline, or a stop without a step
        partial.rename(final)
        fsync_directory(home)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        for left in self._partials():  # of cuts that were given up
            number = int(left.name.removesuffix(".partial").rsplit("-", 1)[1])
            if number < command.cut and number not in open_cuts:
                shutil.rmtree(left, ignore_errors=True)
        return str(final)

    def delete(self, directories: tuple[str, ...]) -> None:
        """Remove checkpoints that the job never goes back to; what cannot be removed stays."""
        for directory in directories:
            with contextlib.suppress(OSError):
                shutil.rmtree(_set_aside(Path(directory)), ignore_errors=True)

    def sweep(self) -> None:
        """The job is over: remove what was written of checkpoints that were never complete."""
        for left in self._partials():
            shutil.rmtree(left, ignore_errors=True)

    def _partials(self) -> list[Path]:
        return list(Path(self.path).glob(f"{self.job}.cut-*.partial"))


def _set_aside(directory: Path) -> Path:
    """From one moment to the next it is no checkpoint any more; its files have yet to go."""
    gone = directory.with_name(directory.name + ".gone")
    shutil.rmtree(gone, ignore_errors=True)
    return directory.rename(gone)


def _cut_of(directory: Path) -> int | None:
    """Which cut a checkpoint was made of, if there is one."""
    try:
        return int(json.loads((directory / MANIFEST).read_bytes())["cut"])
    except (OSError, ValueError, KeyError):
        return None

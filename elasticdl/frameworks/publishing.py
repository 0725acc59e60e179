"""Several processes may write files to one directory; readers only ever see the files of one of them together.

An exporter that was considered hung may still run while its successor writes. Each has its own folder, and changes the
directory only by renaming something out of that folder or into it. A process that starts removes the folders of earlier
ones, so whatever those do next fails. The master's numbers decide which is earlier; without a master, the start does.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from elasticdl import faults
from elasticdl.errors import DataError
from elasticdl.files import fsync_directory, write_durably

PARTIAL = ".partial"  # holds the folders of the writers, and the last turn that was published
_TURN = "turn"
_WITHDRAWN = ".withdrawn"
_REPLACED = ".replaced-"


@dataclass(frozen=True)
class Turn:
    """The number of a request to export. In one run of a job the latest request counts, even if it runs first."""

    run: int
    number: int

    @classmethod
    def read(cls, text: str) -> Self | None:
        run, _, number = text.partition(".")
        return cls(int(run), int(number)) if run.isdigit() and number.isdigit() else None

    def __str__(self) -> str:
        return f"{self.run}.{self.number}"


@contextmanager
def published(directory: Path, last: str, turn: Turn | None = None) -> Iterator[Path]:
    """A folder to write to. Its contents, which must be on disk, are then moved to `directory`, the file `last` last.

    Without the file `last` nothing is published. Other files in `directory` stay; a folder is replaced as a whole.
    """
    folder = _begin(directory / PARTIAL, turn)
    try:
        if _overtaken(folder):  # before it writes much: the other one needs the space
            raise _too_late(directory)
        yield folder
        if _overtaken(folder):
            raise _too_late(directory)
        names = sorted(path.name for path in folder.iterdir() if path.name != PARTIAL)
        with suppress(FileNotFoundError):  # or the folder is missing: then there is nothing to move
            (directory / last).rename(folder / _WITHDRAWN)
        for name in names:
            if name != last:
                _move(folder, name, directory)
        if turn is not None:  # kept, since an earlier request may arrive at any time
            write_durably(folder / _TURN, str(turn).encode())
            (folder / _TURN).replace(folder.parent / _TURN)
            fsync_directory(folder.parent)
        fsync_directory(directory)
        faults.point("worker.before_manifest")
        (folder / last).replace(directory / last)
        fsync_directory(directory)
    except Exception as error:  # whatever a library raises for a missing folder
        if folder.exists():
            raise
        raise _too_late(directory) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another process writes, or has published
            folder.parent.rmdir()


def _begin(home: Path, turn: Turn | None) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    place = 1 + max((_order(path)[0] for path in _inside(home)), default=0)
    number = f"-{turn}" if turn is not None else ""
    folder = home / f"{place}{number}-{uuid.uuid4().hex}"  # no name is used twice
    folder.mkdir(parents=True)
    for other in _inside(home):
        if _before(other, folder):
            _take_away(other, folder)
    return folder


def _overtaken(folder: Path) -> bool:
    """Whether the files of another process count now. Checks folders first: a process that ends has stored its turn."""
    if any(_before(folder, other) for other in _inside(folder.parent)):
        return True
    mine = _turn_of(folder)
    try:
        done = Turn.read((folder.parent / _TURN).read_text())
    except FileNotFoundError:
        return False
    return mine is not None and done is not None and done.run == mine.run and done.number > mine.number


def _inside(home: Path) -> list[Path]:
    try:
        return [path for path in home.iterdir() if path.name != _TURN]
    except FileNotFoundError:  # the last process to end has removed it
        return []


def _move(folder: Path, name: str, directory: Path) -> None:
    """Replace a file or folder. A folder cannot be renamed over another one, so that is moved away first."""
    source, target = folder / name, directory / name
    if source.is_dir() or (target.is_dir() and not target.is_symlink()):
        with suppress(FileNotFoundError):
            target.rename(folder / f"{_REPLACED}{name}")
    source.replace(target)


def _take_away(other: Path, folder: Path) -> None:
    """Rename first: a process that still writes to the folder could add files during the deletion."""
    taken = folder / f".taken-{other.name}"
    with suppress(FileNotFoundError):  # that process has ended
        other.rename(taken)
        shutil.rmtree(taken) if taken.is_dir() else taken.unlink()


def _before(one: Path, other: Path) -> bool:
    """Whether `one` is earlier, so that the files of `other` count."""
    mine, its = _turn_of(one), _turn_of(other)
    if mine is not None and its is not None and mine.run == its.run and mine.number != its.number:
        return mine.number < its.number
    return _order(one) < _order(other)


def _order(path: Path) -> tuple[int, str]:
    place = path.name.partition("-")[0]
    return (int(place) if place.isdigit() else 0, path.name)


def _turn_of(path: Path) -> Turn | None:
    parts = path.name.split("-")
    return Turn.read(parts[1]) if len(parts) > 2 else None


def _too_late(directory: Path) -> DataError:
    what = "another process has started a newer export to this directory, and its files count"
    return DataError(str(directory), what, "You need not do anything.")

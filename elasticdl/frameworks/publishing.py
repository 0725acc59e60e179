"""Files that several processes may come to write to one directory, of which only one's are ever seen together.

An exporter that was put down as hung may still run while its successor writes. Each has a folder of its own, and all
that it does to the directory is to rename something out of that folder or into it. Who begins takes the folders of
those before it away: whatever they do from then on fails. Who is before whom the master says, where there is one; else
it is the order in which they began.
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

PARTIAL = ".partial"  # holds the folders of those who write, and whose turn it was last
_TURN = "turn"
_WITHDRAWN = ".withdrawn"
_REPLACED = ".replaced-"


@dataclass(frozen=True)
class Turn:
    """Which request to export is carried out: of one run of a job, what was asked for last counts, whoever is late."""

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
    """A folder to write to; then what is in it, which is to be on disk, is moved to `directory`, the file `last` last.

    Without the file `last` nothing is published. Other files in `directory` are left alone; a folder is replaced whole.
    """
    folder = _begin(directory / PARTIAL, turn)
    try:
        if _overtaken(folder):  # what it would write may be much, and the other needs the room
            raise _too_late(directory)
        yield folder
        if _overtaken(folder):
            raise _too_late(directory)
        names = sorted(path.name for path in folder.iterdir() if path.name != PARTIAL)
        with suppress(FileNotFoundError):  # or the folder is: then there is nothing to move either
            (directory / last).rename(folder / _WITHDRAWN)
        for name in names:
            if name != last:
                _move(folder, name, directory)
        if turn is not None:  # known for good: who was asked before it may come at any time
            write_durably(folder / _TURN, str(turn).encode())
            (folder / _TURN).replace(folder.parent / _TURN)
            fsync_directory(folder.parent)
        fsync_directory(directory)
        faults.point("worker.before_manifest")
        (folder / last).replace(directory / last)
        fsync_directory(directory)
    except Exception as error:  # whatever a library makes of a folder that is gone
        if folder.exists():
            raise
        raise _too_late(directory) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # somebody else writes, or has had a turn
            folder.parent.rmdir()


def _begin(home: Path, turn: Turn | None) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    place = 1 + max((_order(path)[0] for path in _inside(home)), default=0)
    whose = f"-{turn}" if turn is not None else ""
    folder = home / f"{place}{whose}-{uuid.uuid4().hex}"  # never the same name again
    folder.mkdir(parents=True)
    for other in _inside(home):
        if _before(other, folder):
            _take_away(other, folder)
    return folder


def _overtaken(folder: Path) -> bool:
    """Whether somebody else's files count by now. The folders first: who ends meanwhile has left its turn by then."""
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
    except FileNotFoundError:  # who ended last has taken it away
        return []


def _move(folder: Path, name: str, directory: Path) -> None:
    """A folder takes nothing's place but by its being moved away before."""
    source, target = folder / name, directory / name
    if source.is_dir() or (target.is_dir() and not target.is_symlink()):
        with suppress(FileNotFoundError):
            target.rename(folder / f"{_REPLACED}{name}")
    source.replace(target)


def _take_away(other: Path, folder: Path) -> None:
    """At once: who still writes to it would put new files beside those that are being deleted."""
    taken = folder / f".taken-{other.name}"
    with suppress(FileNotFoundError):  # it has ended meanwhile
        other.rename(taken)
        shutil.rmtree(taken) if taken.is_dir() else taken.unlink()


def _before(one: Path, other: Path) -> bool:
    """Whether what the other one writes counts, and not what this one does."""
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
    what = "another process has begun to write the model since, and its files count"
    return DataError(str(directory), what, "There is nothing to do about this one.")

"""Files that several processes may come to write to one directory, of which only one's are ever seen together.

An exporter that was put down as hung may still run while its successor writes. Each has a folder of its own, in the
order in which they began, and all that it does to the directory is to rename something out of that folder or into it.
Who begins takes the folders of those before it away: whatever they do from then on fails.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elasticdl import faults
from elasticdl.errors import DataError
from elasticdl.files import fsync_directory

PARTIAL = ".partial"  # holds the folders of those who write
_WITHDRAWN = ".withdrawn"


@contextmanager
def published(directory: Path, last: str) -> Iterator[Path]:
    """A folder to write to; then its files, which are to be on disk, are moved into `directory`, the file `last` last.

    Without the file `last` nothing is published. Other files in `directory` are left alone.
    """
    folder = _begin(directory / PARTIAL)
    try:
        yield folder
        if any(_order(other) > _order(folder) for other in _inside(folder.parent)):
            raise _too_late(directory)
        names = sorted(path.name for path in folder.iterdir())
        with suppress(FileNotFoundError):  # or the folder is: then there is nothing to move either
            (directory / last).rename(folder / _WITHDRAWN)
        for name in names:
            if name != last:
                (folder / name).replace(directory / name)
        fsync_directory(directory)
        faults.point("worker.before_manifest")
        (folder / last).replace(directory / last)
        fsync_directory(directory)
    except OSError as error:
        if folder.exists():
            raise
        raise _too_late(directory) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # somebody else writes
            folder.parent.rmdir()


def _begin(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    number = 1 + max((_order(path)[0] for path in _inside(home)), default=0)
    folder = home / f"{number}-{uuid.uuid4().hex}"  # never the same name again
    folder.mkdir(parents=True)
    for other in _inside(home):
        if _order(other) < _order(folder):
            _take_away(other, folder)
    return folder


def _inside(home: Path) -> list[Path]:
    try:
        return list(home.iterdir())
    except FileNotFoundError:  # who ended last has taken it away
        return []


def _take_away(other: Path, folder: Path) -> None:
    """At once: who still writes to it would put new files beside those that are being deleted."""
    taken = folder / f".taken-{other.name}"
    with suppress(FileNotFoundError):  # it has ended meanwhile
        other.rename(taken)
        shutil.rmtree(taken) if taken.is_dir() else taken.unlink()


def _order(path: Path) -> tuple[int, str]:
    number = path.name.partition("-")[0]
    return (int(number) if number.isdigit() else 0, path.name)


def _too_late(directory: Path) -> DataError:
    what = "another process has begun to write the model since, and its files count"
    return DataError(str(directory), what, "There is nothing to do about this one.")

"""Output that is complete or invisible: files and folders get their name once they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from elasticdl.errors import DataError, Problem, UsageError


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # readers skip names with a leading dot


class RecordWriter:
    """Base of the writers: a file under a temporary name, which `with` completes, or discards when the block fails."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.records = Path(path), 0
        self._temporary = _temporary(self.path)
        self._file = self._temporary.open("xb")

    def write(self, record: Any) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """Writes the records that are still in memory."""

    def close(self) -> None:
        """Completes the file and gives it its name; a file without records would look like a truncated one."""
        if self._file.closed:
            return
        if not self.records:
            self.discard()
            raise DataError(str(self.path), "no record was written to it", "Give it at least one record.")
        self._finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Removes the file; nothing appears under its name."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class OutputFolder:
    """A folder under a temporary name until it is complete; `with` gives the path to write into."""

    def __init__(self, path: Path, force: bool = False) -> None:
        self._path, self._temporary = path, _temporary(path)
        self._replaces = path.is_dir() and any(path.iterdir())
        if path.exists() and not path.is_dir():
            raise _refused(path, "it is a file, not a directory", "Choose another name.")
        if self._replaces and not force:
            raise _refused(path, "it exists and is not empty", "Use --force to replace it, or choose another name.")
        foreign = [entry.name for entry in path.iterdir() if not _replaceable(entry)] if self._replaces else []
        if foreign:
            what = f"it holds more than data files ({', '.join(sorted(foreign)[:3])}), which --force would remove"
            raise _refused(path, what, "Choose another name, or empty it yourself.")

    def __enter__(self) -> Path:
        try:
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise _refused(self._path, f"it cannot be written ({error.strerror})", "Choose another place.") from error
        return self._temporary

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            shutil.rmtree(self._temporary)
            return
        if not self._replaces:
            self._temporary.replace(self._path)
            return
        aside = _temporary(self._path)
        self._path.replace(aside)
        self._temporary.replace(self._path)
        shutil.rmtree(aside)


def _replaceable(entry: Path) -> bool:
    known = {".recordio", ".tfrecord", ".csv", ".parquet"}
    return not entry.is_dir() and (entry.suffix in known or entry.name.startswith("_"))


def _refused(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError([Problem("DST", str(path), what, remedy)])

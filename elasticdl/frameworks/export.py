"""Exported models are complete or invisible: the manifest is written last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.files import fsync_directory
from elasticdl.frameworks.arrays import FloatArray
from elasticdl.frameworks.publishing import PARTIAL, Turn, published
from elasticdl.frameworks.tensor_files import Tensor, write_rows, write_sharded
from elasticdl.frameworks.trainable import TableExport
from elasticdl.job.parameters import TableSpec

MANIFEST = "manifest.json"
FORMAT = "elasticdl-export/1"
SHARD_BYTES = 2 << 30  # of values in one file: every file system and object store takes such files
_PAGE = 65_536  # rows per request


class Target:
    """The files of one export while they are written, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []
        self.tables: dict[str, dict[str, Any]] = {}  # where the rows of each table are

    def path(self, name: str) -> Path:
        """Where to write the file `name`."""
        self.names.append(name)
        return self.folder / name

    def tensors(self, arrays: Mapping[str, npt.NDArray[Any]], tables: Sequence[Weights] = ()) -> bool:
        """Write `model.safetensors`, or shards and their index; returns whether there are shards.

        Rows of tables are written as they arrive from the servers.
        """
        found = [Tensor.of(name, array) for name, array in arrays.items()]
        found += [weights.tensor() for weights in tables]
        self.tables |= {w.table.name: {"dim": w.table.dim, "tensor": w.name} for w in tables}
        self.names += (files := write_sharded(self.folder, "model", found, SHARD_BYTES))
        return len(files) > 1

    def table(self, table: TableSpec, rows: TableExport) -> None:
        """Write a table without a known number of ids: ids and rows, in the order of the servers."""
        meta = {"table": table.name}
        base = table_file(table)
        self.tables[table.name] = {"dim": table.dim, "files": base}
        self.names += write_rows(self.folder, base, table.dim, rows.chunks(table.name), SHARD_BYTES, meta)

    def readme(self, text: str) -> None:
        self.path("README.md").write_text(text)


@dataclass(frozen=True)
class Weights:
    """A table with a known number of ids as the weight matrix of a plain layer.

    Ids that were never trained have their initial row. The padding row is zeros; it is on no server.
    """

    name: str  # of the matrix
    table: TableSpec
    rows: TableExport
    zero_row: int | None = None

    def tensor(self) -> Tensor:
        return Tensor(self.name, np.dtype(np.float32), (self.table.input_dim or 0, self.table.dim), self._pages)

    def array(self) -> FloatArray:
        """The whole matrix."""
        found = np.empty((self.table.input_dim or 0, self.table.dim), np.float32)
        start = 0
        for page in self._pages(0, len(found)):
            found[start : start + len(page)] = page
            start += len(page)
        return found

    def _pages(self, start: int, stop: int) -> Iterator[FloatArray]:
        for first in range(start, stop, _PAGE):
            last = min(first + _PAGE, stop)
            page = self.rows.rows(self.table.name, np.arange(first, last, dtype=np.int64))
            if self.zero_row is not None and first <= self.zero_row < last:
                page = page.copy()
                page[self.zero_row - first] = 0.0
            yield page


def table_file(table: TableSpec) -> str:
    """The name of a table's file or files, without number and suffix."""
    return table.name.replace("/", ".")


@contextmanager
def into(directory: Path, framework: str, reference: Mapping[str, Any]) -> Iterator[Target]:
    """Write to a hidden folder, then move the files to `directory`, the manifest last.

    A directory without a manifest is not an export: the next process overwrites what a killed one left there, and a
    process that was considered dead cannot change it. Other files in `directory` stay.
    """
    with published(directory, MANIFEST) as partial:
        target = Target(partial)
        yield target
        described = {"framework": framework, **reference, "tables": target.tables}
        target.path("model.json").write_text(json.dumps(described, indent=2) + "\n")
        manifest = {
            "format": FORMAT,
            "framework": framework,
            "files": {name: _fingerprint(partial / name) for name in target.names},
        }
        target.path(MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        _sync_file(partial / MANIFEST)


@contextmanager
def whole(directory: Path, turn: Turn | None = None) -> Iterator[Path]:
    """A folder for an exporter of any kind, which need not know manifests.

    Its files and folders are moved to `directory` when they are on disk, the manifest last.
    """
    with published(directory, MANIFEST, turn) as partial:
        yield partial
        inside = sorted(path for path in partial.rglob("*") if path.relative_to(partial).parts[0] != PARTIAL)
        files = {path.relative_to(partial).as_posix(): path for path in inside if path.is_file()}
        if MANIFEST not in files:
            described = {name: _fingerprint(path) for name, path in files.items()}
            files[MANIFEST] = partial / MANIFEST
            files[MANIFEST].write_text(json.dumps({"format": FORMAT, "files": described}, indent=2) + "\n")
        for path in files.values():
            _sync_file(path)
        for folder in [path for path in inside if path.is_dir() and not path.is_symlink()]:
            fsync_directory(folder)


def _fingerprint(path: Path) -> dict[str, Any]:
    _sync_file(path)
    with path.open("rb") as f:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(f, "sha256").hexdigest()}


def _sync_file(path: Path) -> None:
    with path.open("rb") as f:
        os.fsync(f.fileno())

"""Writing an exported model so that it is complete or invisible: files first, the manifest last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from elasticdl import faults
from elasticdl.frameworks.trainable import FloatArray, TableExport
from elasticdl.job.parameters import TableSpec

MANIFEST = "manifest.json"
_PAGE = 65_536  # rows asked for at a time


class Target:
    """The files of one export, while they are written to a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def path(self, name: str) -> Path:
        """Where to write the file `name`."""
        self.names.append(name)
        return self.folder / name

    def tensors(self, name: str, tensors: Mapping[str, npt.NDArray[Any]], **metadata: str) -> None:
        path = self.path(name)
        save_file({k: np.asarray(v, order="C") for k, v in tensors.items()}, path, metadata=metadata or None)
        path.chmod(0o666 & ~_umask())  # the library makes files that only their owner reads

    def table(self, table: TableSpec, rows: TableExport) -> None:
        """A table with no known number of ids: its ids, in rising order, and their rows."""
        ids = rows.ids(table.name)
        self.tensors(table_file(table), {"ids": ids, "rows": _paged(table, rows, ids)}, table=table.name)

    def readme(self, text: str) -> None:
        self.path("README.md").write_text(text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def table_file(table: TableSpec) -> str:
    return f"{table.name.replace('/', '.')}.safetensors"


def all_rows(table: TableSpec, rows: TableExport) -> FloatArray:
    """Every row of a table with a known number of ids; ids never trained have their initial row."""
    return _paged(table, rows, np.arange(table.input_dim or 0, dtype=np.int64))


def _paged(table: TableSpec, rows: TableExport, ids: npt.NDArray[np.int64]) -> FloatArray:
    found = np.empty((len(ids), table.dim), np.float32)
    for start in range(0, len(ids), _PAGE):
        found[start : start + _PAGE] = rows.rows(table.name, ids[start : start + _PAGE])
    return found


@contextmanager
def into(directory: Path, framework: str, reference: Mapping[str, Any]) -> Iterator[Target]:
    """Write into a hidden folder, then move the files into `directory`, the manifest last.

    A directory without manifest is no export: what a killed process left there is written over by the next one.
    Other files in `directory` are left alone.
    """
    partial = directory / ".partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    target = Target(partial)
    yield target
    target.path("model.json").write_text(json.dumps({"framework": framework, **reference}, indent=2) + "\n")
    manifest = {
        "format": "elasticdl-export/1",
        "framework": framework,
        "files": {name: _fingerprint(partial / name) for name in target.names},
    }
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in target.names:
        (partial / name).replace(directory / name)
    _sync_folder(directory)
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    _sync_file(partial / MANIFEST)
    faults.point("worker.before_manifest")
    (partial / MANIFEST).replace(directory / MANIFEST)
    partial.rmdir()
    _sync_folder(directory)
    target.names.append(MANIFEST)


def _fingerprint(path: Path) -> dict[str, Any]:
    _sync_file(path)
    with path.open("rb") as f:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(f, "sha256").hexdigest()}


def _sync_file(path: Path) -> None:
    with path.open("rb") as f:
        os.fsync(f.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

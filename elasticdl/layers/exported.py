"""ElasticDL's embedding layers outside a job, with the rows of an exported model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import DataError, ModelError
from elasticdl.frameworks.arrays import FloatArray, IdArray
from elasticdl.frameworks.rows import answered_by, check_range, without
from elasticdl.frameworks.tensor_files import Array, open_all
from elasticdl.frameworks.trainable import RowSource
from elasticdl.job.parameters import TableSpec


@contextmanager
def rows_from(directory: str | Path, model: Any = None) -> Iterator[None]:
    """Inside, ElasticDL's embedding layers read rows from the model exported to this directory.

    Pass a torch model, since torch layers do not know their names in it. Rows stay on disk and are read on demand. An
    id without a row reads as zeros.
    """
    torch_layers: Any = sys.modules.get("elasticdl.layers.torch")
    if model is not None and torch_layers is not None:
        for name, layer in model.named_modules():
            if isinstance(layer, torch_layers.Embedding):
                layer.bind(layer.table(name))
    with answered_by(_FileLookup(FileRows(Path(directory)))):
        yield


class FileRows:
    """A row source on the files of an exported model."""

    def __init__(self, directory: Path) -> None:
        described = directory / "model.json"
        if not described.exists():
            raise DataError(str(directory), "it has no model.json", "Use the directory of an exported model.")
        self._directory = directory
        self._described: dict[str, dict[str, Any]] = json.loads(described.read_text()).get("tables", {})
        self._tables: dict[str, _Table] = {}

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        if table not in self._tables:
            self._tables[table] = self._open(table)
        return self._tables[table].rows(ids)

    def _open(self, table: str) -> _Table:
        if table not in self._described:
            known = ", ".join(self._described) or "none"
            remedy = f"It has {known}: give the layer the name that it had in the job."
            raise DataError(str(self._directory), f"this exported model has no table {table!r}", remedy)
        entry = self._described[table]
        if "tensor" in entry:
            name = entry["tensor"]
            parts = {
                int(key.partition("@")[2] or 0): values
                for key, values in open_all(self._directory, "model").items()
                if key.partition("@")[0] == name
            }
            return _Table(entry["dim"], [parts[first] for first in sorted(parts)], None)
        found = open_all(self._directory, entry["files"])
        numbers = sorted(key.removeprefix("ids") for key in found if key.startswith("ids"))
        return _Table(entry["dim"], [found[f"rows{n}"] for n in numbers], [found[f"ids{n}"] for n in numbers])


class _Table:
    """Rows in one or more files, at the position of their id in `ids`; without `ids` the id is the position."""

    def __init__(self, dim: int, parts: list[Array], ids: list[Array] | None) -> None:
        self._dim, self._parts = dim, parts
        self._starts = np.cumsum([0, *(len(p) for p in parts)])
        self._ids: Array | None = None
        if ids is not None:
            together = np.concatenate(ids)
            self._order = np.argsort(together, kind="stable")
            self._ids = together[self._order]

    def rows(self, ids: IdArray) -> FloatArray:
        out = np.zeros((len(ids), self._dim), np.float32)
        if self._ids is None:
            known = (ids >= 0) & (ids < self._starts[-1])
            places = ids
        elif len(self._ids):
            near = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            known, places = self._ids[near] == ids, self._order[near]
        else:
            return out
        for start, part in zip(self._starts[:-1], self._parts, strict=True):
            mine = known & (places >= start) & (places < start + len(part))
            out[mine] = part[places[mine] - start]
        return out


class _FileLookup:
    """Gives layers of any framework their rows, outside compiled functions."""

    def __init__(self, source: RowSource) -> None:
        self._source = source

    def gather(self, table: TableSpec, ids: Any, padding: int | None = None) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(ids, torch.Tensor):
            from elasticdl.frameworks.torch.rows import TorchLookup

            return TorchLookup(self._source, training=False).gather(table, ids, padding)
        import keras

        try:
            found = np.asarray(ids).astype(np.int64)
        except (TypeError, ValueError, NotImplementedError) as error:
            what = "a compiled function cannot read rows of an exported model"
            raise ModelError(f"layer {table.name!r}", what, "Call the model itself: model(features).") from error
        unique, inverse = np.unique(found, return_inverse=True)
        wanted, _ = without(padding, unique)
        check_range(table, wanted)
        rows = np.zeros((len(unique), table.dim), np.float32)
        rows[np.isin(unique, wanted)] = self._source.rows(table.name, wanted)
        return keras.ops.convert_to_tensor(rows[inverse.reshape(found.shape)])

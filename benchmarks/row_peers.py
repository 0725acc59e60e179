"""What the row store is measured against: a dict of numpy rows, gathers that know every slot, FBGEMM, torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benchmarks.row_tables import ACCUMULATOR, EPSILON, RATE, Floats, Ids
from elasticdl.ps import _native


class DictOfRows:
    """What a parameter server in plain Python does: one numpy array per id, made when it is first asked for."""

    def __init__(self, dim: int, order: Ids) -> None:
        self.rows: dict[int, Floats] = {}
        self.accumulators: dict[int, Floats] = {}
        self.row, self.accumulator = np.full(dim, 0.05, np.float32), np.full(dim, ACCUMULATOR, np.float32)
        for key in order.tolist():
            self._birth(key)

    def _birth(self, key: int) -> Floats:
        row = self.rows[key] = self.row.copy()
        self.accumulators[key] = self.accumulator.copy()
        return row

    def pull(self, ids: Ids, out: Floats) -> None:
        rows = self.rows
        for i, key in enumerate(ids.tolist()):
            row = rows.get(key)
            out[i] = row if row is not None else self._birth(key)

    def pull_stacked(self, ids: Ids) -> Floats:
        """The rows in a list, then one array of them: how Python servers, the old ElasticDL's among them, answer."""
        found = [(key, self.rows.get(key)) for key in ids.tolist()]
        return np.stack([row if row is not None else self._birth(key) for key, row in found])

    def push_unique(self, ids: Ids, grads: Floats) -> None:
        for i, key in enumerate(ids.tolist()):
            accumulator = self.accumulators[key]
            accumulator += grads[i] ** 2
            self.rows[key] -= RATE * grads[i] / np.sqrt(accumulator + EPSILON)


def known_slots(rows: int, dim: int, drawn: Sequence[Ids], out: Floats) -> dict[str, Callable[[int], object]]:
    """Gathers out of one flat array in which the id is the place of its row: no lookup, no births."""
    whole = np.full((rows, dim), 0.5, np.float32)
    tensor, result, places = torch.from_numpy(whole), torch.from_numpy(out), [torch.from_numpy(ids) for ids in drawn]
    return {
        "slots known, numpy.take": lambda n: np.take(whole, drawn[n], axis=0, out=out, mode="clip"),
        "slots known, torch.index_select": lambda n: torch.index_select(tensor, 0, places[n], out=result),
        "slots known, our own loop": lambda n: _native.gather_rows(drawn[n], out, whole),
    }


class Fbgemm:
    """FBGEMM's exact fused Adagrad on the CPU: bags of one id each; only the backward pass is timed."""

    name = "FBGEMM, exact fused Adagrad"

    def __init__(self, rows: int, dim: int, drawn: Sequence[Ids], grads: Floats) -> None:
        configs = import_module("fbgemm_gpu.split_embedding_configs")  # an optional peer
        tables = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        self.table: Any = tables.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, tables.EmbeddingLocation.HOST, tables.ComputeDevice.CPU)],
            optimizer=configs.EmbOptimType.EXACT_ADAGRAD, learning_rate=RATE, eps=EPSILON,
        )  # fmt: skip
        self.ids = [torch.from_numpy(ids) for ids in drawn]
        self.offsets = [torch.arange(len(ids) + 1) for ids in drawn]
        self.grads = torch.from_numpy(grads)
        self.ready: torch.Tensor | None = None

    def pull(self, batch: int) -> torch.Tensor:
        found: torch.Tensor = self.table(self.ids[batch], self.offsets[batch])
        return found

    def prepare(self, batch: int) -> None:
        self.ready = self.pull(batch)

    def push(self, batch: int) -> None:
        assert self.ready is not None
        self.ready.backward(self.grads[: len(self.ids[batch])])


class TorchSparse:
    """nn.EmbeddingBag with sparse gradients, then optim.Adagrad; backward and step are timed."""

    name = "torch, sparse EmbeddingBag + Adagrad"

    def __init__(self, rows: int, dim: int, drawn: Sequence[Ids], grads: Floats) -> None:
        self.bags = torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
        self.optimizer = torch.optim.Adagrad(self.bags.parameters(), lr=RATE)
        self.ids = [torch.from_numpy(ids) for ids in drawn]
        self.offsets = [torch.arange(len(ids)) for ids in drawn]
        self.grads = torch.from_numpy(grads)
        self.ready: torch.Tensor | None = None

    def prepare(self, batch: int) -> None:
        self.optimizer.zero_grad()
        self.ready = self.bags(self.ids[batch], self.offsets[batch])

    def push(self, batch: int) -> None:
        assert self.ready is not None
        self.ready.backward(self.grads[: len(self.ids[batch])])
        self.optimizer.step()

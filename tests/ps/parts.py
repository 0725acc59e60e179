"""A server's part of a checkpoint, written and read without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from elasticdl.files import File
from elasticdl.ps import snapshot
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.saving import Chain, Saving
from tests.ps.servers import SEED

State = tuple[list[dict[int, bytes]], bytes, bytes, bytes]


def write(
    parameters: Parameters, directory: Path, chain: Chain | None = None, cut: int = 1,
    meanwhile: Callable[[], None] = lambda: None,
) -> Saving:  # fmt: skip
    """Freeze and write; `meanwhile` is what happens between two pieces. Not settled yet."""
    rung = threading.Event()
    saving = Saving(parameters, cut, 0, directory, chain or Chain(), rung.set)
    while not saving.finished:
        meanwhile()
        if not saving.feed():
            assert rung.wait(10), "the writer neither takes nor ends"
            rung.clear()
    return saving


def save(parameters: Parameters, directory: Path, chain: Chain | None = None) -> Chain:
    """Write, and make it what the next one builds on."""
    saving = write(parameters, directory, chain)
    assert not saving.error, saving.error
    saving.settle(True)
    return Chain(directory, saving.files)


def read(parameters: Parameters, directory: Path, *parts: list[File]) -> Parameters:
    """A fresh server like this one, filled from these parts."""
    fresh = Parameters(parameters.spec, parameters.index, parameters.servers, SEED)
    snapshot.restore(fresh, directory, list(parts))
    return fresh


def state(parameters: Parameters) -> State:
    """All there is, slots and ages too, in a form that can be compared."""
    tables = []
    for store in parameters.stores:
        ids, rows = store.export_rows(0, len(store))
        tables.append({i: r.tobytes() for i, r in zip(ids.tolist(), np.ascontiguousarray(rows), strict=True)})
    dense = (parameters.weights, parameters.slots, parameters.state)
    return tables, *(d.tobytes() for d in dense)  # type: ignore[return-value]

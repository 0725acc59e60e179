"""A checkpoint on disk: its manifest, and how a server reads the parts that servers wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict

from elasticdl.errors import DataError
from elasticdl.files import REMEDY, File, read_validated
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps._native import RowStore
from elasticdl.ps.parameters import EXPORT_ROWS, Parameters
from elasticdl.ps.placement import gather_index, place, servers_of


class Manifest(TypedDict):
    """The files of a checkpoint, and its position in the data."""

    cut: int
    version: int
    files: dict[str, list[File]]  # server -> its files; later ones replace rows of earlier ones
    open: dict[str, tuple[int, int]]  # shard -> next batch, batches
    next: tuple[int, int]  # epoch and index of the next fresh shard
    done: dict[str, tuple[int, int]]  # epoch -> batches, records
    bad_records: list[tuple[int, str, str]]
    training_data: str  # fingerprint
    minibatch_size: int
    max_step: int
    num_minibatches_per_task: int
    round_batches: NotRequired[int]  # batches of a version; absent or 0: one
    seed: int
    shuffle: bool


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(directory: Path) -> Manifest:
    return read_validated(directory, _MANIFEST)


def needed(manifest: Manifest, index: int, servers: int) -> list[list[File]]:
    """The parts that a server must read: its own if the number of servers is the same, else all."""
    parts = list(manifest["files"].values())
    mine = [p for p in parts if p[-1]["name"].startswith(f"ps-{index}-of-{servers}.")]
    return mine if len(parts) == servers and mine else parts


def resized(held: Parameters, servers: int, directory: Path, parts: list[list[File]], seed: int) -> Parameters:
    """The parameters for another number of servers: keeps the rows that stay and reads only new ones."""
    held.forget_views()
    fresh = Parameters(held.spec, held.index, servers, seed, tables=held.tables)
    for store in fresh.stores:
        store.remove(np.concatenate([ids[servers_of(ids, servers) != held.index] for ids in _all_ids(store)]))
    restore(fresh, directory, parts, known=held.servers)
    return fresh


def _all_ids(store: RowStore) -> Iterator[npt.NDArray[np.int64]]:
    yield np.empty(0, np.int64)
    for start in range(0, len(store), EXPORT_ROWS):
        yield store.export_rows(start, EXPORT_ROWS)[0]


def restore(parameters: Parameters, directory: Path, parts: list[list[File]], known: int = 0) -> None:
    """Read the parts of a checkpoint that any number of servers wrote.

    `known`: so many servers wrote it, and the rows of this one are in memory.
    """
    trainable = tuple(v for v in parameters.spec.variables if v.trainable)
    state = tuple(v for v in parameters.spec.variables if not v.trainable)
    slots = parameters.optimizer.slots
    all_weights = np.zeros(sum(v.size for v in trainable), np.float32)
    all_slots = np.zeros((slots, len(all_weights)), np.float32)
    all_state = np.zeros(sum(v.size for v in state), np.float32)
    for part in parts:
        for file in part:
            with _part(directory / file["name"]) as saved:
                about = saved.metadata() or {}
                _compare(parameters.spec, ParametersSpec.model_validate_json(about["spec"]), directory)
                index, servers = int(about["index"]), int(about["servers"])
                if not (known == servers and index == parameters.index):
                    _restore_tables(parameters, saved, index, servers)
                if file is part[-1]:
                    where = gather_index(place(trainable, servers)[index])
                    all_weights[where] = saved.get_tensor("weights")
                    all_slots[:, where] = saved.get_tensor("slots").reshape(slots, len(where))
                    all_state[gather_index(place(state, servers)[index])] = saved.get_tensor("state")
    parameters.weights[:] = all_weights[parameters.trainable_index]
    parameters.slots[:] = all_slots[:, parameters.trainable_index].reshape(-1)
    parameters.state[:] = all_state[parameters.state_index]


def _restore_tables(parameters: Parameters, saved: Any, index: int, servers: int) -> None:
    names = set(saved.keys())
    same = (index, servers) == (parameters.index, parameters.servers)
    for number, store in enumerate(parameters.stores):
        removed = saved.get_tensor(f"table.{number}.removed")
        if len(removed):
            store.remove(removed)
        piece = 0
        while f"table.{number}.ids.{piece}" in names:
            ids, rows = (
                saved.get_tensor(f"table.{number}.ids.{piece}"),
                saved.get_tensor(f"table.{number}.rows.{piece}"),
            )
            if not same:
                mine = servers_of(ids, parameters.servers) == parameters.index
                ids, rows = ids[mine], np.ascontiguousarray(rows[mine])
            store.import_rows(ids, rows)
            piece += 1


@contextmanager
def _part(path: Path) -> Iterator[Any]:
    """One file of a checkpoint; errors name it."""
    try:
        with safe_open(str(path), framework="numpy") as saved:
            yield saved
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DataError(str(path), f"this part of the checkpoint cannot be read ({error})", REMEDY) from error


def _compare(now: ParametersSpec, then: ParametersSpec, directory: Path) -> None:
    """Raises if the model changed; its learning rate may."""
    if now.variables != then.variables:
        changed = sorted({v.name for v in set(now.variables) ^ set(then.variables)}) or ["their order"]
        raise DataError(str(directory), f"the model's variables changed since: {', '.join(changed)}", REMEDY)
    if now.tables != then.tables:
        changed = sorted({t.name for t in set(now.tables) ^ set(then.tables)}) or ["their order"]
        raise DataError(str(directory), f"the model's embedding tables changed since: {', '.join(changed)}", REMEDY)
    was, is_now = then.optimizer.keeps, now.optimizer.keeps  # what its slots mean
    if was != is_now:
        raise DataError(str(directory), f"the optimizer was {was} and is {is_now} now", REMEDY)

"""A server's part of a checkpoint on disk: safetensors, written under another name and renamed when complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict

from elasticdl.errors import DataError
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps.parameters import EXPORT_ROWS, Parameters
from elasticdl.ps.placement import gather_index, place, servers_of

MANIFEST = "manifest.json"
REMEDY = "Name another checkpoint, or start without --checkpoint_dir_for_init."


class Manifest(TypedDict):
    """What a checkpoint consists of, and where in the data it stands."""

    version: int
    files: dict[str, str]  # server -> file
    open: dict[str, tuple[int, int]]  # shard -> next batch, batches
    next: tuple[int, int]  # epoch and index of the next fresh shard
    done: dict[str, tuple[int, int]]  # epoch -> batches, records
    committed: dict[str, int]  # shard -> batches of it that are in `done`
    bad_records: list[tuple[int, str, str]]
    training_data: str  # fingerprint
    minibatch_size: int
    max_step: int
    num_minibatches_per_task: int
    seed: int
    shuffle: bool


_MANIFEST = TypeAdapter(Manifest)


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """A file that is complete or invisible: another name, fsync, rename, fsync of the directory."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as f:
        yield f
        f.flush()
        os.fsync(f.fileno())
    partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_durably(path: Path, data: bytes) -> None:
    with durable(path) as f:
        f.write(data)


def save_part(parameters: Parameters, directory: Path) -> str:
    """Write everything this server holds; the name of the file.

    safetensors, but written by hand: the library wants all tensors in memory, which for tables is as much again as
    the server already uses.
    """
    directory.mkdir(parents=True, exist_ok=True)
    dense = {"weights": parameters.weights, "slots": parameters.slots, "state": parameters.state}
    header: dict[str, Any] = {
        "__metadata__": {
            "spec": parameters.spec.model_dump_json(),
            "index": str(parameters.index),
            "servers": str(parameters.servers),
        }
    }
    end = 0

    def lay_out(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> int:
        nonlocal end
        start, end = end, end + nbytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        return start

    counts = [len(store) for store in parameters.tables]
    tables = zip(parameters.spec.tables, parameters.table_optimizers, strict=True)
    widths = [table.dim * (1 + optimizer.slots) for table, optimizer in tables]
    # 64-bit values first, so that everything stays aligned.
    ids_at = [lay_out(f"table.{i}.ids", "I64", (n,), 8 * n) for i, n in enumerate(counts)]
    rows_at = [
        lay_out(f"table.{i}.rows", "F32", (n, w), 4 * n * w)
        for i, (n, w) in enumerate(zip(counts, widths, strict=True))
    ]
    for name, values in dense.items():
        lay_out(name, "F32", values.shape, values.nbytes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    name = f"ps-{parameters.index}-of-{parameters.servers}.safetensors"
    with durable(directory / name) as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for i, store in enumerate(parameters.tables):
            for start in range(0, counts[i], EXPORT_ROWS):
                ids, rows = store.export_rows(start, EXPORT_ROWS)
                f.seek(begin + ids_at[i] + 8 * start)
                f.write(ids.data)
                f.seek(begin + rows_at[i] + 4 * start * widths[i])
                f.write(rows.data)
        f.seek(begin + header["weights"]["data_offsets"][0])
        for values in dense.values():
            f.write(values.data)
    return name


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint: without one there is none."""
    path = directory / MANIFEST
    try:
        return _MANIFEST.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(str(directory), f"there is no complete checkpoint ({MANIFEST} is missing)", REMEDY) from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise DataError(str(path), f"the manifest cannot be read ({wrong})", REMEDY) from error
    except OSError as error:
        raise DataError(str(path), f"the manifest cannot be read ({error.strerror or error})", REMEDY) from error


def restore(parameters: Parameters, directory: Path) -> None:
    """Fill a server from a checkpoint made by any number of servers."""
    files = sorted(read_manifest(directory)["files"].values())
    trainable = tuple(v for v in parameters.spec.variables if v.trainable)
    state = tuple(v for v in parameters.spec.variables if not v.trainable)
    slots = parameters.optimizer.slots
    all_weights = np.zeros(sum(v.size for v in trainable), np.float32)
    all_slots = np.zeros((slots, len(all_weights)), np.float32)
    all_state = np.zeros(sum(v.size for v in state), np.float32)
    seen = set()
    for name in files:
        with _part(directory / name) as saved:
            about = saved.metadata() or {}
            _compare(parameters.spec, ParametersSpec.model_validate_json(about["spec"]), directory)
            index, servers = int(about["index"]), int(about["servers"])
            if servers != len(files) or index in seen or not 0 <= index < servers:
                raise ValueError(f"it is part {index} of {servers}, and the manifest names {len(files)} files")
            seen.add(index)
            where = gather_index(place(trainable, servers)[index])
            all_weights[where] = saved.get_tensor("weights")
            all_slots[:, where] = saved.get_tensor("slots").reshape(slots, len(where))
            all_state[gather_index(place(state, servers)[index])] = saved.get_tensor("state")
            for number, store in enumerate(parameters.tables):
                ids, rows = saved.get_slice(f"table.{number}.ids"), saved.get_slice(f"table.{number}.rows")
                count = ids.get_shape()[0]
                for start in range(0, count, EXPORT_ROWS):
                    stop = min(start + EXPORT_ROWS, count)
                    some = ids[start:stop]
                    mine = servers_of(some, parameters.servers) == parameters.index
                    store.import_rows(some[mine], np.ascontiguousarray(rows[start:stop][mine]))
    parameters.weights[:] = all_weights[parameters.trainable_index]
    parameters.slots[:] = all_slots[:, parameters.trainable_index].reshape(-1)
    parameters.state[:] = all_state[parameters.state_index]


@contextmanager
def _part(path: Path) -> Iterator[Any]:
    """One file of a checkpoint; whatever is wrong with it names it."""
    try:
        with safe_open(str(path), framework="numpy") as saved:
            yield saved
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DataError(str(path), f"this part of the checkpoint cannot be read ({error})", REMEDY) from error


def _compare(now: ParametersSpec, then: ParametersSpec, directory: Path) -> None:
    """The model may not have changed; its learning rate may."""
    if now.variables != then.variables:
        changed = sorted({v.name for v in set(now.variables) ^ set(then.variables)}) or ["their order"]
        raise DataError(str(directory), f"the model's variables changed since: {', '.join(changed)}", REMEDY)
    if now.tables != then.tables:
        changed = sorted({t.name for t in set(now.tables) ^ set(then.tables)}) or ["their order"]
        raise DataError(str(directory), f"the model's embedding tables changed since: {', '.join(changed)}", REMEDY)
    was, is_now = _described(then), _described(now)
    if was != is_now:
        raise DataError(str(directory), f"the optimizer was {was} and is {is_now} now", REMEDY)


def _described(spec: ParametersSpec) -> str:
    """What the optimizer's slots mean."""
    optimizer = spec.optimizer
    if optimizer.kind == "sgd" and optimizer.momentum:
        return f"{optimizer.kind} with {optimizer.flavour} momentum"  # the libraries keep different sums
    return optimizer.kind

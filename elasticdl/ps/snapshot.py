"""A server's part of a checkpoint on disk: safetensors, written under another name and renamed when complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from elasticdl.errors import DataError
from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.placement import gather_index, place, servers_of

MANIFEST = "manifest.json"
REMEDY = "Name another checkpoint, or start without --checkpoint_dir_for_init."


def write_durably(path: Path, data: bytes) -> None:
    """Complete or invisible: another name, fsync, rename, fsync of the directory."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save_part(parameters: Parameters, directory: Path) -> str:
    """Write everything this server holds; the name of the file."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "weights": parameters.weights,
        "slots": parameters.slots,
        "state": parameters.state,
    }
    for number, store in enumerate(parameters.tables):
        ids, rows = store.export_rows(0, len(store))
        tensors[f"table.{number}.ids"], tensors[f"table.{number}.rows"] = ids, rows
    about = {
        "spec": parameters.spec.model_dump_json(),
        "index": str(parameters.index),
        "servers": str(parameters.servers),
    }
    name = f"ps-{parameters.index}-of-{parameters.servers}.safetensors"
    write_durably(directory / name, save(tensors, metadata=about))
    return name


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: without one there is none."""
    path = directory / MANIFEST
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(str(directory), f"there is no complete checkpoint ({MANIFEST} is missing)", REMEDY) from None
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"the manifest cannot be read ({error})", REMEDY) from error
    if not isinstance(found, dict):
        raise DataError(str(path), "the manifest is no JSON object", REMEDY)
    return found


def restore(parameters: Parameters, directory: Path) -> None:
    """Fill a server from a checkpoint made by any number of servers."""
    manifest = read_manifest(directory)
    files = sorted(manifest["files"].values())
    trainable = tuple(v for v in parameters.spec.variables if v.trainable)
    state = tuple(v for v in parameters.spec.variables if not v.trainable)
    slots = parameters.optimizer.slots
    all_weights = np.zeros(sum(v.size for v in trainable), np.float32)
    all_slots = np.zeros((slots, len(all_weights)), np.float32)
    all_state = np.zeros(sum(v.size for v in state), np.float32)
    for index, saved in enumerate(_parts(directory, files)):
        spec = ParametersSpec.model_validate_json(saved.metadata()["spec"])
        _compare(parameters.spec, spec, directory)
        where = gather_index(place(trainable, len(files))[index])
        all_weights[where] = saved.get_tensor("weights")
        all_slots[:, where] = saved.get_tensor("slots").reshape(slots, len(where))
        all_state[gather_index(place(state, len(files))[index])] = saved.get_tensor("state")
        for number, store in enumerate(parameters.tables):
            ids, rows = saved.get_tensor(f"table.{number}.ids"), saved.get_tensor(f"table.{number}.rows")
            mine = servers_of(ids, parameters.servers) == parameters.index
            store.import_rows(np.ascontiguousarray(ids[mine]), np.ascontiguousarray(rows[mine]))
    parameters.weights[:] = all_weights[parameters.trainable_index]
    parameters.slots[:] = all_slots[:, parameters.trainable_index].reshape(-1)
    parameters.state[:] = all_state[parameters.state_index]


def _parts(directory: Path, files: list[str]) -> Iterator[Any]:
    for name in files:
        try:
            with safe_open(str(directory / name), framework="numpy") as saved:
                yield saved
        except (OSError, ValueError) as error:
            what = f"this part of the checkpoint cannot be read ({error})"
            raise DataError(str(directory / name), what, REMEDY) from error


def _compare(now: ParametersSpec, then: ParametersSpec, directory: Path) -> None:
    """The model may not have changed; its learning rate may."""
    if now.variables != then.variables:
        changed = sorted({v.name for v in set(now.variables) ^ set(then.variables)})
        raise DataError(str(directory), f"the model's variables changed since: {', '.join(changed)}", REMEDY)
    if now.tables != then.tables:
        raise DataError(str(directory), "the model's embedding tables changed since", REMEDY)
    if (now.optimizer.kind, now.optimizer.slots) != (then.optimizer.kind, then.optimizer.slots):
        raise DataError(
            str(directory), f"the optimizer was {then.optimizer.kind} and is {now.optimizer.kind} now", REMEDY
        )

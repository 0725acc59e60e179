"""An exported PyTorch model: named tensors, and a README.md with code that loads them, which the tests run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elasticdl.frameworks import export
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.trainable import TableExport
from elasticdl.job.parameters import TableSpec


def export_model(
    model: Any, tables: tuple[TableSpec, ...], code: ModelFile, directory: Path, rows: TableExport
) -> list[str]:
    """Write a torch model as named tensors, with the rows of its tables; the names of the files."""
    tensors = {name: _as_array(tensor) for name, tensor in model.state_dict().items()}
    with export.into(directory, "torch", code.reference()) as target:
        weights = []
        for table in tables:
            if table.input_dim is None:
                target.table(table, rows)
                continue
            layer = model.get_submodule(table.name)
            weights.append(export.Weights(f"{table.name}.weight", table, rows, layer.zero_row))
        sharded = target.tensors(tensors, weights)
        target.readme(_readme(code, model, tables, sharded))
    return target.names


def _as_array(tensor: Any) -> Any:
    # numpy has no bfloat16 or float8; the values are exact in float32, and load_state_dict converts them back
    narrow = tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    return (tensor.float() if narrow else tensor).numpy(force=True)


def _readme(code: ModelFile, model: Any, tables: tuple[TableSpec, ...], sharded: bool) -> str:
    imported, made = code.making()
    plain = [(t.name, model.get_submodule(t.name).plain_code()) for t in tables if t.input_dim is not None]
    ours = [f"* `{name}`: {text}" for name, text in plain if text]
    open_ended = [t.name for t in tables if t.input_dim is None]
    load = _SHARDS if sharded else _FILE
    strict = ", strict=False" if ours else ""
    parts = ["# An exported PyTorch model", load.format(imported=imported, made=made, strict=strict)]
    if ours or open_ended:
        parts.append(_WITH)
    if open_ended:
        parts.append(_OPEN.format(names=", ".join(f"`{n}`" for n in open_ended)))
    if ours:
        also = "" if sharded else " and remove `strict=False`"
        parts.append(f"To load it without ElasticDL, replace its layers with these{also}:\n\n" + "\n".join(ours))
    return "\n\n".join(parts) + "\n"


_FILE = """\
    from safetensors.torch import load_file
    {imported}

    model = {made}
    model.load_state_dict(load_file("model.safetensors"){strict})
    model.eval()"""

_SHARDS = """\
The weights are in several files. A matrix larger than a file is cut into parts called `name@first_row`.

    import json

    from safetensors import safe_open
    {imported}

    model = {made}
    weights = model.state_dict()  # the model's own tensors: copying into them changes the model
    with open("model.safetensors.index.json") as f:
        index = json.load(f)
    for name, file in index["weight_map"].items():
        with safe_open(file, "pt") as shard:
            part = shard.get_tensor(name)
        whole, _, first = name.partition("@")
        if whole in weights:
            target = weights[whole][int(first) : int(first) + len(part)] if first else weights[whole]
            target.copy_(part)
    model.eval()"""

_WITH = """\
Read the rows of ElasticDL's layers from the files:

    from elasticdl.layers import rows_from

    with rows_from(".", model):
        predictions = model(features)"""

_OPEN = """\
{names}: files with `ids` (not sorted) and their `rows`. Several files have an index, and numbers after these names.
An id without a row reads as zeros."""

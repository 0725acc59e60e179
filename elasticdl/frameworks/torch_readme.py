"""The README.md of an exported PyTorch model: code that loads it, which the tests run."""

from __future__ import annotations

from typing import Any

from elasticdl.frameworks.model_file import ModelFile
from elasticdl.job.parameters import TableSpec


def readme(code: ModelFile, model: Any, tables: tuple[TableSpec, ...], sharded: bool) -> str:
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
        also = "" if sharded else ", and leave `strict=False` out"
        parts.append(
            f"To load it without ElasticDL, use these layers in place of elasticdl's{also}:\n\n" + "\n".join(ours)
        )
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
    weights = model.state_dict()  # these tensors are the model's own: what is copied into them is in the model
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
Rows of elasticdl's layers are read from the files:

    from elasticdl.layers import rows_from

    with rows_from(".", model):
        predictions = model(features)"""

_OPEN = """\
{names}: files of `ids`, in no order, and their `rows`; more than one file has an index, and numbers behind these names.
An id without a row is read as zeros."""

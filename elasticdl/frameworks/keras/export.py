"""An exported Keras model: plain layers that hold all rows, or named tensors if that is impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from elasticdl.frameworks import export
from elasticdl.frameworks.arrays import to_numpy
from elasticdl.frameworks.keras.moving import MovedEmbedding, plain_again
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import TableLayer, ZeroLookup, answered_by
from elasticdl.frameworks.trainable import TableExport
from elasticdl.job.parameters import TableSpec


def export_model(
    model: Any, tables: tuple[TableSpec, ...], code: ModelFile, directory: Path, rows: TableExport
) -> list[str]:
    """Write the model; the format depends on whether plain Keras layers can replace ElasticDL's layers.

    A model without ElasticDL's layers becomes `model.keras`; loading a subclassed model needs its class. A functional
    or Sequential model with ElasticDL's layers becomes `model.keras` too, if each layer has a plain form and the tables
    fit into one file. Other models become named tensors.
    """
    reference = code.reference()
    layers: dict[str, Any] = {layer.name: layer for layer in table_layers(model)}
    ours = [t for t in tables if not isinstance(layers[t.name], MovedEmbedding)]
    known_graph = isinstance(model, (keras.Sequential, keras.src.models.functional.Functional))
    with export.into(directory, f"keras-{keras.backend.backend()}", reference) as target:
        if not ours:
            with plain_again(model, rows):
                model.save(target.path("model.keras"))
            target.readme((_KERAS if known_graph else _SUBCLASS).format(name=type(model).__name__, **reference))
        elif known_graph and _has_plain(model, ours, layers):
            with plain_again(model, rows):
                _plain(model, ours, layers, rows).save(target.path("model.keras"))
            target.readme(_KERAS)
        else:
            _write_tensors(target, model, tables, layers, code, rows)
    return target.names


def table_layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, TableLayer)]


def _has_plain(model: Any, tables: list[TableSpec], layers: dict[str, Any]) -> bool:
    """Whether a copy of the graph with plain layers is possible: no layer of ElasticDL is hidden in another layer."""
    seen = {id(layer) for graph in _graphs(model) for layer in graph.layers}
    size = sum(4 * (t.input_dim or 0) * t.dim for t in tables)
    return size <= export.SHARD_BYTES and all(layers[t.name].has_plain and id(layers[t.name]) in seen for t in tables)


def _graphs(model: Any) -> list[Any]:
    nested = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    return [model, *(graph for layer in nested for graph in _graphs(layer))]


def _plain(model: Any, tables: list[TableSpec], layers: dict[str, Any], rows: TableExport) -> Any:
    """A copy of the model with plain layers that hold every row."""

    def plain_layer(layer: Any) -> Any:
        return layer.plain() if isinstance(layer, TableLayer) else layer.__class__.from_config(layer.get_config())

    with answered_by(ZeroLookup(keras.ops)):
        copy = keras.models.clone_model(model, clone_function=plain_layer, recursive=True)
    values = {v.path: v.value for v in model.variables}
    embeddings = {layer.name: layer for layer in copy._flatten_layers() if isinstance(layer, keras.layers.Embedding)}
    for table in tables:
        layer = embeddings.get(table.name) or embeddings[f"{table.name}_rows"]
        weights = export.Weights(layer.embeddings.path, table, rows, layers[table.name].zero_row)
        values[weights.name] = weights.array()
    for variable in copy.variables:
        variable.assign(values[variable.path])
    return copy


def _write_tensors(
    target: export.Target,
    model: Any,
    tables: tuple[TableSpec, ...],
    layers: dict[str, Any],
    code: ModelFile,
    rows: TableExport,
) -> None:
    weights, plain, open_ended = [], [], []
    for table in tables:
        layer = layers[table.name]
        if table.input_dim is None:
            target.table(table, rows)
            open_ended.append(f"`{table.name}`")
            continue
        name = layer.origin.path if isinstance(layer, MovedEmbedding) else f"{layer.path}/embeddings"
        weights.append(export.Weights(name, table, rows, layer.zero_row))
        if not isinstance(layer, MovedEmbedding):
            plain.append(f"* `{table.name}`: {layer.plain_code()}")
    sharded = target.tensors({v.path: to_numpy(v.value) for v in model.variables}, weights)
    imported, made = code.making()
    text = _TENSORS.format(imported=imported, made=made, load=_LOAD_SHARDS if sharded else _LOAD)
    if plain and not open_ended:
        text += _WITHOUT.format(layers="\n".join(plain))
    if open_ended:
        text += _OPEN.format(names=", ".join(open_ended))
    target.readme(text)


_KERAS = """# An exported Keras model

    import keras

    model = keras.saving.load_model("model.keras")
"""

_SUBCLASS = """# An exported Keras model of the class {name}

    import keras
    from {module} import {name}

    model = keras.saving.load_model("model.keras", custom_objects={{"{name}": {name}}})
"""

_LOAD = """\
    from safetensors.numpy import load_file
    values = load_file("model.safetensors")"""

_LOAD_SHARDS = """\
    import json
    from safetensors import safe_open

    with open("model.safetensors.index.json") as f:
        where = json.load(f)["weight_map"]
    values = {}
    for name, file in where.items():
        if "@" not in name:  # a part of a table
            with safe_open(file, "numpy") as shard:
                values[name] = shard.get_tensor(name)"""

_TENSORS = """# An exported Keras model as named tensors

Each variable has its path as name. Each table with a known number of ids has the path of its layer, `.../embeddings`.
With ElasticDL installed, the model's code works unchanged and reads rows from the files:

    from elasticdl.layers import rows_from
    {imported}

{load}

    model = {made}
    with rows_from("."):
        model(features)  # a first batch, on which a subclassed model creates its variables
        for variable in model.variables:
            variable.assign(values[variable.path])
        predictions = model(features)

Inside `rows_from`, call the model itself: `model.predict` and compiled functions cannot read rows.
"""

_WITHOUT = """
Without ElasticDL, replace its layers with these and remove `rows_from`:

{layers}
"""

_OPEN = """
{names}: files with `ids` (not sorted) and their `rows`. Several files have an index, and numbers after these names.
An id without a row reads as zeros.
"""

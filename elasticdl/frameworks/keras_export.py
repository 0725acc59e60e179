"""An exported Keras model: plain layers only, all rows inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from elasticdl.frameworks import export
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import TableLayer, ZeroLookup, answered_by
from elasticdl.frameworks.trainable import TableExport, to_numpy
from elasticdl.job.parameters import TableSpec


def export_model(
    model: Any, tables: tuple[TableSpec, ...], code: ModelFile, directory: Path, rows: TableExport
) -> list[str]:
    """Write the model; the form depends on whether its graph is known.

    Functional and Sequential models become `model.keras`. A subclassed model without tables does too, and needs
    its class to load; one with tables is written as named tensors, and so is any model with open-ended ids.
    """
    reference = code.reference()
    known_graph = isinstance(model, (keras.Sequential, keras.src.models.functional.Functional))
    with export.into(directory, f"keras-{keras.backend.backend()}", reference) as target:
        open_ended = [t for t in tables if t.input_dim is None]
        for table in open_ended:
            target.table(table, rows)
        if not tables:
            model.save(target.path("model.keras"))
            target.readme((_KERAS if known_graph else _SUBCLASS).format(name=type(model).__name__, **reference))
        elif known_graph and not open_ended:
            _plain(model, tables, rows).save(target.path("model.keras"))
            target.readme(_KERAS)
        else:
            tensors = {v.path: to_numpy(v.value) for v in model.variables}
            for table in tables:
                if table.input_dim is not None:
                    tensors[f"{table.name}/embeddings"] = export.all_rows(table, rows)
            target.tensors("model.safetensors", tensors)
            target.readme(_TENSORS.format(**reference))
    return target.names


def _plain(model: Any, tables: tuple[TableSpec, ...], rows: TableExport) -> Any:
    """A copy of the model with plain layers, holding every row."""

    def plain_layer(layer: Any) -> Any:
        return layer.plain() if isinstance(layer, TableLayer) else layer.__class__.from_config(layer.get_config())

    with answered_by(ZeroLookup(keras.ops)):
        copy = keras.models.clone_model(model, clone_function=plain_layer, recursive=True)
    values = {v.path: v.value for v in model.variables}
    embeddings = {layer.name: layer for layer in copy._flatten_layers() if isinstance(layer, keras.layers.Embedding)}
    for table in tables:
        layer = embeddings.get(table.name) or embeddings[f"{table.name}_rows"]
        values[layer.embeddings.path] = export.all_rows(table, rows)
    for variable in copy.variables:
        variable.assign(values[variable.path])
    return copy


_KERAS = """# An exported Keras model

    import keras
    model = keras.saving.load_model("model.keras")
"""

_SUBCLASS = """# An exported Keras model of the class {name}

    import keras
    from {module} import {name}
    model = keras.saving.load_model("model.keras", custom_objects={{"{name}": {name}}})
"""

_TENSORS = """# An exported Keras model as named tensors

`model.safetensors` holds each variable under its path, and each table with a known number of ids as
`<layer>/embeddings`. A table of open-ended ids is a file of its own, with `ids` in rising order and
their `rows`. The code that built the model is {symbol} of {module}.

    from safetensors.numpy import load_file
    values = load_file("model.safetensors")
"""

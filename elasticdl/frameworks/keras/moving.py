"""Plain `keras.layers.Embedding` layers move to the parameter servers, and back into the model for its export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from elasticdl.frameworks.arrays import FloatArray, to_numpy
from elasticdl.frameworks.export import Weights
from elasticdl.frameworks.keras.initializers import describe
from elasticdl.frameworks.moving import Candidate, gone, move_all
from elasticdl.frameworks.rows import TableLayer, gather
from elasticdl.frameworks.trainable import TableExport
from elasticdl.job.parameters import InitializerSpec, TableSpec

_Embedding: Any = keras.layers.Embedding


class MovedEmbedding(TableLayer, _Embedding):  # type: ignore[misc]
    """A `keras.layers.Embedding` whose rows are on the parameter servers.

    As in the plain layer, id 0 has its own row, even if `mask_zero` makes it the mask of later layers.
    """

    origin: _Origin
    used_directly: bool
    zero_row = None

    @property
    def embeddings(self) -> Any:
        """User code may read it while the model runs on a first batch."""
        self.used_directly = True
        if self.origin.variable is None:
            raise gone(self.name)
        return self.origin.variable

    def table(self, name: str) -> TableSpec:
        return self.described(
            name=name, dim=self.output_dim, initializer=self.origin.initializer, input_dim=self.input_dim
        )

    def bind(self, table: TableSpec) -> None:
        self._table = table

    def call(self, inputs: Any) -> Any:
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = keras.ops.cast(inputs, "int32")  # as the plain layer does
        return keras.ops.cast(gather(self._table, inputs), self.compute_dtype)

    def settle(self) -> None:
        self.origin.variable = None

    def move_back(self) -> None:
        variable, self.origin.variable = self.origin.variable, None
        self.restore(variable)

    def restore(self, variable: Any) -> None:
        """Become the plain layer with this variable."""
        _become(self, _Embedding)
        self._tracker.unlock()
        self._embeddings = variable  # tracked by being an attribute
        self._tracker.lock()

    def new_variable(self, values: FloatArray) -> Any:
        """A variable like the one that the layer had."""
        variable = keras.Variable(values, dtype=self.variable_dtype, trainable=True, name="embeddings")
        variable._path = self.origin.path
        return variable


@dataclass
class _Origin:
    """What a moved layer was before."""

    variable: Any
    path: str
    initializer: InitializerSpec


def move_embeddings(model: Any, threshold_bytes: int, probe: Callable[[], Any] | None) -> list[str]:
    """Move the embeddings of at least this size; returns notes for the user.

    The probe runs only if the model has user code, which could use the weights of a layer.
    """
    own_code = any(type(layer).__module__.split(".")[0] != "keras" for layer in _layers(model))
    return move_all(_candidates(model, threshold_bytes), probe if own_code else None)


def _layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if not isinstance(layer, keras.layers.InputLayer)]


def _candidates(model: Any, threshold_bytes: int) -> Iterable[Candidate]:
    layers = _layers(model)
    owned = Counter(id(v) for layer in layers for v in layer._trainable_variables + layer._non_trainable_variables)
    kinds: tuple[Any, ...] = (_Embedding, TableLayer)
    names = Counter(layer.name for layer in layers if isinstance(layer, kinds))
    for layer in layers:
        if not isinstance(layer, _Embedding) or isinstance(layer, TableLayer) or not layer.built:
            continue
        if layer.input_dim * layer.output_dim * 4 < threshold_bytes:
            continue
        spec = describe(layer.embeddings_initializer, layer.input_dim, layer.output_dim)
        hindrance = _hindrance(model, layer, spec, names[layer.name] > 1, owned)
        yield Candidate(layer.name, (layer.input_dim, layer.output_dim), _Move(layer, spec), hindrance)


def _hindrance(model: Any, layer: Any, spec: InitializerSpec | str, same_name: bool, owned: Counter[int]) -> str | None:
    if type(layer) is not _Embedding:
        return f"{type(layer).__name__} is a subclass, which may compute something else"
    if layer.quantization_mode or layer.lora_enabled:
        return "it is quantized or has LoRA weights"
    variable = layer._embeddings
    if owned[id(variable)] > 1 or _in_graph(model, variable):
        return "its weights are shared with another layer"
    if not layer.trainable or not variable.trainable:
        return "it is frozen"
    if variable.dtype != "float32":
        return f"its weights are {variable.dtype}"
    for option in ("embeddings_regularizer", "embeddings_constraint"):
        if getattr(layer, option) is not None:
            return f"it has an {option}, which needs all of its rows"
    if same_name:
        return "another Embedding layer has the same name"
    if isinstance(spec, str):
        return f"its embeddings_initializer {spec}"
    if not np.array_equal(to_numpy(variable.value), to_numpy(layer.embeddings_initializer(variable.shape, "float32"))):
        return "its values do not come from its embeddings_initializer: the model's code set them"
    return None


def _in_graph(model: Any, variable: Any) -> bool:
    """Whether a functional model passes the variable to an operation."""
    graphs = [layer for layer in [model, *_layers(model)] if isinstance(layer, keras.src.models.functional.Functional)]
    return any(
        argument is variable
        for graph in graphs
        for operation in graph.operations
        for node in operation._inbound_nodes
        for argument in node.arguments._flat_arguments
    )


@dataclass(frozen=True)
class _Move:
    layer: Any
    spec: InitializerSpec | str

    def __call__(self) -> Any:
        assert isinstance(self.spec, InitializerSpec)
        layer, variable = self.layer, self.layer._embeddings
        layer._untrack_variable(variable)
        _become(layer, MovedEmbedding)
        layer.used_directly = False
        layer._embeddings = None
        object.__setattr__(layer, "origin", _Origin(variable, variable.path, self.spec))
        layer.bind(layer.table(layer.name))
        return layer


def _become(layer: Any, kind: Any) -> None:
    object.__setattr__(layer, "__class__", kind)


@contextmanager
def plain_again(model: Any, rows: TableExport) -> Iterator[None]:
    """Inside, moved layers are plain layers again and hold all their rows."""
    with ExitStack() as stack:
        for layer in _layers(model):
            if isinstance(layer, MovedEmbedding):
                stack.enter_context(_plain_layer(layer, rows))
        yield


@contextmanager
def _plain_layer(layer: Any, rows: TableExport) -> Iterator[None]:
    variable = layer.new_variable(Weights(layer.origin.path, layer._table, rows).array())
    layer.restore(variable)
    try:
        yield
    finally:
        layer._untrack_variable(variable)
        _become(layer, MovedEmbedding)
        layer._embeddings = None

"""The protocol between a worker and a model: what a step takes and gives, whatever framework computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.job.parameters import ParametersSpec

FloatArray: TypeAlias = npt.NDArray[np.float32]
IdArray: TypeAlias = npt.NDArray[np.int64]
# A numpy array, or a dict, list or tuple of them: what `feed` returns and what a model predicts.
Arrays: TypeAlias = Any


@dataclass(frozen=True)
class StepResult:
    """What one forward and backward pass gives. Every array is the caller's own: the next step does not touch it."""

    loss: float
    gradients: FloatArray  # flat, over the trainable variables in the order of ParametersSpec
    state: FloatArray  # flat, the new values of the other float variables (batch-norm statistics), in that order
    rows: dict[str, tuple[IdArray, FloatArray]] = field(default_factory=dict)  # table: unique ids, summed gradients


class RowSource(Protocol):
    """Where an embedding layer's rows come from during a forward pass."""

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        """The rows of these ids (unique, any order) as float32 [len(ids), dim]."""
        ...


@runtime_checkable
class OrderedRows(RowSource, Protocol):
    """A row source that is fastest with ids in an order of its own."""

    def distinct(self, ids: IdArray) -> tuple[IdArray, IdArray]:
        """The distinct ids in that order, and the position of each id among them."""
        ...


class TableExport(RowSource, Protocol):
    """A row source that can also list a table, for the exported model."""

    def chunks(self, table: str) -> Iterator[tuple[IdArray, FloatArray]]:
        """Every id that has a row, and its row, some at a time and in any order."""
        ...


class Trainable(Protocol):
    """A model, its loss and its metrics, built once per process."""

    @property
    def parameters(self) -> ParametersSpec:
        """What the model puts on the parameter servers."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: which embeddings moved to the servers, and which large ones did not."""
        ...

    def initial(self) -> tuple[FloatArray, FloatArray]:
        """Flat trainable values and flat state as built: equal in every process for one seed."""
        ...

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        """Put these flat values into the model."""
        ...

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        """Forward and backward in training mode. The model's trainable values stay as they were."""
        ...

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        """Forward in inference mode."""
        ...

    def new_metrics(self) -> MetricsAccumulator:
        """An empty accumulator of the model's evaluation metrics."""
        ...

    def export(self, directory: Path, rows: TableExport) -> list[str]:
        """Write the model, with the values last assigned, for use without ElasticDL; the names of the files."""
        ...


def map_arrays(convert: Any, arrays: Arrays) -> Arrays:
    """`convert` applied to each array of a dict, list or tuple of arrays."""
    if isinstance(arrays, dict):
        return {key: map_arrays(convert, value) for key, value in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(map_arrays(convert, value) for value in arrays)
    return None if arrays is None else convert(arrays)


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """A tensor of any framework as a numpy array."""
    detach = getattr(value, "detach", None)  # torch's; its tensors may be on a device and part of a graph
    return np.asarray(detach().cpu().numpy() if detach else value)


def refuse_text(array: npt.NDArray[Any]) -> None:
    """Models compute with numbers."""
    if array.dtype.kind in "USO":
        raise TypeError(f"feed returned text ({array.dtype}); turn it into numbers: hash or look it up in feed")


def narrowed(array: Any) -> npt.NDArray[Any]:
    """The array as models take it: numpy makes float64 by default, models compute in float32."""
    found: npt.NDArray[Any] = np.asarray(array)
    return found.astype(np.float32) if found.dtype == np.float64 else found

"""The protocol between a worker and a model: what a step takes and gives, whatever framework computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from elasticdl.frameworks.arrays import Arrays, FloatArray, IdArray
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.schedules import Schedule
from elasticdl.job.parameters import ParametersSpec


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
    def schedule(self) -> Schedule | None:
        """Of the learning rate; None where it is constant."""
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

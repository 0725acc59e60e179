"""The protocol between a worker and a model, with any framework, in jobs with parameter servers."""

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
    """The result of one forward and backward pass. The next step does not change these arrays."""

    loss: float
    gradients: FloatArray  # flat, over the trainable variables in the order of ParametersSpec
    state: FloatArray  # flat, the new values of the other float variables (batch-norm statistics), in that order
    rows: dict[str, tuple[IdArray, FloatArray]] = field(default_factory=dict)  # table: unique ids, summed gradients


class RowSource(Protocol):
    """Gives embedding layers their rows during a forward pass."""

    def rows(self, table: str, ids: IdArray) -> FloatArray:
        """The rows of these ids (unique, any order) as float32 [len(ids), dim]."""
        ...


@runtime_checkable
class OrderedRows(RowSource, Protocol):
    """A row source that is fastest with ids in its own order."""

    def distinct(self, ids: IdArray) -> tuple[IdArray, IdArray]:
        """The distinct ids in that order, and the position of each id among them."""
        ...


class TableExport(RowSource, Protocol):
    """A row source that can also list a table, for the exported model."""

    def chunks(self, table: str) -> Iterator[tuple[IdArray, FloatArray]]:
        """Every id that has a row, and its row, some at a time and in any order."""
        ...


class Trainable(Protocol):
    """A model, its loss and its metrics. A process builds it once."""

    @property
    def parameters(self) -> ParametersSpec:
        """What of the model the parameter servers hold."""
        ...

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the learning rate; None if the rate is constant."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user: which embeddings moved to the servers, and which large ones did not."""
        ...

    def initial(self) -> tuple[FloatArray, FloatArray]:
        """Flat trainable values and flat state of the new model: equal in every process with the same seed."""
        ...

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        """Put these flat values into the model."""
        ...

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        """Forward and backward pass in training mode. Trainable values do not change."""
        ...

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        """Forward pass in inference mode."""
        ...

    def new_metrics(self) -> MetricsAccumulator:
        """An empty accumulator of the model's evaluation metrics."""
        ...

    def export(self, directory: Path, rows: TableExport) -> list[str]:
        """Write the model with the values assigned last, for use without ElasticDL; returns the names of the files."""
        ...

"""The protocol between an all-reduce worker and its model. Every worker holds the whole model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.metrics import MetricsAccumulator

if TYPE_CHECKING:
    import torch

    from elasticdl.frameworks.replica.tensors import Values


class ModelReplica(Protocol):
    """A model, its optimizer and its buffers as last committed. Parts of a step are pure functions of them.

    The flat vector of a part is [gradients | moves of the buffers]. Moves are what the pass added to float buffers
    (batch-norm statistics) and integer buffers (counters). The moves of unchanged buffers are exactly zero, so the mean
    leaves these buffers unchanged. Counters move equally in every part, so their mean is the move of one pass.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def gradient_size(self) -> int:
        """The number of floats in the flat gradient."""
        ...

    @property
    def buffer_size(self) -> int:
        """The number of floats in the moves of buffers."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about how the model is trained."""
        ...

    @property
    def values(self) -> Values | None:
        """The tensors of a model whose gradients torch computes one after another, so that they can be sent early."""
        ...

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        """Forward and backward pass of some records in training mode, with all random numbers from `seed`.

        Returns the mean loss of the records and a new flat float32 tensor on `device`, with space for `room` more
        floats at its end. Parameters and buffers stay as committed.
        """
        ...

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        """Commit a step: the optimizer gets the mean gradient, buffers get the mean of their moves.

        `step` and `epoch` are the numbers of this step and its epoch, both from 0. Learning-rate schedules depend only
        on them. The rate is multiplied by `rate_scale`. The caller must not use `mean` afterwards.
        """
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a new worker needs, by name: "model/…", "optimizer/…". Read it before the next `apply`.

        For torch models these are the live tensors.
        """
        ...

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state of the same model and optimizer, from any process; ModelError if it does not match."""
        ...

    def predict(self, features: Arrays) -> Arrays:
        """Forward pass in inference mode; random state and buffers do not change."""
        ...

    def new_metrics(self) -> MetricsAccumulator:
        """An empty accumulator of the model's evaluation metrics."""
        ...

    def export(self, directory: Path) -> list[str]:
        """Write the model for use without ElasticDL; returns the names of the files."""
        ...


def refuse_tables(names: Iterable[str], path: str) -> None:
    """Raise ModelError for embedding layers with these names, whose rows need parameter servers."""
    found = sorted(names)
    if found:
        raise ModelError(
            path,
            f"ElasticDL's Embedding {', '.join(map(repr, found))} keeps its rows on parameter servers, which an "
            "all-reduce job does not have",
            "Use the Embedding of Keras or PyTorch (every worker then holds the whole table), or "
            "--distribution_strategy=ParameterServerStrategy.",
        )

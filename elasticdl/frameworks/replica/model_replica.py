"""The protocol between an all-reduce worker and its model: every worker holds all of it, with its optimizer."""

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
    """A model, its optimizer and its buffers as last committed. Parts are pure functions of them.

    The flat vector of a part is [gradients | moves of the buffers]: what the pass added to float buffers (batch-norm
    statistics) and to integer ones (counters). As differences, buffers that stand still are exactly zero, so they stay
    what they are whatever the weights of the mean; counters, which move alike in every part, move as by one pass.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def gradient_size(self) -> int:
        """Floats of the flat gradient."""
        ...

    @property
    def buffer_size(self) -> int:
        """Floats of the moves of buffers."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the model is trained."""
        ...

    @property
    def values(self) -> Values | None:
        """The tensors of a model whose gradients torch makes one after another; they can be watched."""
        ...

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        """Forward and backward of some records in training mode, all random numbers drawn from `seed`.

        The mean loss of the records, and a fresh flat float32 tensor on `device`, with room for so many floats more at
        its end. Parameters and buffers stay as committed.
        """
        ...

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        """Commit a step: the optimizer takes the mean gradient, buffers take the mean of their moves.

        `step` is the number of this step, `epoch` the one it belongs to, both from 0: learning-rate schedules depend on
        them alone. The rate is multiplied by `rate_scale`. `mean` is given away.
        """
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Everything a newcomer needs, by name: "model/…", "optimizer/…". To be read before the next `apply`.

        Of torch models these are the live tensors.
        """
        ...

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take a state of the same model and optimizer, from any process; what does not fit is a ModelError."""
        ...

    def predict(self, features: Arrays) -> Arrays:
        """Forward in inference mode; random state and buffers stay as they are."""
        ...

    def new_metrics(self) -> MetricsAccumulator:
        """An empty accumulator of the model's evaluation metrics."""
        ...

    def export(self, directory: Path) -> list[str]:
        """Write the model for use without ElasticDL; the names of the files."""
        ...


def refuse_tables(names: Iterable[str], path: str) -> None:
    """Rows on parameter servers have no place where there are none."""
    found = sorted(names)
    if found:
        raise ModelError(
            path,
            f"elasticdl's Embedding {', '.join(map(repr, found))} keeps its rows on parameter servers, which an "
            "all-reduce job does not have",
            "Use the framework's own Embedding, which every worker then holds whole, or "
            "--distribution_strategy=ParameterServerStrategy.",
        )

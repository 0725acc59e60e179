"""The protocol between an all-reduce worker and its model: every worker holds all of it, with its optimizer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.errors import ModelError
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile, ModelRequest, seed_frameworks
from elasticdl.frameworks.trainable import Arrays

if TYPE_CHECKING:
    import torch

    from elasticdl.frameworks.replica_tensors import Values

# Prefixes of the names in a state.
MODEL, OPTIMIZER = "model/", "optimizer/"


class Replica(Protocol):
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


def load_replica(
    source: ModelRequest | ModelFile,
    seed: int,
    sample: Callable[[], Arrays] | None = None,
    *,
    device: str | None = None,
    deterministic: bool = True,
) -> Replica:
    """Import the model file and build model and optimizer; names and initial values are a function of the seed.

    `sample` gives the features of one batch, for models that do not know their shapes without data. `device` is the
    first GPU where there is one, else the CPU.
    """
    if importlib.util.find_spec("torch") is None:
        path = source.path if isinstance(source, ModelFile) else source.model_def
        remedy = "Install it: `pip install torch`; Keras may run on another backend."
        raise ModelError(path, "all-reduce exchanges gradients with torch, which is not installed", remedy)
    from elasticdl.frameworks import determinism, memory

    memory.keep_freed_memory()
    code = source if isinstance(source, ModelFile) else ModelFile(source)
    if deterministic:
        determinism.use_deterministic_algorithms()
    seed_frameworks(seed)
    if "keras" in sys.modules and device is not None:
        from elasticdl.frameworks.replica_keras import choose_device

        choose_device(device)
    model = code.build_checked()
    if "keras" in sys.modules and isinstance(model, sys.modules["keras"].Model):
        from elasticdl.frameworks.replica_keras import keras_replica

        return keras_replica(model, code, seed, sample)
    from elasticdl.frameworks.replica_torch import TorchReplica

    return TorchReplica(model, code, seed, sample, device)


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


def check_state(path: str, expected: Mapping[str, Any], given: Mapping[str, torch.Tensor]) -> None:
    """The same names, each with the same shape and type; `expected` are tensors."""
    if missing := sorted(expected.keys() - given.keys()):
        raise misfit(path, f"it has no {_some(missing)}")
    if unknown := sorted(given.keys() - expected.keys()):
        raise misfit(path, f"the model has no {_some(unknown)}")
    for name, tensor in expected.items():
        check_shape(path, name, tensor, given[name])


def check_shape(path: str, name: str, mine: Any, theirs: torch.Tensor) -> None:
    if tuple(mine.shape) != tuple(theirs.shape) or mine.dtype != theirs.dtype:
        wants = f"{str(mine.dtype).removeprefix('torch.')} {list(mine.shape)}"
        holds = f"{str(theirs.dtype).removeprefix('torch.')} {list(theirs.shape)}"
        raise misfit(path, f"{name} is {holds} in it and {wants} in the model")


def misfit(path: str, what: str) -> ModelError:
    remedy = "Use the model file, with the same --aux_params, that the state came from."
    return ModelError(path, f"a state does not fit this model: {what}", remedy)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more

"""The inputs and outputs of the step loop: the job's terms, the model, a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.collective.buckets import BUCKET_FLOATS
from elasticdl.core.steps import StepPlan
from elasticdl.frameworks.replica.tensors import Values


class Model(Protocol):
    """What is trained; every worker has all of it. A contribution has `size` floats, and `room` more behind them."""

    size: int
    room: int
    device: torch.device

    @property
    def values(self) -> Values | None:
        """The tensors, where torch makes their gradients."""

    def begin(self, seed: int) -> None:
        """The computation of a part begins."""

    def contribute(self, weight: float) -> torch.Tensor:
        """The result of the part: means over its records times `weight`. Go back to what was committed."""

    def abandon(self) -> None:
        """The part has no result. Go back to what was committed."""

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float) -> None:
        """Commit a step with the means over all its records, and the learning rate times `rate_scale`."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Everything that a new worker needs, by name."""

    def load(self, state: Mapping[str, torch.Tensor]) -> None: ...


class Evaluation(Protocol):
    """Metrics over fixed parts of the validation data, one for each virtual worker."""

    def part(self, virtual: int, check: Callable[[], None]) -> bytes:
        """The metrics of one part, in a form that can be merged; `check` raises when it is called off."""

    def merged(self, parts: Sequence[bytes]) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class StepPart:
    """What one virtual worker computes in one step, or, without determinism, several neighbours."""

    step: int
    virtual: int  # the first one
    epoch: int
    start: int  # positions of the epoch's order
    stop: int
    records: npt.NDArray[np.int64]  # numbers of the data set's records, in order
    seed: int

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class LoopTerms:
    """Knobs of the job that the loop needs."""

    plan: StepPlan
    seed: int = 0
    deterministic: bool = True
    evaluation_steps: int = 0  # 0: at the end only
    audit: bool = False
    skip_nonfinite: bool = False
    max_bad_records: int = 0
    host: str = "127.0.0.1"
    most_records: int = 0  # of a pass over several parts, without determinism
    bucket_floats: int = BUCKET_FLOATS  # that are sent at a time during a backward pass


@dataclass
class Hooks:
    """Callbacks of the loop's owner."""

    committed: Callable[[int, float], None] = lambda step, loss: None  # steps in the model, mean loss of the last
    export: Callable[[Path], None] | None = None  # to a new folder, which is published afterwards
    evaluation: Evaluation | None = None
    evaluated: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
    name_of: Callable[[int], str] = lambda number: f"record {number}"  # its name for people

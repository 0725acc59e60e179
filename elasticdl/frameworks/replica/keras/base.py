"""A Keras model as a ModelReplica: what its backends have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from keras.src.random.seed_generator import global_seed_generator

from elasticdl.frameworks.arrays import Arrays, to_numpy
from elasticdl.frameworks.determinism import set_random_state
from elasticdl.frameworks.keras.export import export_model
from elasticdl.frameworks.keras.model import KerasModel, check_paths, size, split
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import make_optimizer
from elasticdl.frameworks.replica.keras.steps import KerasSteps
from elasticdl.frameworks.replica.state import MODEL, check_state
from elasticdl.frameworks.rows import NoRows


class KerasReplica(KerasModel, ABC):
    """Variables by their paths. Seeds of layers are not part of the state: each part of a step sets them."""

    notes: tuple[str, ...] = ()

    def __init__(self, model: Any, code: ModelFile) -> None:
        super().__init__(model, code)
        layers = list(model._flatten_layers())
        generators = [g for layer in layers for g in layer._seed_generators]
        self._seeds: list[Any] = list({id(g.state): g.state for g in generators}.values())
        seeds = {id(v) for v in self._seeds}
        frozen = {id(v) for layer in layers for v in layer._trainable_variables}
        self._trainable: list[Any] = list(model.trainable_variables)
        others = [v for v in model.non_trainable_variables if id(v) not in seeds]
        self._frozen = [v for v in others if id(v) in frozen]
        moving = [v for v in others if id(v) not in frozen]
        self._floats = [v for v in moving if keras.backend.is_float_dtype(v.dtype)]
        self._integers = [v for v in moving if not keras.backend.is_float_dtype(v.dtype)]
        self._kept = [*self._trainable, *others]
        check_paths(self._kept, code)
        self.gradient_size = sum(size(v) for v in self._trainable)
        self.buffer_size = sum(size(v) for v in moving)

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]: ...

    @abstractmethod
    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None: ...

    @abstractmethod
    def predict(self, features: Arrays) -> Arrays: ...

    @abstractmethod
    def _optimizer_state(self) -> dict[str, torch.Tensor]: ...

    @abstractmethod
    def _tensor(self, variable: Any) -> torch.Tensor:
        """The value of a variable."""

    @abstractmethod
    def load(self, state: Mapping[str, torch.Tensor]) -> None: ...

    def state(self) -> dict[str, torch.Tensor]:
        return {f"{MODEL}{v.path}": self._tensor(v) for v in self._kept} | self._optimizer_state()

    def export(self, directory: Path) -> list[str]:
        with self._final_values():
            return export_model(self._model, (), self._code, directory, NoRows(()))

    @contextmanager
    def _final_values(self) -> Iterator[None]:
        """Inside, variables have their final values: the moving averages, if the optimizer keeps them."""
        yield

    def _set_random_state(self, seed: int) -> None:
        set_random_state(seed)
        words = self._seed_words(seed, len(self._seeds) + 1)
        for variable, word in zip([*self._seeds, global_seed_generator().state], words, strict=True):
            variable.assign(word)

    def _seed_words(self, seed: int, count: int) -> Any:
        """Start values of generators: each has its own seed (of 31 bits, for every backend) and a count of 0."""
        words = np.zeros((count, 2), np.int64)
        words[:, 0] = np.random.SeedSequence(seed).generate_state(count) >> 1
        return words


class ArrayReplica(KerasReplica):
    """A replica whose variables are not torch tensors: numpy reads and writes them."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        super().__init__(model, code)
        self._steps = KerasSteps(code, self._trainable, *make_optimizer(code, []))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def values(self) -> None:
        """None: the backend computes all gradients at once."""

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        check_state(self._code.path, self.state(), state)
        for variable in self._kept:
            self._write(variable, state[f"{MODEL}{variable.path}"])
        for name, variable in self._steps.named.items():
            self._write(variable, state[name])
        self._steps.forget_rate()

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        return {name: self._tensor(v) for name, v in self._steps.named.items()}

    @contextmanager
    def _final_values(self) -> Iterator[None]:
        with self._steps.final_values():
            yield

    def _tensor(self, variable: Any) -> torch.Tensor:
        array = to_numpy(variable.value).copy()
        if array.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not support
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def _write(self, variable: Any, tensor: torch.Tensor) -> None:
        narrow = tensor.dtype == torch.bfloat16
        variable.assign((tensor.float() if narrow else tensor).detach().cpu().numpy())

    def _move_buffers(self, mean: Any) -> None:
        """Commit the mean of the buffers' moves, given as a flat array."""
        moving = [*self._floats, *self._integers]
        for number, (variable, move) in enumerate(zip(moving, split(mean[self.gradient_size :], moving), strict=True)):
            if not move.any():
                continue
            value = to_numpy(variable.value)
            if number < len(self._floats):
                variable.assign((value.astype(np.float32) + move).astype(value.dtype))
            else:
                variable.assign(value + np.rint(move).astype(value.dtype))


def roomy(vector: Any, room: int) -> torch.Tensor:
    """A copy of a flat array, with space for more at its end."""
    array = np.asarray(vector)
    found = torch.empty(len(array) + room, dtype=torch.float32)
    found.numpy()[: len(array)] = array
    return found

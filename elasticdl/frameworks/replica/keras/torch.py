"""Keras on torch as a ModelReplica: eager, with a Keras or a torch optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from elasticdl.frameworks.arrays import Arrays, map_arrays, to_numpy
from elasticdl.frameworks.determinism import random_state_kept
from elasticdl.frameworks.keras.model import as_tensor
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import make_optimizer
from elasticdl.frameworks.replica.keras.base import KerasReplica
from elasticdl.frameworks.replica.keras.steps import KerasSteps
from elasticdl.frameworks.replica.state import MODEL, OPTIMIZER, check_state
from elasticdl.frameworks.replica.tensors import Buffer, Values
from elasticdl.frameworks.replica.torch.optimizer import TorchOptimizer


class TorchKerasReplica(KerasReplica):
    """The value of a variable is a torch tensor, which assignments change in place."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        super().__init__(model, code)
        trainable = {v.path: v.value for v in self._trainable}
        buffers = [Buffer(v.path, v.value) for v in [*self._floats, *self._integers]]
        self.values = Values(code.path, trainable, buffers, {v.path: v.value for v in self._frozen})
        found = make_optimizer(code, list(trainable.values()))
        self._torch = TorchOptimizer(code, trainable, *found) if isinstance(found[0], torch.optim.Optimizer) else None
        self._steps = KerasSteps(code, self._trainable, *found) if self._torch is None else None

    @property
    def device(self) -> torch.device:
        return self.values.device

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        self._set_random_state(seed)
        self._model._clear_losses()
        with self.values.passing():
            with self._code.running("computing a training step"), torch.enable_grad():
                inputs, targets = self._inputs(features), map_arrays(as_tensor, labels)
                predictions = self._model(inputs, **self._when_training)
                loss = self._loss(targets, predictions, self._model.losses)
                scale = 1.0 if self._steps is None else self._steps.loss_scale()
                (loss if scale == 1.0 else loss * scale).backward()
            vector = self.values.vector(room)
        return loss.item(), vector

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        gradients = self.values.gradients(mean)
        if self._torch is not None:
            self._torch.step(gradients, step, epoch, rate_scale)
        elif self._steps is not None:
            rate, running = self._steps.rate_of(step, epoch, rate_scale), self._code.running("taking an optimizer step")
            with rate, running, torch.no_grad():
                self._steps.optimizer.apply(gradients, self._trainable)
        self.values.move_buffers(mean)

    def predict(self, features: Arrays) -> Arrays:
        running = self._code.running("computing predictions")
        with running, random_state_kept(), self.values.passing(), torch.no_grad():
            self._set_random_state(0)
            return map_arrays(to_numpy, self._model(self._inputs(features), **self._when_predicting))

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        expected, given = self.state(), state
        if self._torch is not None:
            of_optimizer = {name: tensor for name, tensor in state.items() if name.startswith(OPTIMIZER)}
            given = {name: tensor for name, tensor in state.items() if name not in of_optimizer}
            expected = {name: tensor for name, tensor in expected.items() if name.startswith(MODEL)}
            self._torch.check(of_optimizer)
        check_state(self._code.path, expected, given)
        with torch.no_grad():
            torch._foreach_copy_(list(expected.values()), [given[name] for name in expected])
        self.values.commit()
        if self._torch is not None:
            self._torch.load(of_optimizer)
        elif self._steps is not None:
            self._steps.forget_rate()

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        if self._torch is not None:
            return self._torch.state()
        return {name: self._tensor(v) for name, v in self._steps.named.items()} if self._steps is not None else {}

    @contextmanager
    def _final_values(self) -> Iterator[None]:
        if self._steps is None:
            yield
            return
        with self._steps.final_values():
            yield

    def _tensor(self, variable: Any) -> torch.Tensor:
        found: torch.Tensor = variable.value.detach()
        return found

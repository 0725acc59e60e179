"""Keras on JAX as a ModelReplica: part, step and prediction are one compiled function each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from elasticdl.frameworks.arrays import Arrays, map_arrays, narrowed, to_numpy
from elasticdl.frameworks.determinism import random_state_kept, set_random_state
from elasticdl.frameworks.keras.jax import checked
from elasticdl.frameworks.keras.model import split
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.replica.keras.base import ArrayReplica, roomy


class JaxReplica(ArrayReplica):
    """Variables hold the committed values; compiled functions get them as arguments and do not change them."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        super().__init__(model, code)
        self._others: list[Any] = list(model.non_trainable_variables)
        places = {id(v): i for i, v in enumerate(self._others)}
        self._seed_places = [places[id(v)] for v in self._seeds]
        self._moving_places = [places[id(v)] for v in [*self._floats, *self._integers]]
        self._compiled_part = jax.jit(self._compute)
        self._compiled_step = jax.jit(self._update)
        self._compiled_predict = jax.jit(self._predictions)

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        set_random_state(seed)  # for feeds and losses that use random numbers outside the compiled function
        with self._code.running("computing a training step"):
            inputs, targets = map_arrays(self._checked, features), map_arrays(narrowed, labels)
            scale = np.float32(self._steps.loss_scale())
            loss, vector = self._compiled_part(self._values(), self._start(seed), inputs, targets, scale)
        return float(loss), roomy(vector, room)

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        flat = mean.numpy()
        slots = list(self._steps.optimizer.variables)
        with self._steps.rate_of(step, epoch, rate_scale):
            with self._code.running("taking an optimizer step"):
                values, held = self._compiled_step(flat, self._values(), [v.value for v in slots])
            for variable, value in zip([*self._trainable, *slots], [*values, *held], strict=True):
                variable.assign(value)
        self._move_buffers(flat)

    def predict(self, features: Arrays) -> Arrays:
        with self._code.running("computing predictions"), random_state_kept():
            inputs = map_arrays(self._checked, features)
            return map_arrays(to_numpy, self._compiled_predict(self._values(), self._start(0), inputs))

    def _values(self) -> list[Any]:
        return [v.value for v in self._trainable]

    def _start(self, seed: int) -> list[Any]:
        """Committed non-trainable values, with the seeds of this pass."""
        others = [v.value for v in self._others]
        words = self._seed_words(seed, len(self._seeds) + 1)
        for place, word in zip(self._seed_places, words, strict=False):
            others[place] = word.astype(np.uint32)
        return others

    def _compute(self, values: list[Any], others: list[Any], inputs: Arrays, targets: Arrays, scale: Any) -> Any:
        def scaled(values: list[Any]) -> Any:
            predictions, after, added = self._model.stateless_call(
                values, others, inputs, return_losses=True, **self._when_training
            )
            loss = self._loss(targets, predictions, added)
            return (loss * scale if self._steps.scales_loss else loss), (loss, after)

        gradients, (loss, after) = jax.grad(scaled, has_aux=True)(values)
        moves = [jnp.where(after[i] == others[i], 0, after[i] - others[i]) for i in self._moving_places]
        flat = [x.reshape(-1).astype(jnp.float32) for x in [*gradients, *moves]]
        return loss, jnp.concatenate(flat) if flat else jnp.zeros(0, jnp.float32)

    def _update(self, mean: Any, values: list[Any], slots: list[Any]) -> Any:
        gradients = [g.astype(v.dtype) for g, v in zip(split(mean, self._trainable), values, strict=True)]
        return self._steps.optimizer.stateless_apply(slots, gradients, values)

    def _predictions(self, values: list[Any], others: list[Any], inputs: Arrays) -> Any:
        return self._model.stateless_call(values, others, inputs, **self._when_predicting)[0]

    def _checked(self, array: Any) -> Any:
        return checked(array, self._code.path)

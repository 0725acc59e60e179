"""The dense values that a step is computed on: pulled for it, or a copy that the worker's own gradients move."""

from __future__ import annotations

from elasticdl.frameworks.arrays import FloatArray
from elasticdl.ps import _native
from elasticdl.ps.client import Client
from elasticdl.ps.parameters import native_optimizer


class Dense:
    """Pulls every `every` steps. In between, the copy moves as on a server: by the same optimizer and slots.
    With one worker it equals the model; with several it lacks the others' gradients.
    """

    def __init__(self, client: Client, every: int) -> None:
        self._client, self._every = client, every
        self._optimizer = native_optimizer(client.spec.optimizer)
        self._steps = 0  # until the next pull
        self._version = 0

    def get(self, at_least: int = 0) -> tuple[FloatArray, FloatArray, int]:
        """Trainable values, state, and the version they are of. `at_least` is waited for."""
        if self._every == 1:
            return self._client.pull(at_least=at_least)
        if not self._steps:
            self._trainable, self._state, self._slots, self._version = self._client.pull_with_slots()
            self._steps = self._every
        self._steps -= 1
        return self._trainable.copy(), self._state.copy(), self._version

    def moved(self, gradients: FloatArray, state: FloatArray, rate: float) -> None:
        """Every server has this step's gradients and difference of state: apply them to the copy, too."""
        self._version += 1
        if self._steps:
            rate = rate or self._client.spec.optimizer.learning_rate
            _native.update_dense(self._trainable, self._slots, gradients, self._optimizer, rate, self._version)
            self._state += state

    def passed(self) -> None:
        """A step that moved nothing."""
        self._version += 1

    def forget(self) -> None:
        """The next step pulls: the outcome of the last one is unknown."""
        self._steps = 0

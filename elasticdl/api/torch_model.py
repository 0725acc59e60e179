"""A user's torch model and optimizer in the form that the elastic loop trains.

Each part of a step starts from what was committed: parameters, buffers, and random numbers from the part's seed. Its
result (gradients, and changes of buffers such as batch-norm statistics) is taken out as one flat vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from elasticdl.api.nested import flatten, unflatten
from elasticdl.errors import Problem, UsageError
from elasticdl.frameworks.determinism import set_random_state
from elasticdl.frameworks.replica.state import refuse_unknown
from elasticdl.frameworks.replica.tensors import values_of
from elasticdl.frameworks.replica.torch.rates import scaled

Tensors = dict[str, torch.Tensor]


class Stateful(Protocol):
    """Anything with torch's two methods: a scheduler, a module, a scaler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class TorchModel:
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        before_update: Callable[[], Any] | None = None,
        more: Mapping[str, Stateful | torch.Tensor] | None = None,
    ) -> None:
        """`scheduler` makes one step for each step of the optimizer. `before_update` runs with the mean gradients in
        place, to clip them. `more` is other state of the user, by name: new workers receive it, checkpoints hold it."""
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._before_update, self._more = before_update, dict(more or {})
        if not any(p.requires_grad for p in model.parameters()):
            what = "none of its parameters requires gradients"
            raise UsageError([Problem("model", "", what, "Set requires_grad on some.")])
        self.values, _ = values_of(type(model).__name__, model)
        # Refuse what cannot be sent now, not when the first new worker needs it.
        refuse_unknown(type(model).__name__, self.state())
        self._part = ExitStack()
        self.device = self.values.device
        self.size, self.room = self.values.gradient_size + self.values.buffer_size, 0

    # One part.

    def begin(self, seed: int) -> None:
        self._part.enter_context(self.values.passing())
        set_random_state(seed)

    def contribute(self, weight: float) -> torch.Tensor:
        with self._part:
            found: torch.Tensor = self.values.vector(self.room)
            if weight != 1.0:
                found[: len(found) - self.room] *= weight
        return found

    def abandon(self) -> None:
        self._part.close()

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        for parameter, gradient in zip(self.values.trainable, self.values.gradients(mean), strict=True):
            parameter.grad = gradient
        if self._before_update is not None:
            self._before_update()
        with scaled(self._optimizer.param_groups, rate_scale):
            self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self.values.move_buffers(mean)
        for parameter in self.values.trainable:
            parameter.grad = None

    # Its state.

    def state(self) -> Tensors:
        found = {f"model/{name}": tensor for name, tensor in self._model.state_dict().items()}
        found |= flatten("optimizer", self._optimizer.state_dict())
        if self._scheduler is not None:
            found |= flatten("scheduler", self._scheduler.state_dict())
        for name, value in self._more.items():
            found |= flatten(f"more/{name}", value if isinstance(value, torch.Tensor) else value.state_dict())
        return found

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        model = {name.removeprefix("model/"): t for name, t in state.items() if name.startswith("model/")}
        self._model.load_state_dict(model)
        self._optimizer.load_state_dict(unflatten("optimizer", state))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(unflatten("scheduler", state))
        for name, value in self._more.items():
            held = unflatten(f"more/{name}", state)
            if isinstance(value, torch.Tensor):
                with torch.no_grad():
                    value.copy_(held)
            else:
                value.load_state_dict(held)
        self.values.commit()

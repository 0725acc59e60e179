"""A torch optimizer that takes the steps of a model replica, and its state by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import check_covered
from elasticdl.frameworks.replica.state import OPTIMIZER, check_shape, misfit
from elasticdl.frameworks.replica.torch.rates import TorchRates
from elasticdl.frameworks.schedules import SCHEDULED

_GROUPS = "groups"
_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}
# The tensors that store Python numbers.
_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


class TorchOptimizer:
    """Any torch optimizer that steps without a closure, with parameters by name."""

    def __init__(
        self, code: ModelFile, parameters: Mapping[str, Any], optimizer: Any, scheduler: Any, interval: str
    ) -> None:
        self._code, self._parameters, self._optimizer = code, dict(parameters), optimizer
        self._kind = type(optimizer).__name__
        self._prefix = f"{OPTIMIZER}{self._kind}/"
        self._check()
        self._rates = TorchRates(code, optimizer, scheduler, interval)

    def step(self, gradients: list[Any], step: int, epoch: int, scale: float) -> None:
        """One step with these gradients, in the order of the parameters."""
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        with self._rates.at(step, epoch, scale), self._code.running(f"taking a step of {self._kind}"):
            self._optimizer.step()
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """The slots of every parameter, and the numbers in the optimizer's groups."""
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                self._store(found, f"{self._prefix}{name}/{key}", value)
        for number, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if key not in SCHEDULED and type(value) in (int, float):
                    self._store(found, f"{self._prefix}{_GROUPS}/{number}/{key}", value)
        return found

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raise ModelError unless the state is one of this optimizer with these parameters."""
        present = self.state()
        for name, tensor in state.items():
            kind = name.removeprefix(OPTIMIZER).partition("/")[0]
            if kind != self._kind:
                raise misfit(self._code.path, f"it is for the optimizer {kind}, but the model file uses {self._kind}")
            owner, _, _key = name.removeprefix(self._prefix).rpartition("/")
            if owner.startswith(f"{_GROUPS}/"):
                if name not in present:
                    raise misfit(self._code.path, f"the optimizer has no {name}")
            elif owner not in self._parameters:
                raise misfit(self._code.path, f"the model has no parameter for {name}")
            if name in present:
                check_shape(self._code.path, name, present[name], tensor)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checked state; creates slots that do not exist yet."""
        slots: dict[str, dict[str, Any]] = {}
        for name, tensor in state.items():
            owner, _, key = name.removeprefix(self._prefix).rpartition("/")
            key, value = _restored(key, tensor)
            if owner.startswith(f"{_GROUPS}/"):
                self._optimizer.param_groups[int(owner.rpartition("/")[2])][key] = value
            else:
                slots.setdefault(owner, {})[key] = value
        homes = self._scalar_homes()
        for name, parameter in self._parameters.items():
            self._optimizer.state.pop(parameter, None)
            if name in slots:
                self._optimizer.state[parameter] = {
                    key: _placed(value, parameter, homes[name]) for key, value in slots[name].items()
                }

    def _store(self, found: dict[str, Any], name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value.detach()
        elif type(value) in _DTYPES:
            found[f"{name}({type(value).__name__})"] = torch.tensor(value, dtype=_DTYPES[type(value)])
        elif value is None:
            found[f"{name}(none)"] = torch.zeros(0)
        else:
            key = name.rpartition("/")[2]
            what = f"{self._kind} stores {type(value).__name__} as {key!r}, which cannot be sent to other workers"
            raise ModelError(self._code.path, what, "Use an optimizer that stores only tensors and numbers.")

    def _scalar_homes(self) -> dict[str, torch.device]:
        """The device of each parameter's step counter: the CPU, unless the optimizer needs another one."""
        names = {id(p): name for name, p in self._parameters.items()}
        homes = {}
        for group in self._optimizer.param_groups:
            beside = group.get("capturable") or group.get("fused") or self._kind == "ASGD"
            for parameter in group["params"]:
                homes[names[id(parameter)]] = parameter.device if beside else torch.device("cpu")
        return homes

    def _check(self) -> None:
        path, name = self._code.path, f"torch {self._kind}"
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            what = f"optimizer() returned {type(self._optimizer).__name__} for a torch model"
            raise ModelError(path, what, "Return an optimizer of torch.optim: `def optimizer(parameters): ...`.")
        closure = inspect.signature(type(self._optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            what = f"optimizer(): {name} evaluates the model several times per step, which all-reduce does not support"
            raise ModelError(path, what, "Use an optimizer whose step() takes no closure.")
        if isinstance(self._optimizer, torch.optim.SparseAdam):
            what = f"optimizer(): {name} supports only sparse gradients; all-reduce sums gradients as dense ones"
            raise ModelError(path, what, "Use torch.optim.Adam.")
        check_covered(self._optimizer, path, list(self._parameters.values()))
        known = {id(p) for p in self._parameters.values()}
        if any(id(p) not in known for group in self._optimizer.param_groups for p in group["params"]):
            what = f"optimizer(): {name} has tensors that are not trainable parameters of the model"
            raise ModelError(path, what, "Pass the parameters that optimizer(parameters) receives.")


def _restored(key: str, tensor: torch.Tensor) -> tuple[str, Any]:
    """The key and value of a slot, from its name and tensor in a state."""
    plain, _, kind = key.removesuffix(")").rpartition("(")
    if kind == "none" and plain:
        return plain, None
    if kind in _KINDS and plain:
        return plain, _KINDS[kind](tensor.item())
    return key, tensor


def _placed(value: Any, parameter: Any, scalar_home: torch.device) -> Any:
    """A copy of a slot's value on the right device, with the parameter's layout if it has the parameter's shape."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim == 0:
        return value.detach().to(scalar_home, copy=True)
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.detach().to(parameter.device, copy=True)

"""From the optimizer object that `optimizer()` returns to the description that the parameter servers apply."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import ModelError
from elasticdl.job.parameters import OptimizerSpec

if TYPE_CHECKING:
    from elasticdl.frameworks.model_file import ModelFile

_SUPPORTED = "SGD (with momentum and nesterov), Adagrad and Adam, each with a constant learning rate"


def read_optimizer(code: ModelFile, parameters: Sequence[Any]) -> OptimizerSpec:
    """Call the model file's `optimizer` and describe what it returns.

    A function that takes an argument receives the model's trainable parameters, as torch optimizers need them.
    """
    function = code.optimizer
    takes_parameters = any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(function).parameters.values()
    )
    with code.running(f"calling {code.request.optimizer}"):
        # torch refuses an empty list; a model may have all its parameters in tables
        found = function(list(parameters) or _placeholder()) if takes_parameters else function()
    return describe(found, code.path, parameters)


def _placeholder() -> list[Any]:
    import torch

    return [torch.nn.Parameter(torch.zeros(1))]


def describe(optimizer: Any, path: str, parameters: Sequence[Any] = ()) -> OptimizerSpec:
    """The description of a Keras or torch optimizer, or a ModelError that names what is not supported."""
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    if keras is not None and isinstance(optimizer, keras.optimizers.Optimizer):
        return _from_keras(keras, optimizer, path)
    if torch is not None and isinstance(optimizer, torch.optim.Optimizer):
        return _from_torch(torch, optimizer, path, parameters)
    raise ModelError(
        path,
        f"optimizer() returned {_name(optimizer)}, which is neither a Keras nor a torch optimizer",
        f"Return one of {_SUPPORTED}.",
    )


def _name(thing: Any) -> str:
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}'s {kind.__name__}"


def _unsupported(path: str, what: str) -> ModelError:
    return ModelError(path, f"optimizer(): {what} is not supported", f"Use {_SUPPORTED}.")


def _from_keras(keras: Any, optimizer: Any, path: str) -> OptimizerSpec:
    # By name, since a backend has classes of its own; not by isinstance, since a subclass updates in its own way.
    kinds = {"SGD": "sgd", "Adagrad": "adagrad", "Adam": "adam"}
    kind = kinds.get(type(optimizer).__name__) if type(optimizer).__module__.split(".")[0] == "keras" else None
    name = f"Keras {type(optimizer).__name__}"
    if kind is None:
        raise _unsupported(path, name)
    config = optimizer.get_config()
    rate = config["learning_rate"]
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise _unsupported(path, f"{name} with the schedule {type(optimizer._learning_rate).__name__}")
    if not isinstance(rate, (int, float)):
        raise _unsupported(path, f"{name} with learning_rate={rate!r}")
    rate = float(str(np.float32(rate)))  # Keras keeps it in float32: 0.1, not 0.10000000149
    options = ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "use_ema", "loss_scale_factor", "amsgrad")
    for option in (*options, "gradient_accumulation_steps"):
        if config.get(option):
            raise _unsupported(path, f"{name} with {option}={config[option]!r}")
    if kind == "sgd":
        return OptimizerSpec(
            kind="sgd", learning_rate=rate, momentum=config["momentum"], nesterov=bool(config["nesterov"])
        )
    if kind == "adagrad":
        return OptimizerSpec(
            kind="adagrad",
            learning_rate=rate,
            initial_accumulator=config["initial_accumulator_value"],
            epsilon=config["epsilon"],
        )
    return OptimizerSpec(
        kind="adam",
        learning_rate=rate,
        beta_1=config["beta_1"],
        beta_2=config["beta_2"],
        epsilon=config["epsilon"],
    )


def _from_torch(torch: Any, optimizer: Any, path: str, parameters: Sequence[Any]) -> OptimizerSpec:
    kinds = {torch.optim.SGD: "sgd", torch.optim.Adagrad: "adagrad", torch.optim.Adam: "adam"}
    kind = kinds.get(type(optimizer))
    name = f"torch {type(optimizer).__name__}"
    if kind is None:
        raise _unsupported(path, name)
    group = _one_group(optimizer, path, name)
    covered = {id(p) for g in optimizer.param_groups for p in g["params"]}
    if any(id(p) not in covered for p in parameters):
        raise ModelError(
            path,
            f"optimizer(): {name} was given only some of the model's trainable parameters",
            "Give it all of them; freeze those that should stay as they are with `requires_grad_(False)`.",
        )
    for option in ("weight_decay", "dampening", "maximize", "amsgrad", "lr_decay", "decoupled_weight_decay"):
        if group.get(option):
            raise _unsupported(path, f"{name} with {option}={group[option]!r}")
    rate = float(group["lr"])
    if kind == "sgd":
        return OptimizerSpec(
            kind="sgd",
            flavour="torch",
            learning_rate=rate,
            momentum=group["momentum"],
            nesterov=bool(group["nesterov"]),
        )
    if kind == "adagrad":
        return OptimizerSpec(
            kind="adagrad",
            flavour="torch",
            learning_rate=rate,
            initial_accumulator=group["initial_accumulator_value"],
            epsilon=group["eps"],
        )
    beta_1, beta_2 = (float(b) for b in group["betas"])
    return OptimizerSpec(
        kind="adam", flavour="torch", learning_rate=rate, beta_1=beta_1, beta_2=beta_2, epsilon=group["eps"]
    )


def _one_group(optimizer: Any, path: str, name: str) -> dict[str, Any]:
    first, *others = ({k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups)
    for group in others:
        different = sorted(k for k in first if group.get(k) != first[k])
        if different:
            raise _unsupported(path, f"{name} with parameter groups of different {', '.join(different)}")
    return first

"""From the optimizer that the model file returns to the description that parameter servers apply."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from elasticdl.errors import ModelError
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.schedules import Schedule, is_keras_schedule, kind_of, read_schedule
from elasticdl.job.parameters import ClipSpec, OptimizerSpec

Kind = Literal["sgd", "adagrad", "adam", "rmsprop", "ftrl"]
_SUPPORTED = "SGD, Adagrad, Adam, AdamW, RMSprop, or Ftrl of Keras"
_KERAS: dict[str, Kind] = {
    "SGD": "sgd",
    "Adagrad": "adagrad",
    "Adam": "adam",
    "AdamW": "adam",
    "RMSprop": "rmsprop",
    "Ftrl": "ftrl",
}


def read_optimizer(code: ModelFile, parameters: Sequence[Any]) -> tuple[OptimizerSpec, Schedule | None]:
    """Call the model file's `optimizer`; returns a description of the optimizer, and the schedule of its rate."""
    optimizer, scheduler, interval = make_optimizer(code, parameters)
    spec = describe(optimizer, code.path, parameters)
    first = None if is_keras_schedule(getattr(optimizer, "_learning_rate", None)) else spec.learning_rate
    schedule = read_schedule(code, optimizer, scheduler, interval, first)
    if schedule is not None:
        spec = spec.model_copy(update={"learning_rate": schedule.rate(0, 0)})
    return spec, schedule


def make_optimizer(code: ModelFile, parameters: Sequence[Any]) -> tuple[Any, Any, str]:
    """Call the model file's `optimizer`; returns the optimizer, and a torch scheduler and its interval if there is one.

    A function that takes an argument receives the model's trainable parameters, which torch optimizers need.
    """
    function = code.optimizer
    takes_parameters = any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(function).parameters.values()
    )
    with code.running(f"calling {code.request.optimizer}"):
        # torch refuses an empty list; a model may have all its parameters in tables
        found = function(list(parameters) or _placeholder()) if takes_parameters else function()
    return _taken_apart(found, code.path)


def _placeholder() -> list[Any]:
    import torch

    return [torch.nn.Parameter(torch.zeros(1))]


def _taken_apart(found: Any, path: str) -> tuple[Any, Any, str]:
    """The optimizer, its torch scheduler and the interval of that, if the model file returns them."""
    if not isinstance(found, (tuple, list)):
        return found, None, ""
    torch = sys.modules.get("torch")
    has_scheduler = torch is not None and len(found) > 1 and isinstance(found[1], torch.optim.lr_scheduler.LRScheduler)
    if has_scheduler and len(found) == 3 and found[2] in ("step", "epoch"):
        return found[0], found[1], found[2]
    if has_scheduler:
        what = f"optimizer() returned {kind_of(found[1])} but not whether it counts steps or epochs"
    else:
        what = f"optimizer() returned a {type(found).__name__} of {len(found)}"
    remedy = 'Return an optimizer, or (optimizer, scheduler, "step"), or (optimizer, scheduler, "epoch").'
    raise ModelError(path, what, remedy)


def describe(optimizer: Any, path: str, parameters: Sequence[Any] = ()) -> OptimizerSpec:
    """The description of a Keras or torch optimizer, or a ModelError that names what is not supported.

    The learning rate of an optimizer with a Keras schedule is 0.
    """
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    if keras is not None and isinstance(optimizer, keras.optimizers.Optimizer):
        return _from_keras(optimizer, path)
    if torch is not None and isinstance(optimizer, torch.optim.Optimizer):
        return _from_torch(torch, optimizer, path, parameters)
    raise ModelError(
        path,
        f"optimizer() returned {kind_of(optimizer)}, which is neither a Keras nor a torch optimizer",
        f"Return {_SUPPORTED}.",
    )


def _unsupported(path: str, what: str, remedy: str = "") -> ModelError:
    return ModelError(path, f"optimizer(): {what} is not supported", remedy or f"Use {_SUPPORTED}.")


def _from_keras(optimizer: Any, path: str) -> OptimizerSpec:
    # By name, since each backend has its own classes; not by isinstance, since a subclass has its own updates.
    # By attribute, since get_config also calls get_config of the user's schedule, which it may not have.
    kind = _KERAS.get(type(optimizer).__name__) if type(optimizer).__module__.split(".")[0] == "keras" else None
    name = f"Keras {type(optimizer).__name__}"
    if kind is None:
        raise _unsupported(path, name)
    for option in ("use_ema", "loss_scale_factor", "gradient_accumulation_steps"):
        if value := getattr(optimizer, option, None):
            raise _unsupported(path, f"{name} with {option}={value!r}", "Remove the option.")
    decay = float(optimizer.weight_decay or 0.0)
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if decay and any(getattr(optimizer, attribute, None) for attribute in excluded):
        raise _unsupported(path, f"{name} with exclude_from_weight_decay", "Decay all variables or none.")
    common = {
        "kind": kind,
        "learning_rate": keras_rate(optimizer, path, name),
        "weight_decay": decay,
        "decoupled": decay != 0,
        "clip": _keras_clip(optimizer),
    }
    attributes = {
        "sgd": {"momentum": "momentum", "nesterov": "nesterov"},
        "adagrad": {"initial_accumulator": "initial_accumulator_value", "epsilon": "epsilon"},
        "adam": {"beta_1": "beta_1", "beta_2": "beta_2", "epsilon": "epsilon", "amsgrad": "amsgrad"},
        "rmsprop": {"rho": "rho", "momentum": "momentum", "epsilon": "epsilon", "centered": "centered"},
        "ftrl": {
            "initial_accumulator": "initial_accumulator_value",
            "l1": "l1_regularization_strength",
            "l2": "l2_regularization_strength",
            "l2_shrinkage": "l2_shrinkage_regularization_strength",
            "beta": "beta",
        },
    }[kind]
    values = {ours: getattr(optimizer, theirs) for ours, theirs in attributes.items()}
    if kind == "ftrl":
        values["power"] = -float(optimizer.learning_rate_power)
    return OptimizerSpec.model_validate(common | values)


def keras_rate(optimizer: Any, path: str, name: str) -> float:
    """The rate of a Keras optimizer; 0 if it has a schedule."""
    rate = optimizer._learning_rate
    if is_keras_schedule(rate):
        return 0.0
    if not hasattr(rate, "value"):  # a function
        remedy = "Use a number, a keras LearningRateSchedule, or elasticdl.callbacks.LearningRateScheduler."
        raise _unsupported(path, f"{name} with learning_rate={rate!r}", remedy)
    # Keras keeps it in float32: 0.1, not 0.10000000149.
    return float(str(np.float32(float(rate.value))))


def _keras_clip(optimizer: Any) -> ClipSpec | None:
    kinds: dict[str, Literal["norm", "global_norm", "value"]] = {
        "clipnorm": "norm",
        "global_clipnorm": "global_norm",
        "clipvalue": "value",
    }
    for option, kind in kinds.items():
        if limit := getattr(optimizer, option, None):
            return ClipSpec(kind=kind, limit=float(limit))
    return None


def _from_torch(torch: Any, optimizer: Any, path: str, parameters: Sequence[Any]) -> OptimizerSpec:
    kinds: dict[Any, Kind] = {
        torch.optim.SGD: "sgd",
        torch.optim.Adagrad: "adagrad",
        torch.optim.Adam: "adam",
        torch.optim.AdamW: "adam",
        torch.optim.RMSprop: "rmsprop",
    }
    kind = kinds.get(type(optimizer))
    name = f"torch {type(optimizer).__name__}"
    if kind is None:
        raise _unsupported(path, name)
    group = _one_group(optimizer, path, name)
    check_covered(optimizer, path, parameters)
    decay = float(group["weight_decay"])
    decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
    common = {
        "kind": kind,
        "flavour": "torch",
        "learning_rate": float(group["lr"]),
        "weight_decay": decay,
        "decoupled": decay != 0 and decoupled,
        "maximize": bool(group.get("maximize")),
    }
    keys = {
        "sgd": {"momentum": "momentum", "dampening": "dampening", "nesterov": "nesterov"},
        "adagrad": {
            "initial_accumulator": "initial_accumulator_value",
            "epsilon": "eps",
            "rate_decay": "lr_decay",
        },
        "adam": {"epsilon": "eps", "amsgrad": "amsgrad"},
        "rmsprop": {"rho": "alpha", "momentum": "momentum", "epsilon": "eps", "centered": "centered"},
    }[kind]
    values: dict[str, Any] = {ours: group[theirs] for ours, theirs in keys.items()}
    if kind == "adam":
        values["beta_1"], values["beta_2"] = (float(b) for b in group["betas"])
    return OptimizerSpec.model_validate(common | values)


def check_covered(optimizer: Any, path: str, parameters: Sequence[Any]) -> None:
    """Raise ModelError unless a torch optimizer has every trainable parameter."""
    covered = {id(p) for g in optimizer.param_groups for p in g["params"]}
    if any(id(p) not in covered for p in parameters):
        raise ModelError(
            path,
            f"optimizer(): torch {type(optimizer).__name__} has only some of the model's trainable parameters",
            "Pass all of them, and freeze those that should not change with `requires_grad_(False)`.",
        )


def _one_group(optimizer: Any, path: str, name: str) -> dict[str, Any]:
    first, *others = ({k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups)
    for group in others:
        different = sorted(k for k in first if group.get(k) != first[k])
        if different:
            raise _unsupported(
                path,
                f"{name} with parameter groups of different {', '.join(different)}",
                "Use the same options for all parameters.",
            )
    return first

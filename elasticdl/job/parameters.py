"""What the parameter servers hold for a model: variables, tables and the optimizer that updates them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClipSpec(_Frozen):
    """How a worker clips the gradients of a step before it pushes them, as a Keras optimizer defines it.

    `norm`: each variable to this norm; `global_norm`: all of them together; `value`: every number to [-value, value].
    """

    kind: Literal["norm", "global_norm", "value"]
    limit: float = Field(gt=0)


class OptimizerSpec(_Frozen):
    """One optimizer, in the terms of the Keras or torch object it was read from.

    `flavour` decides where the two libraries differ: Keras Adagrad and RMSprop divide by sqrt(acc + eps), torch by
    sqrt(acc) + eps; Keras Adam adds eps to sqrt(v) before the bias correction is divided out, torch after; torch keeps
    the learning rate out of its momentum. AdamW is Adam with a decoupled weight decay, AMSGrad Adam with `amsgrad`.
    """

    kind: Literal["sgd", "adagrad", "adam", "rmsprop", "ftrl"]
    flavour: Literal["keras", "torch"] = "keras"
    learning_rate: float  # of a schedule: the first one
    momentum: float = 0.0
    nesterov: bool = False
    initial_accumulator: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    dampening: float = 0.0  # of torch momentum
    amsgrad: bool = False
    rho: float = 0.9  # RMSprop's; alpha in torch
    centered: bool = False
    weight_decay: float = 0.0
    decoupled: bool = False  # the decay shrinks the weights themselves; otherwise it is added to the gradient
    maximize: bool = False
    rate_decay: float = 0.0  # of torch Adagrad: the rate is divided by 1 + steps before * this
    power: float = 0.5  # FTRL's: of the accumulator; learning_rate_power in Keras, with the opposite sign
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0
    clip: ClipSpec | None = None  # done by the workers: it needs all gradients of a step

    @property
    def slots(self) -> int:
        """How many float slots each weight carries."""
        return len(self.slot_starts)

    @property
    def slot_starts(self) -> tuple[float, ...]:
        """What each slot holds before the first gradient."""
        match self.kind:
            case "sgd":
                return (0.0,) if self.momentum else ()
            case "adagrad":
                return (self.initial_accumulator,)
            case "adam":
                return (0.0, 0.0, 0.0) if self.amsgrad else (0.0, 0.0)
            case "rmsprop":
                return (0.0,) * (1 + (self.momentum > 0) + self.centered)
            case "ftrl":
                return (self.initial_accumulator, 0.0)

    @property
    def keeps(self) -> str:
        """What the slots mean: optimizers with an equal value can continue from each other's slots."""
        if self.kind == "adam":
            return "adam with amsgrad" if self.amsgrad else "adam"
        name = "centered rmsprop" if self.kind == "rmsprop" and self.centered else self.kind
        if self.kind in ("sgd", "rmsprop") and self.momentum:
            return f"{name} with {self.flavour} momentum"  # the libraries keep different sums
        return name

    def constants(self) -> dict[str, Any]:
        """What the native optimizer is made from: everything but the rate and what workers do."""
        return self.model_dump(exclude={"learning_rate", "clip"})


class InitializerSpec(_Frozen):
    """The initial values of a row. They depend on (job seed, table, id) alone."""

    kind: Literal["constant", "uniform", "normal"] = "uniform"
    a: float = -0.05  # constant: the value; uniform: low; normal: mean
    b: float = 0.05  # uniform: high; normal: standard deviation


class VariableSpec(_Frozen):
    """A dense float32 variable. `trainable=False` ones (batch-norm statistics) are updated by summed differences."""

    name: str
    shape: tuple[int, ...]
    trainable: bool = True

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


class TableSpec(_Frozen):
    """An embedding table on the servers: rows by 64-bit id, created on first use."""

    name: str
    dim: int = Field(ge=1)
    initializer: InitializerSpec = InitializerSpec()
    input_dim: int | None = None  # known number of ids, where the layer gives one; needed to export a plain layer
    optimizer: OptimizerSpec | None = None  # where it is not the model's
    admit_after: int | None = Field(default=None, ge=1)  # pushes of an id until it gets a row
    evict_after_steps: int | None = Field(default=None, ge=1)  # steps without a push until it loses its row
    summed: bool = False  # synchronous training adds gradients up instead of averaging them: rows that count


class ParametersSpec(_Frozen):
    """Everything a model puts on the servers. The order of `variables` is the order of the flat dense buffers."""

    variables: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...] = ()
    optimizer: OptimizerSpec

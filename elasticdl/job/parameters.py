"""What a model asks the parameter servers to hold: variables, tables and the optimizer that moves them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimizerSpec(_Frozen):
    """One optimizer, in the terms of the Keras or torch object it was read from.

    `flavour` decides where the two libraries differ: Keras Adagrad divides by sqrt(acc + eps), torch by
    sqrt(acc) + eps; Keras Adam adds eps to sqrt(v) before the bias correction is divided out, torch after.
    """

    kind: Literal["sgd", "adagrad", "adam"]
    flavour: Literal["keras", "torch"] = "keras"
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    initial_accumulator: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    @property
    def slots(self) -> int:
        """How many float slots each weight carries."""
        return {"sgd": 1 if self.momentum else 0, "adagrad": 1, "adam": 2}[self.kind]


class InitializerSpec(_Frozen):
    """How a row is born. Values depend on (job seed, table, id) alone."""

    kind: Literal["constant", "uniform", "normal"] = "uniform"
    a: float = -0.05  # constant: the value; uniform: low; normal: mean
    b: float = 0.05  # uniform: high; normal: standard deviation


class VariableSpec(_Frozen):
    """A dense float32 variable. `trainable=False` ones (batch-norm statistics) move by summed differences."""

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
    """An embedding table on the servers: rows by 64-bit id, born on first use."""

    name: str
    dim: int = Field(ge=1)
    initializer: InitializerSpec = InitializerSpec()
    input_dim: int | None = None  # known number of ids, where the layer gives one; needed to export a plain layer
    optimizer: OptimizerSpec | None = None  # where it is not the model's


class ParametersSpec(_Frozen):
    """Everything a model puts on the servers. The order of `variables` is the order of the flat dense buffers."""

    variables: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...] = ()
    optimizer: OptimizerSpec

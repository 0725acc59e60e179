"""What the row store's tests share: the optimizers there are, and native objects made from their descriptions."""

from __future__ import annotations

from typing import Any, Literal

from elasticdl.job.parameters import InitializerSpec, OptimizerSpec
from elasticdl.ps import _native

UNIFORM = InitializerSpec(kind="uniform", a=-0.05, b=0.05)


def spec(kind: str, flavour: str, **more: Any) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"kind": kind, "flavour": flavour, "learning_rate": 0.05, **more})


OPTIMIZERS = {
    "sgd": spec("sgd", "keras"),
    "keras momentum": spec("sgd", "keras", momentum=0.9),
    "keras nesterov": spec("sgd", "keras", momentum=0.9, nesterov=True),
    "torch momentum": spec("sgd", "torch", momentum=0.9),
    "torch nesterov": spec("sgd", "torch", momentum=0.9, nesterov=True),
    "keras adagrad": spec("adagrad", "keras", initial_accumulator=0.1, epsilon=1e-7),
    "torch adagrad": spec("adagrad", "torch", epsilon=1e-10),
    "keras adam": spec("adam", "keras", epsilon=1e-7),
    "torch adam": spec("adam", "torch", epsilon=1e-8),
}


def native_optimizer(spec: OptimizerSpec) -> _native.Optimizer:
    return _native.Optimizer(**spec.model_dump(exclude={"learning_rate"}))


def native_store(
    dim: int, optimizer: OptimizerSpec, init: InitializerSpec = UNIFORM, seed: int = 1, **more: int
) -> _native.RowStore:
    return _native.RowStore(dim, native_optimizer(optimizer), init.kind, init.a, init.b, seed, **more)


def available_isas() -> list[Literal["scalar", "avx2", "avx512"]]:
    """The instruction sets this processor has."""
    found: list[Literal["scalar", "avx2", "avx512"]] = []
    for name in ("scalar", "avx2", "avx512"):
        try:
            _native.set_isa(name)
        except ValueError:
            continue
        found.append(name)
    _native.set_isa("best")
    return found

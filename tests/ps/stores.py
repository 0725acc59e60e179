"""What the row store's tests share: the optimizers there are, and native objects made from their descriptions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec, OptimizerSpec
from elasticdl.ps import _native

EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1, -(2**62), 2**32, -(2**32)]  # ids
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
    "keras adamw": spec("adam", "keras", epsilon=1e-7, weight_decay=0.004, decoupled=True),
    "torch adamw": spec("adam", "torch", epsilon=1e-8, weight_decay=0.01, decoupled=True),
    "keras amsgrad": spec("adam", "keras", epsilon=1e-7, amsgrad=True),
    "torch amsgrad": spec("adam", "torch", epsilon=1e-8, amsgrad=True),
    "keras rmsprop": spec("rmsprop", "keras"),
    "keras rmsprop momentum": spec("rmsprop", "keras", momentum=0.9),
    "keras rmsprop centered": spec("rmsprop", "keras", centered=True),
    "keras rmsprop centered momentum": spec("rmsprop", "keras", centered=True, momentum=0.9),
    "torch rmsprop": spec("rmsprop", "torch", rho=0.99, epsilon=1e-8),
    "torch rmsprop momentum": spec("rmsprop", "torch", rho=0.99, epsilon=1e-8, momentum=0.9),
    "torch rmsprop centered": spec("rmsprop", "torch", rho=0.99, epsilon=1e-8, centered=True),
    "torch rmsprop centered momentum": spec("rmsprop", "torch", rho=0.99, epsilon=1e-8, centered=True, momentum=0.9),
    "ftrl": spec("ftrl", "keras", initial_accumulator=0.1),
    "ftrl regularized": spec("ftrl", "keras", initial_accumulator=0.1, l1=0.01, l2=0.02, l2_shrinkage=0.03, beta=0.5),
    "torch dampening": spec("sgd", "torch", momentum=0.9, dampening=0.3),
    "torch sgd decay": spec("sgd", "torch", weight_decay=0.01),
    "torch nesterov decay": spec("sgd", "torch", momentum=0.9, nesterov=True, weight_decay=0.01),
    "torch adagrad decays": spec("adagrad", "torch", epsilon=1e-10, weight_decay=0.01, rate_decay=0.1),
    "torch adam decay": spec("adam", "torch", epsilon=1e-8, weight_decay=0.01),
    "torch rmsprop decay": spec("rmsprop", "torch", rho=0.99, epsilon=1e-8, weight_decay=0.01),
    "torch maximize": spec("adam", "torch", epsilon=1e-8, weight_decay=0.01, maximize=True),
    "keras sgd decay": spec("sgd", "keras", momentum=0.9, weight_decay=0.01, decoupled=True),
    "ftrl decay": spec("ftrl", "keras", initial_accumulator=0.1, weight_decay=0.01, decoupled=True),
}


def native_optimizer(spec: OptimizerSpec) -> _native.Optimizer:
    return _native.Optimizer(**spec.constants())


def native_store(
    dim: int, optimizer: OptimizerSpec, init: InitializerSpec = UNIFORM, seed: int = 1, **more: Any
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


ISAS = available_isas()


def ids_of(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def pulled(store: _native.RowStore, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
    out = np.full((len(ids), dim), np.nan, np.float32)
    store.pull(ids, out)
    return out


def peeked(store: _native.RowStore, ids: NDArray[np.int64], dim: int, view: int = 0) -> NDArray[np.float32]:
    out = np.full((len(ids), dim), np.nan, np.float32)
    store.peek(ids, out, view)
    return out


def changed_parts(
    store: _native.RowStore, view: int, limit: int
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """All that had changed in a marked view, as a server asks for it: a piece at a time."""
    parts, start = [], 0
    while start != -1:
        ids, rows, following = store.export_changed(view, start, limit)
        assert following == -1 or following > start
        parts.append((ids, rows))
        start = following
    return parts

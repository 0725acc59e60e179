"""What is refused, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticdl.ps import _native
from tests.ps.stores import OPTIMIZERS, ids_of, native_optimizer, native_store

ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("ids", "grads", "error", "message"),
    [
        (
            np.zeros(2, np.int32),
            ONES,
            TypeError,
            "ids: expected a C-contiguous int64 array of shape (n,), got elements of",
        ),
        (
            np.zeros(2, ">i8"),
            ONES,
            TypeError,
            "ids: expected a C-contiguous int64 array of shape (n,), got elements of",
        ),
        ([1, 2], ONES, TypeError, "ids: expected a C-contiguous int64 array of shape (n,), got an object of type list"),
        (
            np.zeros((2, 1), np.int64),
            ONES,
            ValueError,
            "ids: expected a C-contiguous int64 array of shape (n,), got shape (2, 1)",
        ),
        (np.zeros(4, np.int64)[::2], ONES, ValueError, "got one with gaps between its elements"),
        (np.zeros(3, np.int64), ONES, ValueError, "float32 array of shape (3, 3), got shape (2, 3)"),
        (
            np.zeros(2, np.int64),
            ONES.astype(float),
            TypeError,
            "grads: expected a C-contiguous float32 array of shape (2, 3)",
        ),
        (np.zeros(2, np.int64), np.asfortranarray(np.ones((2, 3), np.float32)), ValueError, "got one with gaps"),
        (np.zeros(2, np.int64), np.ones((2, 4), np.float32), ValueError, "shape (2, 3), got shape (2, 4)"),
    ],
)
def test_a_wrong_array_is_refused_with_what_was_expected_and_what_came(
    ids: object, grads: object, error: type[Exception], message: str
) -> None:
    store = native_store(3, OPTIMIZERS["sgd"])
    with pytest.raises(error) as raised:
        store.push(ids, grads, 0.1, 1)  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert len(store) == 0


def test_an_output_that_cannot_be_written_is_refused() -> None:
    out = np.ones((2, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"writable float32 array of shape .2, 3., got a read-only one"):
        native_store(3, OPTIMIZERS["sgd"]).pull(ids_of(1, 2), out)


@pytest.mark.parametrize("call", ["peek", "export_rows", "release"])
def test_a_view_that_is_not_pinned_is_refused_by_number(call: str) -> None:
    store = native_store(2, OPTIMIZERS["sgd"])
    store.release(store.pin())
    arguments = {"peek": (ids_of(1), np.zeros((1, 2), np.float32), 1), "export_rows": (0, 1, 1), "release": (1,)}
    with pytest.raises(ValueError, match="view 1 is not pinned"):
        getattr(store, call)(*arguments[call])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim: expected 1 to"),
        ({"initializer": "ones"}, "expected constant, uniform or normal, got 'ones'"),
        ({"a": 2.0}, "a must not be above b"),
        ({"initializer": "normal", "b": -1.0}, "standard deviation b must not be negative"),
        ({"b": float("inf")}, "must be finite"),
        ({"capacity": 2**32}, "capacity: at most 4294967295 rows, got 4294967296"),
    ],
)
def test_a_wrong_table_setting_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    optimizer = native_optimizer(OPTIMIZERS["sgd"])
    good: dict[str, Any] = {"dim": 2, "optimizer": optimizer, "initializer": "uniform", "a": 0.0, "b": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        _native.RowStore(**{**good, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "lion"}, "expected kind sgd, adagrad, adam, rmsprop or ftrl, got 'lion'"),
        ({"flavour": "jax"}, "expected flavour keras or torch, got 'jax'"),
        ({"momentum": -0.5}, "momentum must be from 0 to 1"),
        ({"kind": "adam", "beta_2": 1.0}, "beta_2 must be from 0 to below 1"),
        ({"kind": "adagrad", "initial_accumulator": -1.0}, "initial_accumulator must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
    ],
)
def test_a_wrong_optimizer_setting_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Optimizer(**{**OPTIMIZERS["sgd"].constants(), **changes})


def test_a_wrong_step_rate_or_instruction_set_is_refused() -> None:
    store = native_store(2, OPTIMIZERS["keras adam"])
    with pytest.raises(ValueError, match="the first applied batch is step 1, got 0"):
        store.push(ids_of(1), np.ones((1, 2), np.float32), 0.1, 0)
    with pytest.raises(ValueError, match="learning rate must be a finite number, got nan"):
        store.push(ids_of(1), np.ones((1, 2), np.float32), float("nan"), 1)
    with pytest.raises(ValueError, match="isa: expected"):
        _native.set_isa("mmx")  # type: ignore[arg-type]

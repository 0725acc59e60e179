"""Clipping gives the same gradients as an optimizer of Keras, with a table as one variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticdl.frameworks.clipping import clipped
from elasticdl.frameworks.optimizers import describe
from elasticdl.frameworks.trainable import StepResult
from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec

keras = pytest.importorskip("keras")

SHAPES, DIM, IDS = [(3, 4), (5,), (1,)], 3, 50


def step(scale: float, seed: int = 0) -> tuple[ParametersSpec, StepResult]:
    """Three variables, batch-norm state between them, and a table of which a few rows were touched."""
    draw = np.random.default_rng(seed)
    variables = [VariableSpec(name=f"v{i}", shape=s) for i, s in enumerate(SHAPES)]
    variables.insert(1, VariableSpec(name="mean", shape=(7,), trainable=False))
    size = sum(v.size for v in variables if v.trainable)
    ids = draw.permutation(IDS)[:6].astype(np.int64)
    gradients = (draw.standard_normal(size) * scale).astype(np.float32)
    rows = {"t": (ids, (draw.standard_normal((len(ids), DIM)) * scale).astype(np.float32))}
    tables = (TableSpec(name="t", dim=DIM, input_dim=IDS),)
    spec = ParametersSpec(
        variables=tuple(variables), tables=tables, optimizer=describe(keras.optimizers.SGD(0.1), "m.py")
    )
    return spec, StepResult(1.5, gradients, np.ones(7, np.float32), rows)


def dense(result: StepResult) -> list[np.ndarray]:
    """The gradients as Keras would have them with a plain embedding layer."""
    bounds = np.cumsum([int(np.prod(s)) for s in SHAPES])[:-1]
    parts = [g.reshape(s) for g, s in zip(np.split(result.gradients, bounds), SHAPES, strict=True)]
    table = np.zeros((IDS, DIM), np.float32)
    table[result.rows["t"][0]] = result.rows["t"][1]
    return [*parts, table]


@pytest.mark.parametrize("scale", [0.001, 1.0, 1000.0])
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_gradients_are_clipped_as_keras_clips_them(option: str, scale: float) -> None:
    spec, result = step(scale)
    optimizer: Any = keras.optimizers.SGD(0.1, **{option: 0.7})
    spec = spec.model_copy(update={"optimizer": describe(optimizer, "m.py")})
    expected = optimizer._clip_gradients([keras.ops.convert_to_tensor(g) for g in dense(result)])
    got = clipped(result, spec)
    for mine, theirs in zip(dense(got), expected, strict=True):
        np.testing.assert_allclose(mine, keras.ops.convert_to_numpy(theirs), rtol=1e-6, atol=1e-9)
    assert (got.loss, got.state.tolist()) == (result.loss, result.state.tolist())
    assert got.gradients.dtype == got.rows["t"][1].dtype == np.float32
    np.testing.assert_array_equal(got.rows["t"][0], result.rows["t"][0])


def test_without_clipping_a_step_stays_as_it_is() -> None:
    spec, result = step(1000.0)
    assert clipped(result, spec) is result


def test_zero_gradients_stay_zero() -> None:
    for option in ("clipnorm", "global_clipnorm"):
        spec, result = step(0.0)
        optimizer = describe(keras.optimizers.SGD(0.1, **{option: 1.0}), "m.py")
        got = clipped(result, spec.model_copy(update={"optimizer": optimizer}))
        assert not got.gradients.any() and not got.rows["t"][1].any()


def test_a_model_of_tables_alone_is_clipped() -> None:
    spec, result = step(1000.0)
    optimizer = describe(keras.optimizers.SGD(0.1, clipnorm=1.0), "m.py")
    spec = spec.model_copy(update={"variables": (), "optimizer": optimizer})
    got = clipped(StepResult(0.0, np.zeros(0, np.float32), result.state, result.rows), spec)
    assert np.linalg.norm(got.rows["t"][1]) == pytest.approx(1.0, rel=1e-6)


def test_a_norm_that_is_not_finite_does_not_hide() -> None:
    spec, result = step(1.0)
    result.gradients[0] = np.inf
    optimizer = describe(keras.optimizers.SGD(0.1, global_clipnorm=1.0), "m.py")
    got = clipped(result, spec.model_copy(update={"optimizer": optimizer}))
    assert np.isnan(got.gradients).all() and np.isnan(got.rows["t"][1]).all()

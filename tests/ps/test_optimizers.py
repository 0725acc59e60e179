"""The native optimizers against the Keras and torch objects they are read from: equal to 1e-6 over 100 steps."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.job.parameters import OptimizerSpec
from elasticdl.ps import _native
from tests.ps.oracle import update
from tests.ps.stores import OPTIMIZERS, available_isas, native_optimizer

STEPS, SIZE = 100, 37
Floats = NDArray[np.float32]


def native_run(spec: OptimizerSpec, start: Floats, grads: Floats) -> Floats:
    weights, optimizer = start.copy(), native_optimizer(spec)
    slots = np.full(SIZE * optimizer.slots, optimizer.slot_start, np.float32)
    for step, grad in enumerate(grads, 1):
        _native.update_dense(weights, slots, grad, optimizer, spec.learning_rate, step)
    return weights


def keras_run(spec: OptimizerSpec, start: Floats, grads: Floats) -> Floats:
    keras = pytest.importorskip("keras")
    optimizer = {
        "sgd": lambda: keras.optimizers.SGD(spec.learning_rate, spec.momentum, spec.nesterov),
        "adagrad": lambda: keras.optimizers.Adagrad(spec.learning_rate, spec.initial_accumulator, spec.epsilon),
        "adam": lambda: keras.optimizers.Adam(spec.learning_rate, spec.beta_1, spec.beta_2, spec.epsilon),
    }[spec.kind]()
    variable = keras.Variable(start)
    for grad in grads:
        optimizer.apply([keras.ops.convert_to_tensor(grad)], [variable])
    return np.asarray(keras.ops.convert_to_numpy(variable))


def torch_run(spec: OptimizerSpec, start: Floats, grads: Floats) -> Floats:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = {
        "sgd": lambda: torch.optim.SGD([parameter], spec.learning_rate, spec.momentum, nesterov=spec.nesterov),
        "adagrad": lambda: torch.optim.Adagrad(
            [parameter],
            spec.learning_rate,
            initial_accumulator_value=spec.initial_accumulator,
            eps=spec.epsilon,
        ),
        "adam": lambda: torch.optim.Adam([parameter], spec.learning_rate, (spec.beta_1, spec.beta_2), spec.epsilon),
    }[spec.kind]()
    for grad in grads:
        parameter.grad = torch.tensor(grad)
        optimizer.step()
    return np.asarray(parameter.detach().numpy())


def problem(seed: int = 0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    grads = random.standard_normal((STEPS, SIZE)) * 10.0 ** random.uniform(-4, 1, SIZE)
    grads[:, 3] = 0.0  # a weight that no batch touches
    return random.standard_normal(SIZE).astype(np.float32), grads.astype(np.float32)


@pytest.mark.parametrize("rate", [0.001, 0.05])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_hundred_steps_equal_those_of_the_library(name: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    spec = OPTIMIZERS[name].model_copy(update={"learning_rate": rate})
    start, grads = problem()
    library = keras_run if spec.flavour == "keras" else torch_run
    np.testing.assert_allclose(native_run(spec, start, grads), library(spec, start, grads), rtol=1e-6, atol=1e-6)


def test_plain_sgd_is_the_same_in_both_libraries() -> None:
    start, grads = problem()
    keras, torch = (OPTIMIZERS["sgd"].model_copy(update={"flavour": flavour}) for flavour in ("keras", "torch"))
    np.testing.assert_array_equal(native_run(keras, start, grads), native_run(torch, start, grads))


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_instruction_set_gives_the_bits_of_the_oracle(name: str, isa: str) -> None:
    spec, optimizer = OPTIMIZERS[name], native_optimizer(OPTIMIZERS[name])
    start, grads = problem(1)
    _native.set_isa(isa)  # type: ignore[arg-type]
    for size in range(SIZE + 1):
        weights, slots = start[:size].copy(), np.full(size * spec.slots, optimizer.slot_start, np.float32)
        expected, parts = weights.copy(), list(slots.copy().reshape(spec.slots, size))
        for step, grad in enumerate(grads[:3], 1):
            _native.update_dense(weights, slots, grad[:size].copy(), optimizer, 0.05, step)
            update(expected, parts, grad[:size], spec, 0.05, step)
        np.testing.assert_array_equal(weights, expected)
        np.testing.assert_array_equal(slots, np.array(parts, np.float32).ravel())
    _native.set_isa("best")


def test_slots_of_another_length_are_refused() -> None:
    weights = np.zeros(4, np.float32)
    adam = native_optimizer(OPTIMIZERS["keras adam"])
    with pytest.raises(ValueError, match=r"slots: expected .* of shape .8,., got shape .4,."):
        _native.update_dense(weights, np.zeros(4, np.float32), weights, adam, 0.1, 1)

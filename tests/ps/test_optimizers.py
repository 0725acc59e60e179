"""The native optimizers against the Keras and torch objects they are read from: equal to 1e-6 over 100 steps.

Rows are compared with the same objects too: what they do to rows that a batch did not touch is taken back, weights
and state, which is what the servers' laziness means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.job.parameters import InitializerSpec, OptimizerSpec
from elasticdl.ps import _native
from tests.ps.oracle import update
from tests.ps.stores import OPTIMIZERS, available_isas, native_optimizer, native_store, spec

STEPS, SIZE = 100, 37
ROWS, DIM = 12, 5
Floats = NDArray[np.float32]
ANY_POWER = spec("ftrl", "keras", initial_accumulator=0.1, power=0.7, l1=0.01)
TWINS = OPTIMIZERS | {"ftrl of another power": ANY_POWER}


def keras_optimizer(spec: OptimizerSpec) -> Any:
    keras = pytest.importorskip("keras")
    common = {"learning_rate": spec.learning_rate, "weight_decay": spec.weight_decay or None}
    make: dict[str, Callable[[], Any]] = {
        "sgd": lambda: keras.optimizers.SGD(momentum=spec.momentum, nesterov=spec.nesterov, **common),
        "adagrad": lambda: keras.optimizers.Adagrad(
            initial_accumulator_value=spec.initial_accumulator, epsilon=spec.epsilon, **common
        ),
        "adam": lambda: (keras.optimizers.AdamW if spec.weight_decay else keras.optimizers.Adam)(
            beta_1=spec.beta_1, beta_2=spec.beta_2, epsilon=spec.epsilon, amsgrad=spec.amsgrad, **common
        ),
        "rmsprop": lambda: keras.optimizers.RMSprop(
            rho=spec.rho, momentum=spec.momentum, epsilon=spec.epsilon, centered=spec.centered, **common
        ),
        "ftrl": lambda: keras.optimizers.Ftrl(
            learning_rate_power=-spec.power,
            initial_accumulator_value=spec.initial_accumulator,
            l1_regularization_strength=spec.l1,
            l2_regularization_strength=spec.l2,
            l2_shrinkage_regularization_strength=spec.l2_shrinkage,
            beta=spec.beta,
            **common,
        ),
    }
    return make[spec.kind]()


def torch_optimizer(spec: OptimizerSpec, parameter: Any) -> Any:
    torch = pytest.importorskip("torch")
    common = {
        "params": [parameter],
        "lr": spec.learning_rate,
        "weight_decay": spec.weight_decay,
        "maximize": spec.maximize,
    }
    make: dict[str, Callable[[], Any]] = {
        "sgd": lambda: torch.optim.SGD(
            momentum=spec.momentum, dampening=spec.dampening, nesterov=spec.nesterov, **common
        ),
        "adagrad": lambda: torch.optim.Adagrad(
            lr_decay=spec.rate_decay, initial_accumulator_value=spec.initial_accumulator, eps=spec.epsilon, **common
        ),
        "adam": lambda: (torch.optim.AdamW if spec.decoupled else torch.optim.Adam)(
            betas=(spec.beta_1, spec.beta_2), eps=spec.epsilon, amsgrad=spec.amsgrad, **common
        ),
        "rmsprop": lambda: torch.optim.RMSprop(
            alpha=spec.rho, momentum=spec.momentum, eps=spec.epsilon, centered=spec.centered, **common
        ),
    }
    return make[spec.kind]()


class KerasTwin:
    """A variable and the Keras optimizer that moves it."""

    def __init__(self, spec: OptimizerSpec, start: Floats) -> None:
        self.keras = pytest.importorskip("keras")
        self.optimizer, self.variable = keras_optimizer(spec), self.keras.Variable(start)
        self.optimizer.build([self.variable])

    def step(self, grad: Floats) -> None:
        self.optimizer.apply([self.keras.ops.convert_to_tensor(grad)], [self.variable])

    def value(self) -> Floats:
        return self.read(self.variable)

    def read(self, variable: Any) -> Floats:
        return np.array(variable.value.detach().numpy())

    def step_rows(self, grad: Floats, touched: NDArray[np.bool_]) -> None:
        """A dense step, taken back for the rows that were not touched."""
        kept = [self.variable, *(v for v in self.optimizer.variables if tuple(v.shape) == tuple(grad.shape))]
        before = [self.read(v) for v in kept]
        self.step(grad)
        for v, old in zip(kept, before, strict=True):
            v.assign(np.where(touched[:, None], self.read(v), old))


class TorchTwin:
    """A parameter and the torch optimizer that moves it."""

    def __init__(self, spec: OptimizerSpec, start: Floats) -> None:
        self.torch = pytest.importorskip("torch")
        self.parameter = self.torch.nn.Parameter(self.torch.tensor(start))
        self.optimizer = torch_optimizer(spec, self.parameter)

    def step(self, grad: Floats) -> None:
        self.parameter.grad = self.torch.tensor(grad)
        self.optimizer.step()

    def value(self) -> Floats:
        return np.array(self.parameter.detach().numpy())

    def state(self, like: Floats) -> dict[str, Any]:
        found = self.optimizer.state[self.parameter]
        return {k: v for k, v in found.items() if self.torch.is_tensor(v) and tuple(v.shape) == like.shape}

    def step_rows(self, grad: Floats, touched: NDArray[np.bool_]) -> None:
        """A dense step, taken back for the rows that were not touched."""
        weights, state = self.value(), {k: v.clone() for k, v in self.state(grad).items()}
        self.step(grad)
        away = self.torch.tensor(~touched)
        with self.torch.no_grad():
            self.parameter[away] = self.torch.tensor(weights)[away]
            for name, tensor in self.state(grad).items():
                # A state made by this very step holds the zeros it was made with where nothing was touched.
                tensor[away] = state[name][away] if name in state else 0.0


def twin_of(spec: OptimizerSpec, start: Floats) -> KerasTwin | TorchTwin:
    return KerasTwin(spec, start) if spec.flavour == "keras" else TorchTwin(spec, start)


def native_run(spec: OptimizerSpec, start: Floats, grads: Floats) -> Floats:
    weights, optimizer = start.copy(), native_optimizer(spec)
    slots = np.repeat(np.array(optimizer.slot_starts, np.float32), SIZE)
    for step, grad in enumerate(grads, 1):
        _native.update_dense(weights, slots, grad, optimizer, spec.learning_rate, step)
    return weights


def assert_close(actual: Floats, expected: Floats, reach: Floats) -> None:
    """Equal to 1e-6 absolute and 1e-6 of the largest value that the weight had on its way."""
    np.testing.assert_array_less(np.abs(actual - expected), 1e-6 * (1.0 + reach))


def problem(seed: int = 0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    grads = random.standard_normal((STEPS, SIZE)) * 10.0 ** random.uniform(-4, 1, SIZE)
    grads[:, 3] = 0.0  # a weight that no batch touches
    return random.standard_normal(SIZE).astype(np.float32), grads.astype(np.float32)


@pytest.fixture(autouse=True)
def best_instructions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    yield
    _native.set_isa("best")


@pytest.mark.parametrize("rate", [0.001, 0.05])
@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_hundred_steps_equal_those_of_the_library(name: str, rate: float) -> None:
    spec = TWINS[name].model_copy(update={"learning_rate": rate})
    start, grads = problem()
    twin, reach = twin_of(spec, start), np.abs(start)
    for grad in grads:
        twin.step(grad)
        reach = np.maximum(reach, np.abs(twin.value()))
    for isa in available_isas():
        _native.set_isa(isa)
        assert_close(native_run(spec, start, grads), twin.value(), reach)


def row_problem(seed: int = 0) -> tuple[Floats, list[tuple[NDArray[np.int64], Floats]]]:
    """What rows start as; the ids and gradients of each step. The last row is never touched."""
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.uniform(-3, 1, DIM)
    steps = []
    for _ in range(STEPS):
        ids = random.permutation(ROWS - 1)[: random.integers(1, ROWS - 1)].astype(np.int64)
        steps.append((ids, (random.standard_normal((len(ids), DIM)) * scale).astype(np.float32)))
    return random.standard_normal((ROWS, DIM)).astype(np.float32), steps


def native_rows(spec: OptimizerSpec, start: Floats, steps: list[tuple[NDArray[np.int64], Floats]]) -> Floats:
    """The rows after these pushes, each half of a gradient a push of its own to the same id."""
    store = native_store(DIM, spec, InitializerSpec(kind="constant", a=0.0))
    slots = np.tile(np.repeat(np.array(spec.slot_starts, np.float32), DIM), (ROWS, 1))
    ids = np.arange(ROWS, dtype=np.int64)
    store.import_rows(ids, np.hstack([start, slots]).astype(np.float32))
    for step, (touched, grads) in enumerate(steps, 1):
        half = (grads / 2).astype(np.float32)
        store.push(np.concatenate([touched, touched]), np.vstack([half, half]), spec.learning_rate, step)
    out = np.empty((ROWS, DIM), np.float32)
    store.peek(ids, out)
    return out


@pytest.mark.parametrize("name", sorted(TWINS))
def test_rows_move_like_the_librarys_weights_in_the_steps_that_touch_them(name: str) -> None:
    spec = TWINS[name].model_copy(update={"learning_rate": 0.01})
    start, steps = row_problem()
    twin, reach = twin_of(spec, start), np.abs(start)
    for ids, grads in steps:
        dense = np.zeros((ROWS, DIM), np.float32)
        dense[ids] = grads
        twin.step_rows(dense, np.isin(np.arange(ROWS), ids))
        reach = np.maximum(reach, np.abs(twin.value()))
    np.testing.assert_array_equal(twin.value()[-1], start[-1])
    for isa in available_isas():
        _native.set_isa(isa)
        assert_close(native_rows(spec, start, steps), twin.value(), reach)


@pytest.mark.parametrize("name", ["sgd", "torch adagrad", "keras adagrad"])
def test_rows_of_optimizers_without_memory_of_time_equal_the_dense_library(name: str) -> None:
    """A gradient of zero moves nothing, so that leaving a row out is the same."""
    spec = OPTIMIZERS[name]
    start, steps = row_problem(1)
    twin = twin_of(spec, start)
    for ids, grads in steps:
        dense = np.zeros((ROWS, DIM), np.float32)
        dense[ids] = grads
        twin.step(dense)
    np.testing.assert_allclose(native_rows(spec, start, steps), twin.value(), rtol=1e-6, atol=1e-6)


def sparse_run(make: Callable[[Any, Any], Any], start: Floats, steps: list[tuple[NDArray[np.int64], Floats]]) -> Floats:
    """`torch.nn.Embedding(sparse=True)`, whose gradients reach the optimizer as sparse tensors."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.Embedding(ROWS, DIM, sparse=True, _weight=torch.tensor(start))
    optimizer = make(torch, layer.parameters())
    for ids, grads in steps:
        optimizer.zero_grad()
        (layer(torch.tensor(ids)) * torch.tensor(grads)).sum().backward()
        optimizer.step()
    return np.array(layer.weight.detach().numpy())


def test_adam_rows_equal_torchs_sparse_adam() -> None:
    start, steps = row_problem(2)
    # An epsilon too small to matter: SparseAdam adds it at another place than Adam does.
    spec = OPTIMIZERS["torch adam"].model_copy(update={"learning_rate": 0.01, "epsilon": 1e-16})
    expected = sparse_run(lambda t, p: t.optim.SparseAdam(p, lr=0.01, eps=1e-16), start, steps)
    np.testing.assert_allclose(native_rows(spec, start, steps), expected, rtol=1e-6, atol=1e-6)


def test_adagrad_rows_equal_a_sparse_embedding_with_adagrad() -> None:
    start, steps = row_problem(3)
    spec = OPTIMIZERS["torch adagrad"].model_copy(update={"learning_rate": 0.01})
    expected = sparse_run(lambda t, p: t.optim.Adagrad(p, lr=0.01), start, steps)
    np.testing.assert_allclose(native_rows(spec, start, steps), expected, rtol=1e-6, atol=1e-6)


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
        weights, slots = start[:size].copy(), np.repeat(np.array(optimizer.slot_starts, np.float32), size)
        expected, parts = weights.copy(), list(slots.copy().reshape(spec.slots, size))
        for step, grad in enumerate(grads[:3], 1):
            _native.update_dense(weights, slots, grad[:size].copy(), optimizer, 0.05, step)
            update(expected, parts, grad[:size], spec, 0.05, step)
        np.testing.assert_array_equal(weights, expected)
        np.testing.assert_array_equal(slots, np.array(parts, np.float32).ravel())


@pytest.mark.parametrize("name", sorted(TWINS))
def test_description_and_native_optimizer_agree_on_the_slots(name: str) -> None:
    optimizer = native_optimizer(TWINS[name])
    assert optimizer.slots == TWINS[name].slots
    np.testing.assert_array_equal(np.float32(TWINS[name].slot_starts), np.float32(optimizer.slot_starts))


def test_a_new_row_starts_with_every_slot_at_its_own_value() -> None:
    store = native_store(2, OPTIMIZERS["ftrl"], InitializerSpec(kind="constant", a=0.5))
    store.pull(np.array([7], np.int64), np.empty((1, 2), np.float32))
    np.testing.assert_array_equal(store.export_rows(0, 1)[1], np.float32([[0.5, 0.5, 0.1, 0.1, 0.0, 0.0]]))


@pytest.mark.parametrize("name", ["ftrl", "ftrl decay"])
def test_a_rate_of_zero_moves_nothing_though_ftrl_divides_by_it(name: str) -> None:
    start, grads = problem()
    spec = OPTIMIZERS[name].model_copy(update={"learning_rate": 0.0})
    np.testing.assert_array_equal(native_run(spec, start, grads[:3]), start)


@pytest.mark.parametrize("flavour", ["keras", "torch"])
def test_a_constant_gradient_does_not_make_centered_rmsprop_a_nan(flavour: str) -> None:
    """The square's mean and the mean's square meet, and rounding may put the difference below zero."""
    spec = OPTIMIZERS[f"{flavour} rmsprop centered"]
    start = np.zeros(SIZE, np.float32)
    grads = np.tile(np.linspace(1, 1000, SIZE, dtype=np.float32), (3000, 1))
    assert np.isfinite(native_run(spec, start, grads)).all()


def test_slots_of_another_length_are_refused() -> None:
    weights = np.zeros(4, np.float32)
    adam = native_optimizer(OPTIMIZERS["keras adam"])
    with pytest.raises(ValueError, match=r"slots: expected .* of shape .8,., got shape .4,."):
        _native.update_dense(weights, np.zeros(4, np.float32), weights, adam, 0.1, 1)


def test_torch_has_no_ftrl() -> None:
    with pytest.raises(ValueError, match="torch has no ftrl"):
        native_optimizer(spec("ftrl", "torch"))


def test_optimizers_that_keep_the_same_have_the_same_slots() -> None:
    """A checkpoint may be taken up by an optimizer that keeps the same, and by no other."""
    kept = {o.keeps: o.slots for o in OPTIMIZERS.values()}
    assert all(kept[o.keeps] == o.slots for o in OPTIMIZERS.values())
    assert OPTIMIZERS["keras amsgrad"].keeps == "adam with amsgrad"
    assert OPTIMIZERS["keras rmsprop centered momentum"].keeps == "centered rmsprop with keras momentum"
    assert OPTIMIZERS["keras adamw"].keeps == OPTIMIZERS["torch adam"].keeps == "adam"

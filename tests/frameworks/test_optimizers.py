"""Optimizer objects become descriptions, or errors that name what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.errors import ModelError
from elasticdl.frameworks.optimizers import describe
from elasticdl.job.parameters import OptimizerSpec

torch = pytest.importorskip("torch", reason="describes torch optimizers")
keras = pytest.importorskip("keras")


def parameters() -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]


def spec(kind: str, rate: float, **more: Any) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"kind": kind, "learning_rate": rate, **more})


def torch_spec(kind: str, rate: float, **more: Any) -> OptimizerSpec:
    return spec(kind, rate, flavour="torch", **more)


KERAS = [
    (lambda o: o.SGD(0.1), spec("sgd", 0.1)),
    (lambda o: o.SGD(0.1, momentum=0.9, nesterov=True), spec("sgd", 0.1, momentum=0.9, nesterov=True)),
    (lambda o: o.SGD(0.1, weight_decay=0.01), spec("sgd", 0.1, weight_decay=0.01, decoupled=True)),
    (
        lambda o: o.Adagrad(0.5, initial_accumulator_value=0.2, epsilon=1e-5),
        spec("adagrad", 0.5, initial_accumulator=0.2, epsilon=1e-5),
    ),
    (
        lambda o: o.Adam(0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-6),
        spec("adam", 0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-6),
    ),
    (lambda o: o.Adam(0.25, amsgrad=True), spec("adam", 0.25, amsgrad=True)),
    (lambda o: o.AdamW(0.25, weight_decay=0.02), spec("adam", 0.25, weight_decay=0.02, decoupled=True)),
    (
        lambda o: o.RMSprop(0.25, rho=0.8, momentum=0.7, epsilon=1e-6, centered=True),
        spec("rmsprop", 0.25, rho=0.8, momentum=0.7, epsilon=1e-6, centered=True),
    ),
    (
        lambda o: o.Ftrl(
            0.25,
            learning_rate_power=-0.6,
            initial_accumulator_value=0.3,
            l1_regularization_strength=0.1,
            l2_regularization_strength=0.2,
            l2_shrinkage_regularization_strength=0.4,
            beta=0.5,
        ),
        spec("ftrl", 0.25, power=0.6, initial_accumulator=0.3, l1=0.1, l2=0.2, l2_shrinkage=0.4, beta=0.5),
    ),
    (lambda o: o.SGD(0.1, clipnorm=2.0), spec("sgd", 0.1, clip={"kind": "norm", "limit": 2.0})),
    (lambda o: o.SGD(0.1, global_clipnorm=2.0), spec("sgd", 0.1, clip={"kind": "global_norm", "limit": 2.0})),
    (lambda o: o.SGD(0.1, clipvalue=2.0), spec("sgd", 0.1, clip={"kind": "value", "limit": 2.0})),
]

TORCH = [
    (lambda o, p: o.SGD(p, lr=0.1), torch_spec("sgd", 0.1)),
    (
        lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        torch_spec("sgd", 0.1, momentum=0.9, nesterov=True),
    ),
    (
        lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01, maximize=True),
        torch_spec("sgd", 0.1, momentum=0.9, dampening=0.5, weight_decay=0.01, maximize=True),
    ),
    (
        lambda o, p: o.Adagrad(p, lr=0.5, initial_accumulator_value=0.2, lr_decay=0.1, weight_decay=0.01),
        torch_spec("adagrad", 0.5, initial_accumulator=0.2, epsilon=1e-10, rate_decay=0.1, weight_decay=0.01),
    ),
    (
        lambda o, p: o.Adam([{"params": p[:1]}, {"params": p[1:]}], lr=0.25, betas=(0.8, 0.99)),
        torch_spec("adam", 0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-8),
    ),
    (
        lambda o, p: o.Adam(p, lr=0.25, amsgrad=True, weight_decay=0.1),
        torch_spec("adam", 0.25, epsilon=1e-8, amsgrad=True, weight_decay=0.1),
    ),
    (
        lambda o, p: o.AdamW(p, lr=0.25),
        torch_spec("adam", 0.25, epsilon=1e-8, weight_decay=0.01, decoupled=True),
    ),
    (
        lambda o, p: o.RMSprop(p, lr=0.25, alpha=0.8, momentum=0.7, centered=True, weight_decay=0.1),
        torch_spec("rmsprop", 0.25, rho=0.8, momentum=0.7, epsilon=1e-8, centered=True, weight_decay=0.1),
    ),
]


def excluding(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(("make", "expected"), KERAS)
def test_a_keras_optimizer_is_described(make: Any, expected: OptimizerSpec) -> None:
    assert describe(make(keras.optimizers), "m.py") == expected


@pytest.mark.parametrize(("make", "expected"), TORCH)
def test_a_torch_optimizer_is_described(make: Any, expected: OptimizerSpec) -> None:
    given = parameters()
    assert describe(make(torch.optim, given), "m.py", given) == expected


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda o: o.Nadam(0.1), "Keras Nadam"),
        (lambda o: o.LossScaleOptimizer(o.SGD(0.1)), "Keras LossScaleOptimizer"),
        (lambda o: o.SGD(0.1, use_ema=True), "Keras SGD with use_ema=True"),
        (lambda o: o.SGD(0.1, loss_scale_factor=2.0), "Keras SGD with loss_scale_factor=2.0"),
        (lambda o: o.SGD(0.1, gradient_accumulation_steps=2), "Keras SGD with gradient_accumulation_steps=2"),
        (lambda o: excluding(o.AdamW(0.1)), "Keras AdamW with exclude_from_weight_decay"),
        (lambda o: o.SGD(lambda: 0.1), "Keras SGD with learning_rate=<function"),
        (lambda o: type("MySGD", (o.SGD,), {})(0.1), "Keras MySGD"),
    ],
)
def test_what_keras_has_and_we_do_not_is_named(make: Any, named: str) -> None:
    with pytest.raises(ModelError, match="not supported") as caught:
        describe(make(keras.optimizers), "m.py")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda o, p: o.Adamax(p, lr=0.1), "torch Adamax is not supported"),
        (lambda o, p: o.SparseAdam(p, lr=0.1), "torch SparseAdam is not supported"),
        (
            lambda o, p: o.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}], lr=0.1),
            "torch SGD with parameter groups of different lr",
        ),
        (lambda o, p: o.SGD(p[:1], lr=0.1), "only some of the model's trainable parameters"),
    ],
)
def test_what_torch_has_and_we_do_not_is_named(make: Any, named: str) -> None:
    given = parameters()
    with pytest.raises(ModelError) as caught:
        describe(make(torch.optim, given), "m.py", given)
    assert named in str(caught.value)


def test_something_else_is_no_optimizer() -> None:
    with pytest.raises(ModelError, match="returned str, which is neither a Keras nor a torch optimizer"):
        describe("sgd", "m.py")

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


KERAS = [
    (lambda o: o.SGD(0.1), OptimizerSpec(kind="sgd", learning_rate=0.1)),
    (
        lambda o: o.SGD(0.1, momentum=0.9, nesterov=True),
        OptimizerSpec(kind="sgd", learning_rate=0.1, momentum=0.9, nesterov=True),
    ),
    (
        lambda o: o.Adagrad(0.5, initial_accumulator_value=0.2, epsilon=1e-5),
        OptimizerSpec(kind="adagrad", learning_rate=0.5, initial_accumulator=0.2, epsilon=1e-5),
    ),
    (
        lambda o: o.Adam(0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-6),
        OptimizerSpec(kind="adam", learning_rate=0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-6),
    ),
]

TORCH = [
    (lambda o, p: o.SGD(p, lr=0.1), OptimizerSpec(kind="sgd", flavour="torch", learning_rate=0.1)),
    (
        lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        OptimizerSpec(kind="sgd", flavour="torch", learning_rate=0.1, momentum=0.9, nesterov=True),
    ),
    (
        lambda o, p: o.Adagrad(p, lr=0.5, initial_accumulator_value=0.2),
        OptimizerSpec(kind="adagrad", flavour="torch", learning_rate=0.5, initial_accumulator=0.2, epsilon=1e-10),
    ),
    (
        lambda o, p: o.Adam([{"params": p[:1]}, {"params": p[1:]}], lr=0.25, betas=(0.8, 0.99)),
        OptimizerSpec(kind="adam", flavour="torch", learning_rate=0.25, beta_1=0.8, beta_2=0.99, epsilon=1e-8),
    ),
]


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
        (lambda o: o.RMSprop(0.1), "Keras RMSprop"),
        (lambda o: o.AdamW(0.1), "Keras AdamW"),
        (lambda o: o.SGD(o.schedules.ExponentialDecay(0.1, 10, 0.9)), "Keras SGD with the schedule ExponentialDecay"),
        (lambda o: o.SGD(0.1, clipnorm=1.0), "Keras SGD with clipnorm=1.0"),
        (lambda o: o.SGD(0.1, clipvalue=0.5), "Keras SGD with clipvalue=0.5"),
        (lambda o: o.Adam(0.1, global_clipnorm=1.0), "Keras Adam with global_clipnorm=1.0"),
        (lambda o: o.Adam(0.1, amsgrad=True), "Keras Adam with amsgrad=True"),
        (lambda o: o.Adagrad(0.1, weight_decay=0.01), "Keras Adagrad with weight_decay=0.01"),
        (lambda o: o.SGD(0.1, use_ema=True), "Keras SGD with use_ema=True"),
        (lambda o: o.SGD(0.1, gradient_accumulation_steps=2), "Keras SGD with gradient_accumulation_steps=2"),
        (lambda o: type("MySGD", (o.SGD,), {})(0.1), "Keras MySGD"),
    ],
)
def test_what_keras_has_and_we_do_not_is_named(make: Any, named: str) -> None:
    with pytest.raises(ModelError, match="not supported") as caught:
        describe(make(keras.optimizers), "m.py")
    assert named in str(caught.value)
    assert "Adagrad and Adam" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda o, p: o.RMSprop(p, lr=0.1), "torch RMSprop"),
        (lambda o, p: o.AdamW(p, lr=0.1), "torch AdamW"),
        (lambda o, p: o.SGD(p, lr=0.1, weight_decay=0.1), "torch SGD with weight_decay=0.1"),
        (lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "torch SGD with dampening=0.5"),
        (lambda o, p: o.Adam(p, lr=0.1, amsgrad=True), "torch Adam with amsgrad=True"),
        (lambda o, p: o.Adagrad(p, lr=0.1, lr_decay=0.1), "torch Adagrad with lr_decay=0.1"),
        (lambda o, p: o.SGD(p, lr=0.1, maximize=True), "torch SGD with maximize=True"),
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

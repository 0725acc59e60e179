"""Learning-rate schedules of the user's file become rates by version and epoch, or errors that name them."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from elasticdl.errors import ModelError, ScheduleError
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelRequest
from elasticdl.frameworks.schedules import NO_RATE, Schedule

keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch", reason="torch schedulers")

KERAS = """
import keras
from elasticdl.callbacks import LearningRateScheduler

def custom_model():
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(1)(x))

def loss(labels, predictions):
    return predictions

def feed(records, mode, metadata):
    return records
"""
TORCH = """
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import *
from elasticdl.callbacks import LearningRateScheduler

def custom_model():
    return torch.nn.Linear(2, 1)

def loss(labels, predictions):
    return predictions.mean()

def feed(records, mode, metadata):
    return records
"""
SGD = "\ndef optimizer(): return keras.optimizers.SGD(0.5)\n"


def read(zoo: Path, text: str) -> tuple[Schedule | None, float]:
    """The schedule of the model file, and the rate of the optimizer's description."""
    (zoo / "net.py").write_text(text)
    model = load_trainable(ModelRequest(str(zoo), "net.custom_model"), 1)
    return model.schedule, model.parameters.optimizer.learning_rate


def schedule_of(zoo: Path, text: str) -> Schedule:
    schedule, _ = read(zoo, text)
    assert schedule is not None
    return schedule


def wrong(zoo: Path, text: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read(zoo, text)
    assert str(zoo / "net.py") in str(caught.value)
    return caught.value


def test_a_constant_rate_is_no_schedule(zoo: Path) -> None:
    schedule, rate = read(zoo, KERAS + SGD + "\ndef callbacks(): return []\n")
    assert (schedule, rate) == (None, 0.5)


@pytest.mark.parametrize(
    "made",
    [
        "ExponentialDecay(0.1, 10, 0.9)",
        "PiecewiseConstantDecay([3, 7], [1.0, 0.5, 0.1])",
        "CosineDecay(0.1, 20, warmup_target=0.5, warmup_steps=5)",
        "PolynomialDecay(0.1, 30)",
        "InverseTimeDecay(0.1, 5, 0.5)",
    ],
)
def test_a_keras_schedule_gives_what_keras_takes_at_that_step(zoo: Path, made: str) -> None:
    text = f"\ndef optimizer(): return keras.optimizers.Adam(keras.optimizers.schedules.{made})\n"
    schedule, rate = read(zoo, KERAS + text)
    assert schedule is not None
    own = schedule.code.optimizer()  # another one, which Keras steps by itself
    variable = keras.Variable(np.zeros(1, np.float32))
    for version in range(25):
        expected = float(own.learning_rate)  # of the step that Keras would take now
        assert schedule.rate(version, epoch=3) == pytest.approx(expected, rel=1e-6)
        own.apply([keras.ops.ones(1)], [variable])
    assert rate == schedule.rate(0, 0)
    assert schedule.name == f"the schedule {made.split('(')[0]}"


OWN = """
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return {value}

def optimizer(): return keras.optimizers.SGD(Warmup())
"""


def test_a_schedule_of_the_users_own_needs_no_configuration(zoo: Path) -> None:
    schedule = schedule_of(zoo, KERAS + OWN.format(value="keras.ops.minimum(1.0, keras.ops.cast(step, 'float32') / 4)"))
    assert [schedule.rate(version, 0) for version in (0, 1, 4, 100)] == [0.0, 0.25, 1.0, 1.0]


def test_a_rate_of_zero_is_sent_as_something_that_the_servers_do_not_take_for_their_own(zoo: Path) -> None:
    schedule = schedule_of(zoo, KERAS + OWN.format(value="step * 0.5"))
    assert schedule.rate(0, 0) == 0.0
    assert schedule.to_send(0, 0) == NO_RATE
    assert schedule.to_send(3, 0) == 1.5
    assert np.float32(NO_RATE) == 0 and NO_RATE / 1e9 > 0


def test_a_version_far_on_gives_its_rate_at_once_as_after_a_restore(zoo: Path) -> None:
    before = schedule_of(zoo, KERAS + OWN.format(value="0.9 ** keras.ops.cast(step, 'float32')"))
    rates = [before.rate(version, 0) for version in range(40)]
    after = schedule_of(zoo, KERAS + OWN.format(value="0.9 ** keras.ops.cast(step, 'float32')"))
    assert after.rate(39, 0) == rates[39]


def test_our_scheduler_goes_by_the_version_alone(zoo: Path) -> None:
    text = KERAS + SGD + "\ndef callbacks(): return [LearningRateScheduler(lambda v: 0.1 if v < 5 else 0.01)]\n"
    schedule, rate = read(zoo, text)
    assert schedule is not None and rate == 0.1
    assert [schedule.rate(v, e) for v, e in ((0, 9), (4, 9), (5, 0), (1000, 0))] == [0.1, 0.1, 0.01, 0.01]
    assert schedule.name == "LearningRateScheduler(<lambda>)"


def test_kerass_scheduler_goes_by_the_epoch_alone(zoo: Path) -> None:
    text = """
def by_epoch(epoch):
    return 1.0 / (1 + epoch)

def callbacks(): return [keras.callbacks.LearningRateScheduler(by_epoch)]
"""
    schedule = schedule_of(zoo, KERAS + SGD + text)
    assert [schedule.rate(version, epoch) for version, epoch in ((0, 0), (70, 0), (0, 1), (5, 3))] == [1, 1, 0.5, 0.25]
    assert schedule.name == "Keras LearningRateScheduler(by_epoch)"


def test_kerass_scheduler_may_go_on_from_the_rate_of_the_epoch_before(zoo: Path) -> None:
    """The first example of Keras' own page; a worker that starts in epoch 3 arrives at the same rate."""
    text = """
def scheduler(epoch, lr):
    return lr if epoch < 2 else float(lr * 0.5)

def callbacks(): return [keras.callbacks.LearningRateScheduler(scheduler)]
"""
    assert schedule_of(zoo, KERAS + SGD + text).rate(99, 3) == 0.125
    schedule = schedule_of(zoo, KERAS + SGD + text)
    assert [schedule.rate(0, epoch) for epoch in (0, 1, 2, 3, 2)] == [0.5, 0.5, 0.25, 0.125, 0.25]


TORCH_SCHEDULERS = [
    "StepLR(o, 3, gamma=0.5)",
    "LambdaLR(o, lambda n: 0.9 ** n)",
    "CosineAnnealingLR(o, 10)",
    "ExponentialLR(o, 0.8)",
    "SequentialLR(o, [ConstantLR(o, 0.1, 3), ExponentialLR(o, 0.9)], [3])",
    "OneCycleLR(o, 1.0, total_steps=40, cycle_momentum=False)",
]


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("made", TORCH_SCHEDULERS)
def test_a_torch_scheduler_gives_what_torch_takes_at_that_step(zoo: Path, made: str, interval: str) -> None:
    text = f"\ndef optimizer(parameters):\n    o = SGD(parameters, lr=0.5)\n    return o, {made}, '{interval}'\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch warns when the order of calls is not its own
        schedule = schedule_of(zoo, TORCH + text)
    parameter = torch.nn.Parameter(torch.zeros(1))
    own, scheduler, _ = schedule.code.optimizer([parameter])  # others, which torch steps by itself
    expected = []
    for _ in range(20):
        expected.append(own.param_groups[0]["lr"])
        own.step()
        scheduler.step()

    def rate(n: int) -> float:
        return schedule.rate(n, 0) if interval == "step" else schedule.rate(0, n)

    assert [rate(n) for n in range(20)] == pytest.approx(expected)
    # A worker may see versions again, and jump.
    assert [rate(n) for n in (4, 19, 0, 11)] == pytest.approx([expected[n] for n in (4, 19, 0, 11)])
    assert schedule.name == f"torch {made.split('(')[0]} by {interval}"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("o, StepLR(o, 3)", "torch's StepLR but not whether it counts steps or epochs"),
        ("o, StepLR(o, 3), 'batch'", "torch's StepLR but not whether it counts steps or epochs"),
        ("o, 0.5", "optimizer() returned a tuple of 2"),
        ("o, ReduceLROnPlateau(o), 'epoch'", "torch ReduceLROnPlateau is not supported: it depends on a metric"),
        ("o, StepLR(SGD(parameters, lr=1.0), 3), 'step'", "torch StepLR belongs to another optimizer"),
        ("o, OneCycleLR(o, 1.0, total_steps=9), 'step'", "torch OneCycleLR also changes momentum"),
    ],
)
def test_what_a_torch_scheduler_cannot_do_here_is_said(zoo: Path, returned: str, message: str) -> None:
    text = f"\ndef optimizer(parameters):\n    o = SGD(parameters, lr=0.5, momentum=0.9)\n    return {returned}\n"
    assert message in str(wrong(zoo, TORCH + text))


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ("keras.callbacks.ReduceLROnPlateau()", "callbacks(): keras's ReduceLROnPlateau is not supported"),
        ("keras.callbacks.EarlyStopping()", "callbacks(): keras's EarlyStopping is not supported"),
        ("print", "callbacks(): builtin_function_or_method is not supported"),
        ("type('Mine', (LearningRateScheduler,), {})(print)", "Mine is not supported"),
        ("LearningRateScheduler(3)", "LearningRateScheduler: schedule is int, not a function"),
    ],
)
def test_other_callbacks_are_refused_by_name_with_those_that_are_not(zoo: Path, callback: str, message: str) -> None:
    error = str(wrong(zoo, KERAS + SGD + f"\ndef callbacks(): return [{callback}]\n"))
    assert message in error
    if "not supported" in message:
        assert "Use keras.callbacks.LearningRateScheduler (by epoch)" in error


def test_two_schedules_are_one_too_many(zoo: Path) -> None:
    both = "\ndef callbacks(): return [LearningRateScheduler(lambda v: 0.1), LearningRateScheduler(lambda v: 0.2)]\n"
    assert "all set the learning rate" in str(wrong(zoo, KERAS + SGD + both))


def test_a_schedule_in_the_optimizer_leaves_no_room_for_kerass_callback(zoo: Path) -> None:
    text = (
        OWN.format(value="0.1") + "\ndef callbacks(): return [keras.callbacks.LearningRateScheduler(lambda e: 0.1)]\n"
    )
    assert "the optimizer has its own schedule" in str(wrong(zoo, KERAS + text))


@pytest.mark.parametrize(("value", "shown"), [("float('nan')", "nan"), ("-0.5", "-0.5"), ("float('inf')", "inf")])
def test_what_is_no_rate_is_refused_with_the_schedules_name(zoo: Path, value: str, shown: str) -> None:
    error = wrong(zoo, KERAS + OWN.format(value=value))
    assert f"the schedule Warmup returned {shown} as the learning rate of version 0, epoch 0" in str(error)


def test_a_schedule_that_raises_later_shows_the_users_own_lines(zoo: Path) -> None:
    text = """
def by_version(version):
    return 0.1 if version < 10 else 1 / 0

def callbacks(): return [LearningRateScheduler(by_version)]
"""
    schedule = schedule_of(zoo, KERAS + SGD + text)
    with pytest.raises(ScheduleError) as caught:
        schedule.rate(10, 2)
    assert "computing the learning rate of version 10, epoch 2 with LearningRateScheduler(by_version)" in str(
        caught.value
    )
    assert "in by_version" in caught.value.traceback and "ZeroDivisionError" in caught.value.traceback
    assert "elasticdl/frameworks" not in caught.value.traceback


def test_a_schedule_that_gives_no_number_is_refused(zoo: Path) -> None:
    text = "\ndef callbacks(): return [LearningRateScheduler(lambda version: 'fast')]\n"
    assert "with LearningRateScheduler(<lambda>)" in str(wrong(zoo, KERAS + SGD + text))


def test_importing_the_callbacks_imports_no_framework() -> None:
    script = "import sys, elasticdl.callbacks; print([m for m in ('torch', 'keras', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("example", "rates"),
    [
        (0, {(0, 0): 0.001, (5000, 0): 0.0005, (10_000, 0): 0.0}),
        (1, {(0, 0): 0.1, (0, 9): 0.1, (0, 11): 0.081}),
        (2, {(0, 0): 0.1, (999, 5): 0.1, (1000, 0): 0.01}),
        (3, {(0, 0): 0.001, (77, 29): 0.001, (0, 30): 0.0001}),
    ],
)
def test_the_examples_of_the_page_give_the_rates_they_promise(
    zoo: Path, example: int, rates: dict[tuple[int, int], float]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
    text = re.findall(r"```python\n(.*?)```", page, flags=re.S)[example]
    schedule = schedule_of(zoo, (KERAS if "keras" in text else TORCH) + text)
    assert {at: schedule.rate(*at) for at in rates} == pytest.approx(rates, abs=1e-8)

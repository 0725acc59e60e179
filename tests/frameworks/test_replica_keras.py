"""Replicas of Keras models: what Keras optimizers and layers can do beyond the contract suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="all-reduce exchanges torch tensors")
keras = pytest.importorskip("keras")

from elasticdl.errors import ModelError  # noqa: E402
from elasticdl.frameworks.loading import load_replica  # noqa: E402
from elasticdl.frameworks.model_file import ModelRequest  # noqa: E402
from elasticdl.frameworks.replica.model_replica import ModelReplica  # noqa: E402
from tests.frameworks.replicas import batch, digest, make, train  # noqa: E402

ON_TORCH = keras.backend.backend() == "torch"
HEAD = """
import keras

def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def feed(records, mode, metadata):
    return records

def optimizer():
    return keras.optimizers.SGD(0.1)
"""


def values(replica: ModelReplica, part: str) -> dict[str, Any]:
    return {name: t.clone() for name, t in replica.state().items() if part in name}


def rate(replica: ModelReplica) -> float:
    return next(float(t) for name, t in replica.state().items() if name.endswith("learning_rate"))


def test_clipping_is_that_of_the_optimizer() -> None:
    """The optimizer clips to a norm of 0.5, at a rate of 0.05."""
    replica = make("keras", params={"plain": True})
    before = values(replica, "model/")
    vector = replica.part(*batch(0, 0), seed=1)[1]
    replica.apply(vector * 1000, 0, 0)
    after = values(replica, "model/")
    moves = [(after[n] - before[n]).reshape(-1) for n in before if before[n].is_floating_point() and "pattern" not in n]
    assert float(torch.cat(moves).norm()) == pytest.approx(0.5 * 0.05, rel=1e-4)


def test_rates_follow_step_and_epoch_and_nothing_else() -> None:
    cosine = make("keras", optimizer="cosine")
    train(cosine, 0, 1)
    assert rate(cosine) == pytest.approx(0.1)
    cosine.apply(torch.zeros(cosine.gradient_size + cosine.buffer_size), 5, 0)
    assert rate(cosine) == pytest.approx(0.05)
    by_epoch = make("keras", optimizer="plain_descent", callbacks="by_epoch")
    nothing = torch.zeros(by_epoch.gradient_size + by_epoch.buffer_size)
    found = []
    for step, epoch in ((30, 3), (1, 0), (11, 1)):
        by_epoch.apply(nothing.clone(), step, epoch)
        found.append(rate(by_epoch))
    assert found == pytest.approx([0.1 / 16, 0.05, 0.025])


def test_an_export_holds_the_moving_averages_and_training_goes_on_without_them(tmp_path: Path) -> None:
    replica = make("keras", optimizer="averaged")
    train(replica, 0, 3)
    before = digest(replica.state())
    replica.export(tmp_path)
    assert digest(replica.state()) == before
    from replicas_keras import Counter

    model = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Counter": Counter})
    averages = values(replica, "_average")
    kernel = next(v for v in model.trainable_variables if v.path.endswith("dense/kernel"))
    average = next(t for name, t in averages.items() if name.endswith("dense_kernel_average"))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(kernel.value), average.numpy())
    current = next(t for name, t in values(replica, "model/").items() if name.endswith("dense/kernel"))
    assert not torch.equal(current, average)


def test_a_scaled_loss_gives_the_gradients_of_the_plain_one() -> None:
    scaled, plain = make("keras", optimizer="scaled"), make("keras", optimizer="adam")
    (loss, larger), (same, vector) = (r.part(*batch(0, 0), seed=1) for r in (scaled, plain))
    assert loss == same
    torch.testing.assert_close(larger[: plain.gradient_size], vector[: plain.gradient_size] * 2.0**15)
    for replica in (scaled, plain):
        train(replica, 0, 3)
    for name, value in values(plain, "model/").items():
        torch.testing.assert_close(scaled.state()[name], value, msg=name)


def test_frozen_layers_are_state_but_do_not_travel(zoo: Path) -> None:
    text = """
def custom_model():
    x = keras.Input((2,))
    frozen = keras.layers.Dense(50, trainable=False)
    return keras.Model(x, keras.layers.Dense(1)(frozen(x)))
"""
    (zoo / "net.py").write_text(HEAD + text)
    replica = load_replica(ModelRequest(str(zoo), "net.custom_model"), 1, device="cpu")
    assert (replica.gradient_size, replica.buffer_size) == (51, 0)
    assert len(values(replica, "model/")) == 4
    _, vector = replica.part(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32), 1)
    assert vector.shape == (51,)


def test_random_layers_of_one_model_draw_different_numbers(zoo: Path) -> None:
    text = """
class Draws(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.noise, self.other = keras.layers.GaussianNoise(1.0), keras.layers.GaussianNoise(1.0)

    def call(self, x, training=False):
        return self.noise(x, training=training) - self.other(x, training=training)

def custom_model():
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(1, use_bias=False)(Draws()(x)))
"""
    (zoo / "net.py").write_text(HEAD + text)
    replica = load_replica(ModelRequest(str(zoo), "net.custom_model"), 1, device="cpu")
    loss, _ = replica.part(np.zeros((3, 4), np.float32), np.zeros((3, 1), np.float32), 7)
    assert loss > 0
    assert loss == replica.part(np.zeros((3, 4), np.float32), np.zeros((3, 1), np.float32), 7)[0]


@pytest.mark.skipif(not ON_TORCH, reason="a torch optimizer works on torch tensors")
def test_a_torch_optimizer_steps_on_a_keras_model() -> None:
    replica, newcomer = make("keras", optimizer="of_torch"), make("keras", optimizer="of_torch")
    train(replica, 0, 3)
    newcomer.load({name: t.clone() for name, t in replica.state().items()})
    assert any(name.startswith("optimizer/Adam/dense/kernel/") for name in newcomer.state())
    for each in (replica, newcomer):
        train(each, 3, 6)
    assert digest(newcomer.state()) == digest(replica.state())


@pytest.mark.skipif(ON_TORCH, reason="torch takes it")
def test_a_torch_optimizer_is_refused_on_other_backends() -> None:
    with pytest.raises(ModelError, match="returned Adam for a Keras model"):
        make("keras", optimizer="of_torch")

"""What every Trainable promises, with any framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.errors import ModelError, Unreachable
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelRequest
from tests.frameworks.conftest import FORMS, MODELS, Case
from tests.frameworks.memory_rows import MemoryRows
from tests.frameworks.models.initial_values import digest

REPOSITORY = Path(__file__).parents[2]


def test_gradients_are_those_worked_out_by_hand(linear: Case) -> None:
    weights = np.array([0.5, -1.0, 2.0, 0.25, -0.75, 0.1], np.float32)  # three numbers, two of the row, the bias
    linear.trainable.assign(weights, np.zeros(0, np.float32))
    batch = linear.batches[0]
    result = linear.trainable.step(batch.features, batch.labels, linear.rows)

    ids = batch.features["ids"]
    unique = np.unique(ids)
    table = dict(zip(unique, linear.rows.rows("items", unique), strict=True))
    means = [np.mean([table[i] for i in pair], axis=0) for pair in ids]
    inputs = np.concatenate([batch.features["x"], means], axis=1)
    errors = inputs @ weights[:5] + weights[5] - batch.labels[:, 0]
    pulls = 2 * errors / len(errors)
    assert result.loss == pytest.approx(np.mean(errors**2), rel=1e-5)
    np.testing.assert_allclose(result.gradients, [*(inputs.T @ pulls), pulls.sum()], rtol=1e-4, atol=1e-6)

    found_ids, found = result.rows["items"]
    np.testing.assert_array_equal(np.sort(found_ids), unique)
    expected = {i: np.zeros(2) for i in unique}
    for pull, pair in zip(pulls, ids, strict=True):
        for i in pair:
            expected[i] += pull * weights[3:5] / 2
    np.testing.assert_allclose(found, [expected[i] for i in found_ids], rtol=1e-4, atol=1e-6)


def test_a_small_step_along_the_gradient_changes_the_loss_by_its_square(digits: Case) -> None:
    trainable, batch = digits.trainable, digits.batches[0]
    values, state = trainable.initial()
    gradient = trainable.step(batch.features, batch.labels, digits.rows).gradients
    assert np.abs(gradient).max() > 0
    losses = []
    step = 1e-2 / np.linalg.norm(gradient)
    for sign in (1, -1):
        trainable.assign((values + sign * step * gradient).astype(np.float32), state)
        losses.append(trainable.step(batch.features, batch.labels, digits.rows).loss)
    slope = (losses[0] - losses[1]) / (2 * step)
    assert slope == pytest.approx(float(gradient @ gradient), rel=0.03)


def test_a_step_leaves_the_values_and_its_results_alone(digits: Case) -> None:
    first, second = digits.batches[:2]
    before = digits.trainable.step(first.features, first.labels, digits.rows)
    kept = before.gradients.copy(), before.state.copy()
    digits.trainable.step(second.features, second.labels, digits.rows)
    np.testing.assert_array_equal(before.gradients, kept[0])
    np.testing.assert_array_equal(before.state, kept[1])
    values, _ = digits.trainable.initial()
    digits.trainable.assign(values, digits.trainable.initial()[1])
    again = digits.trainable.step(first.features, first.labels, digits.rows)
    np.testing.assert_allclose(again.gradients, before.gradients, rtol=1e-5, atol=1e-7)


def test_the_flat_buffers_match_the_parameters(digits: Case) -> None:
    values, state = digits.trainable.initial()
    variables = digits.trainable.parameters.variables
    assert values.dtype == state.dtype == np.float32
    assert len(values) == sum(v.size for v in variables if v.trainable)
    assert len(state) == sum(v.size for v in variables if not v.trainable) == 64  # mean and variance of 32 units
    assert len({v.name for v in variables}) == len(variables)


def test_assigned_values_decide_the_predictions(digits: Case) -> None:
    trainable, features = digits.trainable, digits.batches[0].features
    values, state = trainable.initial()
    before = trainable.predict(features, digits.rows)
    trainable.assign(np.zeros_like(values), state)
    np.testing.assert_array_equal(trainable.predict(features, digits.rows), np.zeros((50, 10)))
    trainable.assign(values, state)
    np.testing.assert_array_equal(trainable.predict(features, digits.rows), before)


def test_values_of_the_wrong_size_are_refused(digits: Case) -> None:
    values, state = digits.trainable.initial()
    with pytest.raises(ValueError, match="values for"):
        digits.trainable.assign(values[:-1], state)


def test_read_only_arrays_are_taken(linear: Case) -> None:
    values, state = linear.trainable.initial()
    values.flags.writeable = False
    linear.trainable.assign(values, state)

    class FromAMessage:
        def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
            return np.frombuffer(linear.rows.rows(table, ids).tobytes(), np.float32).reshape(len(ids), -1)

    batch = linear.batches[0]
    expected = linear.trainable.step(batch.features, batch.labels, linear.rows)
    found = linear.trainable.step(batch.features, batch.labels, FromAMessage())
    np.testing.assert_array_equal(found.gradients, expected.gradients)


def test_batch_norm_statistics_move_in_training_and_stay_in_prediction(digits: Case) -> None:
    trainable, batch = digits.trainable, digits.batches[0]
    _, before = trainable.initial()
    first = trainable.step(batch.features, batch.labels, digits.rows).state
    assert not np.allclose(first, before)
    trainable.predict(batch.features, digits.rows)
    trainable.assign(trainable.initial()[0], first)
    second = trainable.step(batch.features, batch.labels, digits.rows).state
    # moving = 0.9 * moving + 0.1 * batch: the second move is 0.9 of the first
    np.testing.assert_allclose(second - first, 0.9 * (first - before), atol=1e-5)


def test_rows_are_asked_for_once_per_id_and_prediction_gives_no_gradients(linear: Case) -> None:
    batch = linear.batches[0]
    predicted = linear.trainable.predict(batch.features, linear.rows)
    assert predicted.shape == (8, 1) and isinstance(predicted, np.ndarray)
    [(table, ids)] = linear.rows.asked
    assert table == "items"
    np.testing.assert_array_equal(np.sort(ids), np.unique(batch.features["ids"]))


def test_batches_of_another_size_are_fine(linear: Case) -> None:
    for batch in linear.batches:
        result = linear.trainable.step(batch.features, batch.labels, linear.rows)
        assert np.isfinite(result.loss)
        assert len(result.rows["items"][0]) == len(np.unique(batch.features["ids"]))


def test_float64_features_are_computed_in_float32(linear: Case) -> None:
    batch = linear.batches[0]
    wide = {"x": batch.features["x"].astype(np.float64), "ids": batch.features["ids"]}
    result = linear.trainable.step(wide, batch.labels.astype(np.float64), linear.rows)
    expected = linear.trainable.step(batch.features, batch.labels, linear.rows)
    np.testing.assert_allclose(result.gradients, expected.gradients, rtol=1e-6)


def test_metrics_of_parts_merge_into_those_of_the_whole(linear: Case) -> None:
    predictions = [linear.trainable.predict(b.features, linear.rows) for b in linear.batches]
    whole = linear.trainable.new_metrics()
    whole.update(np.concatenate([b.labels for b in linear.batches]), np.concatenate(predictions))
    states = []
    for batch, predicted in zip(linear.batches, predictions, strict=True):
        part = linear.trainable.new_metrics()
        part.update(batch.labels, predicted)
        states.append(part.state())
    merged = linear.trainable.new_metrics()
    merged.merge([*states, linear.trainable.new_metrics().state()])
    assert all(type(value) is float for value in merged.result().values())
    assert merged.result() == pytest.approx(whole.result(), rel=1e-5)
    assert merged.result()["error"] == pytest.approx(merged.result()["mean_error"], rel=1e-5)


def test_an_error_of_the_row_source_arrives_as_it_is(linear: Case) -> None:
    class Broken:
        def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
            raise Unreachable("ps-0 does not answer")

    with pytest.raises(Unreachable, match="ps-0 does not answer"):
        linear.trainable.step(linear.batches[0].features, linear.batches[0].labels, Broken())


def test_an_error_in_the_loss_shows_the_users_lines_only(linear: Case) -> None:
    with pytest.raises(ModelError) as caught:
        linear.trainable.step(linear.batches[0].features, np.zeros((3, 1), np.float32), linear.rows)
    assert "in loss" in caught.value.traceback
    assert "elasticdl/frameworks" not in caught.value.traceback


def test_the_local_loop_learns_digits(digits: Case) -> None:
    """Twelve epochs of plain descent on the arrays a server would hold: at least 0.93 of unseen digits are right."""
    trainable, training, unseen = digits.trainable, digits.batches[:28], digits.batches[28:]
    values, state = trainable.initial()
    rate = np.float32(trainable.parameters.optimizer.learning_rate)
    for _ in range(12):
        for batch in training:
            trainable.assign(values, state)
            result = trainable.step(batch.features, batch.labels, digits.rows)
            values, state = values - rate * result.gradients, result.state
    trainable.assign(values, state)
    metrics = trainable.new_metrics()
    for batch in unseen:
        metrics.update(batch.labels, trainable.predict(batch.features, digits.rows))
    assert metrics.result()["accuracy"] >= 0.93
    for accuracy in metrics.result().values():
        assert accuracy == pytest.approx(metrics.result()["accuracy"], rel=1e-6)


def test_the_local_loop_learns_rows(linear: Case) -> None:
    """Labels that are a sum of hidden values of the ids: descent on rows brings the error close to nothing."""
    draw = np.random.default_rng(3)
    hidden = draw.normal(size=20)
    values, state = linear.trainable.initial()
    losses = []
    for _ in range(400):
        ids = draw.integers(0, 20, (16, 2))
        features = {"x": np.zeros((16, 3), np.float32), "ids": ids}
        linear.trainable.assign(values, state)
        result = linear.trainable.step(features, hidden[ids].sum(1, keepdims=True), linear.rows)
        values = values - np.float32(0.1) * result.gradients
        linear.rows.descend("items", *result.rows["items"], rate=0.5)
        losses.append(result.loss)
    assert np.mean(losses[-20:]) < 0.1 * np.mean(losses[:20])


def test_initial_values_are_equal_in_every_process_of_one_seed() -> None:
    names = [f"{model}_{form}" for model in ("linear", "digits") for form in FORMS]
    program = [sys.executable, "-m", "tests.frameworks.models.initial_values", str(MODELS), *names]
    processes = [
        subprocess.Popen(
            program, cwd=REPOSITORY, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    here = {name: digest(str(MODELS), name, 7) for name in names}
    elsewhere = [dict(line.split() for line in p.communicate(timeout=120)[0].splitlines()) for p in processes]
    assert elsewhere[0] == elsewhere[1] == here
    assert all(digest(str(MODELS), name, 8) != here[name] for name in names)


def test_ids_wider_than_the_declared_input_are_refused_and_not_cut(zoo: Path) -> None:
    source = (MODELS / "linear_keras.py").read_text().replace('dtype="int64"', 'dtype="int32"')
    (zoo / "narrow.py").write_text(source)
    trainable = load_trainable(ModelRequest(str(zoo), "narrow.custom_model"), 7)
    features = {"x": np.zeros((1, 3), np.float32), "ids": np.array([[1, 2**31 + 5]])}
    with pytest.raises(ModelError, match=r"feed gives integers (from 1 to|up to) 2147483653"):
        trainable.step(features, np.zeros((1, 1), np.float32), MemoryRows(trainable.parameters))


def test_text_is_refused_before_it_reaches_the_model(linear: Case) -> None:
    if os.environ.get("KERAS_BACKEND") == "tensorflow":
        pytest.skip("TensorFlow has layers that take text")
    features = {"x": linear.batches[0].features["x"], "ids": np.array([["a", "b"]] * 8)}
    with pytest.raises(ModelError, match="feed returned text"):
        linear.trainable.predict(features, linear.rows)

"""What every ModelReplica promises, with any framework: the bits do not depend on which worker computes what."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="all-reduce exchanges torch tensors")

from safetensors.torch import save_file  # noqa: E402

from elasticdl.errors import ModelError  # noqa: E402
from elasticdl.frameworks.loading import load_replica  # noqa: E402
from elasticdl.frameworks.model_file import ModelRequest  # noqa: E402
from elasticdl.frameworks.replica.model_replica import ModelReplica  # noqa: E402
from tests.frameworks.replicas import (  # noqa: E402
    FORMS,
    MODELS,
    ONLY,
    OPTIMIZERS,
    VIRTUAL,
    batch,
    contribution,
    digest,
    make,
    mean_of,
    train,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model_state(replica: ModelReplica) -> dict[str, Any]:
    return {name: t.clone() for name, t in replica.state().items() if name.startswith("model/")}


def counters(replica: ModelReplica) -> dict[str, int]:
    found = {name: t for name, t in replica.state().items() if name.startswith("model/") and not t.is_floating_point()}
    return {name.rpartition("/")[2].rpartition(".")[2]: int(t) for name, t in found.items()}


def test_parts_give_the_same_bits_in_any_order_and_leave_the_state_alone(form: str) -> None:
    replica, other = make(form), make(form)
    before = digest(replica.state())
    forward = [contribution(replica, 0, v) for v in range(VIRTUAL)]
    backward = [contribution(other, 0, v) for v in reversed(range(VIRTUAL))][::-1]
    for one, another in zip(forward, backward, strict=True):
        assert torch.equal(one, another)
        assert one.dtype == torch.float32 and one.shape == (replica.gradient_size + replica.buffer_size,)
    assert digest(replica.state()) == digest(other.state()) == before
    kept = forward[0].clone()
    replica.apply(mean_of(forward, 0), 0, 0)
    contribution(replica, 1, 0)
    assert torch.equal(forward[0], kept)


def test_the_seed_of_a_part_decides_its_dropout(form: str) -> None:
    replica = make(form)
    features, labels = batch(0, 2)
    (loss, vector), (again, same), (other, different) = (replica.part(features, labels, s) for s in (1, 1, 2))
    assert loss == again != other
    assert torch.equal(vector, same) and not torch.equal(vector, different)


def test_the_weights_do_not_depend_on_which_worker_computes_a_part(form: str) -> None:
    alone, left, right = make(form), make(form), make(form)
    for step in range(6):
        train(alone, step, step + 1)
        parts = [contribution(left if v <= step % 3 else right, step, v) for v in range(VIRTUAL)]
        for replica in (left, right):
            replica.predict(batch(step, 0)[0])  # an evaluation in between
            replica.apply(mean_of(list(parts), step), step, step // 5)
    assert digest(alone.state()) == digest(left.state()) == digest(right.state())


@pytest.mark.long
def test_a_state_goes_on_in_another_process_with_the_same_bits(tmp_path: Path) -> None:
    """Twenty steps, with an optimizer that had no slots yet; all optimizers of all forms."""
    expected = {}
    for form in FORMS:
        for optimizer in [*OPTIMIZERS, *ONLY[form]]:
            replica = make(form, optimizer=optimizer)
            train(replica, 0, 5, order=(0,))
            state = replica.state()
            assert any(name.startswith("optimizer/") for name in state)
            name = f"{form}.{optimizer}"
            save_file({n: t.contiguous().clone() for n, t in state.items()}, tmp_path / f"{name}.safetensors")
            train(replica, 5, 25, order=(0,))
            expected[name] = digest(replica.state())
    files = [str(tmp_path / f"{name}.safetensors") for name in expected]
    command = [sys.executable, "-m", "tests.frameworks.replicas", *files]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONHASHSEED": "3"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
    )
    assert dict(line.split() for line in done.stdout.splitlines()) == expected


def test_a_state_replaces_one_that_went_another_way(form: str) -> None:
    replica, other = make(form, optimizer="adam"), make(form, seed=6, optimizer="adam")
    train(replica, 0, 3)
    train(other, 0, 7)
    other.load({name: t.clone() for name, t in replica.state().items()})
    assert digest(other.state()) == digest(replica.state())
    for each in (replica, other):
        train(each, 3, 6)
    assert digest(other.state()) == digest(replica.state())
    fresh = make(form, optimizer="adam")
    as_built = {name: t.clone() for name, t in make(form, optimizer="adam").state().items()}
    replica.load(as_built)
    assert digest(replica.state()) == digest(fresh.state())


def test_the_mean_gradient_of_parts_is_the_gradient_of_the_whole_batch(form: str) -> None:
    replica = make(form, params={"plain": True})
    parts = [batch(0, v) for v in range(VIRTUAL)]
    mean = mean_of([contribution(replica, 0, v) for v in range(VIRTUAL)], 0)
    features, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    _, whole = replica.part(features, labels, 1)
    size = replica.gradient_size
    assert float(whole[:size].abs().max()) > 0.01
    torch.testing.assert_close(mean[:size], whole[:size], rtol=1e-5, atol=1e-7)


def test_statistics_take_the_mean_of_the_parts_weighted_by_records(form: str) -> None:
    replica = make(form)
    key = {"torch": "model/norm.running_mean", "keras": "model/batch_normalization/moving_mean"}[form]
    expected, records = torch.zeros(16), 0
    for virtual in range(VIRTUAL):
        lonely = make(form)
        features, labels = batch(0, virtual)
        _, vector = lonely.part(features, labels, 1)
        lonely.apply(vector, 0, 0)
        expected += lonely.state()[key] * len(labels)
        records += len(labels)
    train(replica, 0, 1)
    found = replica.state()[key]
    assert float(found.abs().max()) > 0.01
    torch.testing.assert_close(found, expected / records, rtol=1e-5, atol=1e-7)


def test_counters_move_once_per_step_and_what_stands_still_stays_exactly(form: str) -> None:
    replica = make(form)
    before = model_state(replica)
    train(replica, 0, 7)
    assert counters(replica)["seen"] == 21
    if form == "torch":
        assert counters(replica)["num_batches_tracked"] == 7
        assert replica.state()["model/replaced"].tolist() == [0.5**7] * 2
    patterns = [name for name in before if name.endswith("pattern")]
    assert len(patterns) == 1
    assert torch.equal(replica.state()[patterns[0]], before[patterns[0]])
    assert bool(before[patterns[0]].isinf().any())


def test_parts_without_statistics_of_their_own_leave_counters_alone(form: str) -> None:
    replica = make(form)
    for virtual in range(VIRTUAL):
        contribution(replica, 0, virtual)
    replica.predict(batch(0, 0)[0])
    assert set(counters(replica).values()) == {0}


def test_predictions_do_not_disturb_random_state_or_buffers(form: str) -> None:
    replica = make(form)
    train(replica, 0, 2)
    before = digest(replica.state())
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    features, labels = batch(3, 1)
    first, second = replica.predict(features), replica.predict(features)
    np.testing.assert_array_equal(first, second)
    assert isinstance(first, np.ndarray) and first.shape == (len(labels), 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert digest(replica.state()) == before
    metrics = replica.new_metrics()
    metrics.update(labels, first)
    assert metrics.result()["accuracy"] == pytest.approx(float(np.mean(first.argmax(1) == labels)))


def test_the_rate_is_a_function_of_the_step_alone(form: str) -> None:
    """One step with plain descent from the same state: the move is the rate times the gradient."""
    moves = []
    for step in (0, 1, 9):
        replica = make(form, optimizer="plain_descent", callbacks="by_step", params={"plain": True})
        before = _flat(replica)
        mean = mean_of([contribution(replica, 0, v) for v in range(VIRTUAL)], 0)
        replica.apply(mean.clone(), step, 0)
        moves.append((before - _flat(replica), mean[: replica.gradient_size]))
    for (move, gradient), step in zip(moves, (0, 1, 9), strict=True):
        torch.testing.assert_close(move, gradient * 0.5 / (step + 1), rtol=1e-4, atol=1e-6)


def test_a_rate_can_be_scaled_for_one_step(form: str) -> None:
    replica = make(form, optimizer="plain_descent", params={"plain": True})
    rates = []
    for scale in (1.0, 2.0, 1.0, 0.5):
        before = _flat(replica)
        mean = mean_of([contribution(replica, 0, v) for v in range(VIRTUAL)], 0)
        replica.apply(mean.clone(), 0, 0, rate_scale=scale)
        rates.append(float((before - _flat(replica)).norm() / mean[: replica.gradient_size].norm()))
        kept = [float(t) for name, t in replica.state().items() if name.endswith("learning_rate")]
        assert kept == pytest.approx([0.1] * len(kept)), "the state holds the rate without the scale"
    assert rates == pytest.approx([0.1, 0.2, 0.1, 0.05], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "plain_descent"])
def test_a_scaled_step_is_the_step_of_an_optimizer_with_that_rate(form: str, optimizer: str) -> None:
    """Slots, and the rate of the steps that follow, stay what they would be."""
    scaled = make(form, optimizer=optimizer, params={"plain": True})
    mean = mean_of([contribution(scaled, 0, v) for v in range(VIRTUAL)], 0)
    usual = make(form, optimizer=optimizer, params={"plain": True})
    before = _flat(scaled)
    scaled.apply(mean.clone(), 0, 0, rate_scale=0.5)
    usual.apply(mean.clone(), 0, 0)
    torch.testing.assert_close((_flat(scaled) - before) * 2, _flat(usual) - before, rtol=1e-3, atol=1e-6)
    ours, theirs = scaled.state(), usual.state()
    slots = [name for name in ours if name.startswith("optimizer/")]
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in slots)


def test_a_state_that_does_not_fit_is_refused_by_name(form: str) -> None:
    replica = make(form, optimizer="adam")
    train(replica, 0, 1)
    good = {name: t.clone() for name, t in replica.state().items()}
    first = next(name for name in good if name.startswith("model/"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({n: t for n, t in good.items() if n != first}, f"the state has no {first}"),
        (good | {"model/other": torch.zeros(1)}, "the model has no model/other"),
        (good | {first: torch.zeros(7)}, rf"{first} is float32 \[7\] in the state and float32 \["),
        (good | {first: good[first].double()}, f"{first} is float64"),
    ]
    before = digest(replica.state())
    for state, message in wrong:
        with pytest.raises(ModelError, match=f"the state does not match this model: {message}"):
            replica.load(state)
    assert digest(replica.state()) == before
    with pytest.raises(ModelError, match="the state does not match this model"):
        make(form, optimizer="optimizer").load(good)


def test_tables_on_parameter_servers_are_refused_with_the_remedy(form: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_replica(ModelRequest(str(MODELS), f"linear_{form}.custom_model"), 1)
    assert "Embedding 'items' keeps its rows on parameter servers" in str(caught.value)
    assert "ParameterServerStrategy" in str(caught.value)


def test_an_error_in_the_users_code_leaves_the_replica_as_it_was(form: str) -> None:
    replica = make(form)
    before = digest(replica.state())
    with pytest.raises(ModelError, match="while computing a training step"):
        replica.part(np.zeros((2, 6), np.float32), np.zeros((2, 5), np.float32), 1)
    if os.environ.get("KERAS_BACKEND") != "tensorflow" or form == "torch":
        assert digest(replica.state()) == before


def test_the_exported_model_predicts_what_the_replica_does(form: str, tmp_path: Path) -> None:
    replica = make(form)
    train(replica, 0, 3)
    assert "manifest.json" in replica.export(tmp_path)
    features, _ = batch(0, 0)
    if form == "keras":
        import keras
        from replicas_keras import Counter

        model = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Counter": Counter})
        found = keras.ops.convert_to_numpy(model(features))
    else:
        from replicas_torch import custom_model
        from safetensors.torch import load_file

        model = custom_model()
        model.load_state_dict(load_file(tmp_path / "model.safetensors"))
        found = model.eval()(torch.from_numpy(features)).detach().numpy()
    np.testing.assert_allclose(found, replica.predict(features), rtol=1e-6, atol=1e-7)


def _flat(replica: ModelReplica) -> Any:
    """The trainable values, which a state names first."""
    found = [t.reshape(-1).float() for name, t in replica.state().items() if name.startswith("model/")]
    return torch.cat(found)[: replica.gradient_size].clone()

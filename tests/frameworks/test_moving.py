"""Plain embeddings that move to the servers train and predict as in the model, and move back."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import ModelError
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.frameworks.trainable import Trainable
from elasticdl.job.parameters import InitializerSpec
from tests.frameworks.conftest import MODELS
from tests.frameworks.memory_rows import MemoryRows
from tests.frameworks.plain_python import in_plain_python

WORDS = 40
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="a torch model")
FORMS = [
    ("keras", "functional"),
    ("keras", "sequential"),
    ("keras", "subclass"),
    pytest.param("torch", "plain", marks=needs_torch),
    pytest.param("torch", "sparse", marks=needs_torch),
]


def load(framework: str, form: str, threshold_bytes: int = 1) -> Trainable:
    request = ModelRequest(
        str(MODELS),
        f"words_{framework}.custom_model",
        params={"form": form},
        table_threshold_bytes=threshold_bytes,
    )
    return load_trainable(ModelFile(request), 7, lambda: np.ones((2, 4), np.int64))


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(5)
    return [(draw.integers(0, 12, (8, 4)), draw.normal(size=(8, 1)).astype(np.float32)) for _ in range(20)]


class Descent:
    """SGD, or Adagrad as Keras computes it, over flat values and over the rows of tables."""

    def __init__(self, kind: str) -> None:
        self._adagrad = kind == "adagrad"
        self._sums: dict[Any, np.ndarray] = {}

    def step(self, key: Any, gradient: np.ndarray) -> np.ndarray:
        if not self._adagrad:
            return np.float32(0.1) * gradient
        self._sums[key] = self._sums.get(key, np.full_like(gradient, 0.1)) + gradient**2
        return np.float32(0.1) * gradient / np.sqrt(self._sums[key] + np.float32(1e-7))


def train(trainable: Trainable, rows: MemoryRows, kind: str) -> list[float]:
    descent, losses = Descent(kind), []
    values, state = trainable.initial()
    for features, labels in batches():
        trainable.assign(values, state)
        result = trainable.step(features, labels, rows)
        values = values - descent.step("dense", result.gradients)
        for table, (ids, gradients) in result.rows.items():
            for i, gradient in zip(ids.tolist(), gradients, strict=True):
                rows.stored[table][i] = rows.stored[table][i] - descent.step((table, i), gradient)
        losses.append(result.loss)
    trainable.assign(values, state)
    return losses


def matrices(trainable: Trainable) -> dict[str, np.ndarray]:
    """The initial values of each variable by its name."""
    values, found, start = trainable.initial()[0], {}, 0
    for variable in trainable.parameters.variables:
        if variable.trainable:
            found[variable.name] = values[start : start + variable.size].reshape(variable.shape)
            start += variable.size
    return found


def same_start(moved: Trainable, plain: Trainable) -> MemoryRows:
    """Rows for the moved model that begin as the plain one's weights."""
    rows, weights = MemoryRows(moved.parameters), matrices(plain)
    for table in moved.parameters.tables:
        [matrix] = [m for name, m in weights.items() if table.name in name and m.shape == (WORDS, table.dim)]
        rows.stored[table.name] = dict(enumerate(matrix.copy()))
    return rows


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
@pytest.mark.parametrize(("framework", "form"), FORMS)
def test_training_is_the_same_with_the_layer_moved_and_not(framework: str, form: str, kind: str) -> None:
    plain, moved = load(framework, form, 0), load(framework, form)
    assert plain.parameters.tables == ()
    assert {t.name for t in moved.parameters.tables} == ({"words"} if framework == "keras" else {"words", "bags"})
    assert all(t.input_dim == WORDS for t in moved.parameters.tables)
    kept = sum(v.size for v in moved.parameters.variables)
    assert sum(v.size for v in plain.parameters.variables) == kept + sum(WORDS * t.dim for t in moved.parameters.tables)
    rows = same_start(moved, plain)
    none = MemoryRows(plain.parameters)
    np.testing.assert_allclose(train(moved, rows, kind), train(plain, none, kind), rtol=1e-6, atol=1e-7)
    ids = np.arange(32).reshape(8, 4)
    np.testing.assert_allclose(moved.predict(ids, rows), plain.predict(ids, none), rtol=1e-5, atol=1e-6)


_KERAS = """
import keras, numpy as np
sys.path.insert(0, sys.argv[2])
from words_keras import Words
model = keras.saving.load_model("model.keras", custom_objects={"Words": Words})
assert type(model.get_layer("words")) is keras.layers.Embedding
data = np.load("check.npz")
for _ in range(2):
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(data["ids"])), data["expected"], rtol=1e-5, atol=1e-6)
"""
_TORCH = """
import numpy as np, torch
sys.path.insert(0, sys.argv[2])
code = [line[4:] for line in open("README.md").read().splitlines() if line.startswith("    ")]
exec("\\n".join(code))
data = np.load("check.npz")
torch.testing.assert_close(model(torch.from_numpy(data["ids"])), torch.from_numpy(data["expected"]))
assert type(model.words) is torch.nn.Embedding and type(model.bags) is torch.nn.EmbeddingBag
"""


@pytest.mark.parametrize(("framework", "form"), FORMS)
def test_moved_layers_are_plain_ones_in_the_exported_model(framework: str, form: str, tmp_path: Path) -> None:
    moved = load(framework, form)
    rows = same_start(moved, load(framework, form, 0))
    train(moved, rows, "sgd")
    ids = np.arange(32).reshape(8, 4)
    for _ in range(2):  # the model is unchanged afterwards
        moved.export(tmp_path, rows)
        expected = moved.predict(ids, rows)
    np.savez(tmp_path / "check.npz", ids=ids, expected=expected)
    in_plain_python(_KERAS if framework == "keras" else _TORCH, tmp_path, str(MODELS))
    assert "elasticdl" not in (tmp_path / "README.md").read_text().lower()


@pytest.mark.parametrize(("framework", "form"), FORMS)
def test_layers_below_the_threshold_are_left_alone(framework: str, form: str) -> None:
    trainable = load(framework, form, WORDS * 3 * 4 + 1)
    assert trainable.parameters.tables == ()
    assert trainable.notes == ()
    names = {v.name for v in load(framework, form, 0).parameters.variables}
    assert {v.name for v in trainable.parameters.variables} == names


def test_the_user_is_told_what_moved() -> None:
    assert load("keras", "functional").notes == (
        "Embedding 'words' (40 rows of 3, 0.0 MiB) moved to the parameter servers (larger than "
        "--table_threshold_bytes)",
    )


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("regularized", "it has an embeddings_regularizer, which needs all of its rows"),
        ("pretrained", "its values do not come from its embeddings_initializer"),
        ("frozen", "it is frozen"),
        ("truncated", "GlorotNormal uses a truncated normal distribution"),
        ("tied", "the model also uses its weights directly"),
        ("tied_graph", "its weights are shared with another layer"),
    ],
)
def test_a_keras_layer_that_would_compute_something_else_stays(form: str, reason: str) -> None:
    trainable, plain = load("keras", form), load("keras", form, 0)
    assert trainable.parameters == plain.parameters
    [note] = trainable.notes
    assert note.startswith("Embedding 'words' (40 rows of 3, 0.0 MiB) stays a dense variable: ")
    assert reason in note
    features, labels = batches()[0]
    none = MemoryRows(plain.parameters)
    result, expected = (t.step(features, labels, none) for t in (trainable, plain))
    np.testing.assert_allclose(result.gradients, expected.gradients, rtol=1e-6)


def test_a_constraint_is_refused_and_not_lost_by_moving() -> None:
    with pytest.raises(ModelError, match="has the constraint NonNeg, which parameter servers do not support"):
        load("keras", "constrained")


@needs_torch
@pytest.mark.parametrize(
    ("form", "stays", "reason"),
    [
        ("tied", "words", "its weights are shared with another layer"),
        ("direct", "words", "the model also uses its weights directly"),
        ("clipped", "words", "it has max_norm=1.0"),
        ("by_frequency", "words", "it has scale_grad_by_freq=True"),
        ("padding_drawn", "words", "the row of its padding_idx is not zero"),
        ("max", "bags", "it has mode='max'"),
        ("truncated", "bags", "its values do not come from an initializer that servers support"),
        ("pretrained", "bags", "its values do not come from an initializer that servers support"),
        ("frozen", "bags", "it is frozen"),
    ],
)
def test_a_torch_layer_that_would_compute_something_else_stays(form: str, stays: str, reason: str) -> None:
    trainable, plain = load("torch", form), load("torch", form, 0)
    assert {t.name for t in trainable.parameters.tables} == {"words", "bags"} - {stays}
    [note] = [n for n in trainable.notes if f"{stays!r}" in n]
    assert "stays a dense variable: " in note and reason in note
    features, labels = batches()[0]
    rows = same_start(trainable, plain)
    assert trainable.step(features, labels, rows).loss == pytest.approx(
        plain.step(features, labels, MemoryRows(plain.parameters)).loss, rel=1e-6
    )


@needs_torch
def test_torch_initializers_are_kept_however_they_were_called() -> None:
    def initializer(form: str, table: str) -> InitializerSpec:
        return {t.name: t.initializer for t in load("torch", form).parameters.tables}[table]

    assert initializer("plain", "words") == InitializerSpec(kind="normal", a=0.0, b=1.0)
    bound = np.sqrt(6 / (WORDS + 3))
    xavier = initializer("xavier", "words")
    assert (xavier.kind, xavier.a, xavier.b) == ("uniform", pytest.approx(-bound), pytest.approx(bound))
    assert initializer("constant", "bags") == InitializerSpec(kind="constant", a=0.25)


def test_keras_initializers_are_kept() -> None:
    bound = np.sqrt(6 / (WORDS + 3))
    for form, low, high in (("functional", -0.05, 0.05), ("glorot", -bound, bound)):
        [table] = load("keras", form).parameters.tables
        assert table.initializer.kind == "uniform"
        assert (table.initializer.a, table.initializer.b) == pytest.approx((low, high), rel=1e-12)


@needs_torch
def test_weights_that_are_used_directly_and_not_seen_before_are_asked_for_with_a_remedy() -> None:
    request = ModelRequest(str(MODELS), "words_torch.custom_model", params={"form": "direct"}, table_threshold_bytes=1)
    trainable = load_trainable(ModelFile(request), 7)  # no data to try the model on
    with pytest.raises(
        Exception, match="the model uses its weights directly, but they are on the parameter servers"
    ) as e:
        trainable.step(*batches()[0], MemoryRows(trainable.parameters))
    assert "Set --table_threshold_bytes=0" in str(e.value)


@pytest.mark.parametrize("strategy", ["AllreduceStrategy", "CustomStrategy", "ParameterServerStrategy", "Local"])
def test_layers_move_only_where_there_are_servers(strategy: str) -> None:
    from elasticdl.job.spec import JobSpec

    spec = JobSpec(distribution_strategy=strategy, model_def="a.b.c", table_threshold_bytes="3Mi")
    moves = strategy in ("ParameterServerStrategy", "Local")
    assert ModelRequest.of(spec).table_threshold_bytes == (3 << 20 if moves else 0)

"""Finding and importing a model file, and what the user reads when it is wrong."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl.errors import ModelError, UsageError
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest, locate, parse_params
from elasticdl.frameworks.tracebacks import user_traceback

REPOSITORY = Path(__file__).parents[2]
GOOD = """
import keras

def custom_model(units=1):
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(units)(x))

def loss(labels, predictions):
    return (labels - predictions) ** 2

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(records, mode, metadata):
    return records if mode == "prediction" else (records, records)
"""


def request(zoo: Path, text: str = GOOD, **changes: Any) -> ModelRequest:
    (zoo / "net").mkdir(exist_ok=True)
    (zoo / "net" / "model.py").write_text(text)
    return ModelRequest(str(zoo), **{"model_def": "net.model.custom_model"} | changes)


def without(name: str) -> str:
    return GOOD.replace(f"def {name}(", f"def my_{name}(")


def test_a_dotted_name_is_a_file_and_a_symbol(zoo: Path) -> None:
    found = locate(request(zoo))
    assert (found.file, found.module, found.symbol) == (zoo / "net" / "model.py", "net.model", "custom_model")


def test_the_only_file_of_that_name_serves_when_the_folder_differs(zoo: Path) -> None:
    assert locate(request(zoo, model_def="model.model.custom_model")).file == zoo / "net" / "model.py"
    (zoo / "other").mkdir()
    (zoo / "other" / "model.py").write_text(GOOD)
    with pytest.raises(UsageError, match=r"Nearest: .*net\.model\.custom_model"):
        locate(request(zoo, model_def="model.model.custom_model"))


@pytest.mark.parametrize("spelling", ["mnist.mnist_functional_api", "mnist_functional_api.mnist_functional_api"])
def test_both_spellings_of_the_tutorials_find_the_zoos_model(spelling: str) -> None:
    found = locate(ModelRequest(str(REPOSITORY / "model_zoo"), f"{spelling}.custom_model"))
    assert found.file == REPOSITORY / "model_zoo" / "mnist" / "mnist_functional_api.py"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_def": "net.modle.custom_model"}, "Nearest: net.model.custom_model"),
        ({"model_def": "custom_model"}, "not a dotted name"),
        ({"model_zoo": "/nowhere"}, "--model_zoo=/nowhere: no such directory"),
        ({"loss": "losses.mse"}, "--loss=losses.mse: module 'losses' is not beside the model file"),
    ],
)
def test_what_cannot_be_found_is_a_usage_error(zoo: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ModelFile(dataclasses.replace(request(zoo), **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without("loss"), "it does not define 'loss' (it defines 'my_loss'; use --loss to name it)"),
        (without("custom_model"), "it does not define 'custom_model'"),
        (without("feed"), "it does not define 'feed'"),
        (without("optimizer"), "it does not define 'optimizer'"),
        (GOOD.replace("loss(labels, predictions)", "loss(labels)"), "loss(labels) has the wrong arguments"),
        (GOOD.replace("feed(records, mode, metadata)", "feed(records)"), "feed(records) has the wrong arguments"),
        (GOOD.replace("custom_model(units=1)", "custom_model(units)"), "custom_model(units) has the wrong arguments"),
        (GOOD + "\nloss = 3\n", "loss is int, not a function"),
        (GOOD + "\ndef custom_model(): return 'net'\n", "returned str, neither a Keras model nor a torch.nn.Module"),
        (GOOD.replace("SGD(0.1)", "Lion(0.1)"), "Keras Lion is not supported"),
        (GOOD + "\ndef eval_metrics_fn(): return 'accuracy'\n", "did not return a dict of metrics"),
        (GOOD + "\ndef callbacks(): return [keras.callbacks.EarlyStopping()]\n", "EarlyStopping is not supported"),
        (GOOD + "\ndef callbacks(): return 3\n", "callbacks returned int, not a list of callbacks"),
        (GOOD.replace("Dense(units)", "Dense(units, dtype='float64')"), "kernel' is float64"),
        (GOOD.replace("Dense(units)", "Dense(units, kernel_constraint='non_neg')"), "has the constraint NonNeg"),
    ],
)
def test_what_is_wrong_with_a_model_file_is_said(zoo: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        model = load_trainable(request(zoo, text), 1)
        model.new_metrics()
    assert message in str(caught.value)
    assert str(zoo / "net" / "model.py") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import numpy\nimport no_such_module\n", ["line 2", "No module named 'no_such_module'"]),
        ("def custom_model(:\n", ["line 1", "SyntaxError"]),
        (
            "def helper():\n    return 1 / 0\n\nhelper()\n",
            ["line 4", "in helper", "ZeroDivisionError: division by zero"],
        ),
        (GOOD.replace("Dense(units)", "Dense(-1)"), ["in custom_model", "Dense(-1)", "ValueError"]),
    ],
)
def test_a_file_that_raises_shows_the_users_own_lines(zoo: Path, text: str, lines: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        load_trainable(request(zoo, text), 1)
    for line in lines:
        assert line in caught.value.traceback
    assert "elasticdl/frameworks" not in caught.value.traceback
    assert "importlib" not in caught.value.traceback


def test_a_traceback_keeps_the_users_frames_the_raising_one_and_the_cause(zoo: Path) -> None:
    (zoo / "mine.py").write_text(
        "import json\n"
        "def inner():\n    json.loads('{')\n"
        "def outer():\n    try:\n        inner()\n"
        "    except ValueError as e:\n        raise KeyError('config') from e\n"
    )
    sys.path.insert(0, str(zoo))
    import mine

    try:
        mine.outer()
    except KeyError as error:
        text = user_traceback(error, [zoo])
    assert "in inner" in text and "in outer" in text and text.endswith("KeyError: 'config'")
    assert "direct cause" in text
    assert "raw_decode" in text  # the frame that raised
    assert "in loads" not in text and "in decode" not in text  # those between
    assert "test_model_file.py" not in text


def test_feed_is_checked_and_its_errors_are_the_users(zoo: Path) -> None:
    asked = request(zoo, GOOD + "\ndef other(records, mode, metadata): return records['x']\n")
    code = ModelFile(asked)
    assert code.feed([1], "prediction", {}) == ([1], None)
    assert code.feed([1], "training", {}) == ([1], [1])
    wrong = ModelFile(dataclasses.replace(asked, feed="other"))
    with pytest.raises(ModelError, match="TypeError while calling other"):
        wrong.feed([1], "training", {})


def test_feed_must_return_features_and_labels(zoo: Path) -> None:
    code = ModelFile(request(zoo, GOOD + "\ndef feed(records, mode, metadata): return records\n"))
    with pytest.raises(ModelError, match=r"returned list in training mode\nReturn \(features, labels\)"):
        code.feed([1], "training", {})


def test_symbols_may_live_in_other_modules(zoo: Path) -> None:
    asked = request(zoo, without("loss"), loss="losses.squared")
    (zoo / "net" / "losses.py").write_text("def squared(labels, predictions): return (labels - predictions) ** 2\n")
    assert ModelFile(asked).loss(3, 1) == 4
    (zoo / "shared").mkdir()
    (zoo / "shared" / "losses.py").write_text("def cubed(labels, predictions): return (labels - predictions) ** 3\n")
    assert ModelFile(dataclasses.replace(asked, loss="shared.losses.cubed")).loss(3, 1) == 8


def test_files_of_the_zoo_import_each_other(zoo: Path) -> None:
    (zoo / "net").mkdir()
    (zoo / "net" / "sizes.py").write_text("UNITS = 4\n")
    text = "from net.sizes import UNITS\nfrom . import sizes\n" + GOOD.replace("units=1", "units=UNITS")
    model = load_trainable(request(zoo, text), 1)
    assert model.parameters.variables[0].shape == (3, 4)


def test_parameters_go_to_custom_model_by_name(zoo: Path) -> None:
    job = SimpleNamespace(
        model_zoo=str(zoo), model_def="net.model.custom_model", aux_params={"units": "5", "disable_relaunch": "true"}
    )
    request(zoo)
    assert load_trainable(ModelRequest.of(job), 1).parameters.variables[0].shape == (3, 5)


def test_parameters_are_read_without_evaluating_them() -> None:
    found = parse_params("layers=2; rate=0.5; wide=true; name=exit()")
    assert found == {"layers": 2, "rate": 0.5, "wide": True, "name": "exit()"}


def test_a_model_that_needs_data_to_be_built_says_so(zoo: Path) -> None:
    text = GOOD + "\nclass Net(keras.Model):\n    def call(self, x): return x\n\ndef custom_model(): return Net()\n"
    with pytest.raises(ModelError, match="creates its variables only when it sees data"):
        load_trainable(request(zoo, text), 1)


def test_running_out_of_memory_is_not_the_models_error(zoo: Path) -> None:
    with pytest.raises(MemoryError), ModelFile(request(zoo)).running("computing"):
        raise MemoryError

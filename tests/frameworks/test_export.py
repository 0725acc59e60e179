"""Exported models load and predict the same without ElasticDL."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from elasticdl.frameworks import export
from tests.frameworks.conftest import FORMS, MODELS, Batch, Case, linear_batches, load
from tests.frameworks.memory_rows import MemoryRows
from tests.frameworks.plain_python import in_plain_python

REPOSITORY = Path(__file__).parents[2]


_CHECK_KERAS = """
import keras, numpy as np
model = keras.saving.load_model("model.keras")
data = np.load("check.npz")
features = {k: data[k] for k in ("x", "ids")} if "ids" in data else data["x"]
np.testing.assert_allclose(keras.ops.convert_to_numpy(model(features)), data["expected"], rtol=1e-5, atol=1e-6)
"""

_CHECK_TORCH = """
import numpy as np, torch
from safetensors.torch import load_file

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.EmbeddingBag(50, 2, mode="mean")  # as the export's README says
        self.dense = torch.nn.Linear(5, 1)

    def forward(self, x, ids):
        return self.dense(torch.cat([x, self.items(ids)], dim=1))

model = Linear()
model.load_state_dict(load_file("model.safetensors"))
data = {k: torch.from_numpy(v) for k, v in np.load("check.npz").items()}
torch.testing.assert_close(model(data["x"], data["ids"]), data["expected"])
"""


def trained(case: Case) -> None:
    values, state = case.trainable.initial()
    for batch in case.batches[:3]:
        case.trainable.assign(values, state)
        result = case.trainable.step(batch.features, batch.labels, case.rows)
        values, state = values - np.float32(0.1) * result.gradients, result.state
        for table, (ids, gradients) in result.rows.items():
            case.rows.descend(table, ids, gradients, rate=0.1)
    case.trainable.assign(values, state)


def expect(case: Case, directory: Path) -> None:
    """Beside the export: features and what the trainable predicts for them, ids without a row among them."""
    features = case.batches[0].features
    if isinstance(features, dict):
        features = {"x": features["x"], "ids": np.arange(16).reshape(8, 2) + 30}
    expected = case.trainable.predict(features, case.rows)
    arrays = features if isinstance(features, dict) else {"x": features}
    np.savez(directory / "check.npz", expected=expected, **arrays)


def test_the_python_that_loads_exports_has_no_elasticdl(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="import of elasticdl halted"):
        in_plain_python("import elasticdl", tmp_path)
    in_plain_python("import os; assert os.getcwd() == sys.argv[1]", tmp_path)


def test_a_model_with_tables_becomes_a_plain_one(linear: Case, tmp_path: Path) -> None:
    trained(linear)
    names = linear.trainable.export(tmp_path, linear.rows)
    expect(linear, tmp_path)
    if linear.form == "keras":
        assert "model.keras" in names
        in_plain_python(_CHECK_KERAS, tmp_path)
    elif linear.form == "torch":
        assert "torch.nn.EmbeddingBag(50, 2" in (tmp_path / "README.md").read_text()
        in_plain_python(_CHECK_TORCH, tmp_path)
    else:  # the class itself uses elasticdl's layer: its tensors are exported by name
        tensors = load_file(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(tensors["linear/items/embeddings"], linear.rows.rows("items", np.arange(50)))
        assert {t.shape for t in tensors.values()} == {(50, 2), (5, 1), (1,)}
        as_the_readme_says(tmp_path)


def as_the_readme_says(directory: Path) -> None:
    """Run the code of the export's README; what it predicts is what the trainable predicted."""
    in_plain_python(_README.format(models=str(MODELS), repository=str(REPOSITORY)), directory, blocked=False)


_README = """
import sys
sys.path[:0] = [{repository!r}, {models!r}]
import numpy as np
data = dict(np.load("check.npz"))
expected, features = data.pop("expected"), data
lines = open("README.md").read().splitlines()
code = "\\n".join(line[4:] for line in lines if line.startswith("    "))
if "torch" in code:
    import torch
    features = {{k: torch.from_numpy(v) for k, v in features.items()}}
exec(code)
found = predictions if "predictions" in globals() else model(features)
found = found.detach().numpy() if hasattr(found, "detach") else np.asarray(found)
np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
"""


def test_a_model_without_tables_loads_as_it_is(digits: Case, tmp_path: Path) -> None:
    trained(digits)
    digits.trainable.export(tmp_path, digits.rows)
    expect(digits, tmp_path)
    if digits.form == "keras":
        in_plain_python(_CHECK_KERAS, tmp_path)
    elif digits.form == "subclass":
        load_class = f"sys.path.insert(0, {str(MODELS)!r})\nfrom digits_subclass import Digits\n"
        program = _CHECK_KERAS.replace('"model.keras")', '"model.keras", custom_objects={"Digits": Digits})')
        in_plain_python(load_class + program, tmp_path)
    else:
        program = f"""
sys.path.insert(0, {str(MODELS)!r})
import numpy as np, torch
from digits_torch import custom_model
from safetensors.torch import load_file
model = custom_model()
model.load_state_dict(load_file("model.safetensors"))
data = {{k: torch.from_numpy(v) for k, v in np.load("check.npz").items()}}
torch.testing.assert_close(model.eval()(data["x"]), data["expected"])
"""
        in_plain_python(program, tmp_path)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "subclass"])
def test_open_ended_tables_are_files_of_ids_and_rows(form: str, tmp_path: Path) -> None:
    case = open_ended(form)
    case.batches[0].features["ids"][0, 0] = 2**31 - 2
    trained(case)
    case.trainable.export(tmp_path, case.rows)
    table = load_file(tmp_path / "items.safetensors")
    np.testing.assert_array_equal(np.sort(table["ids"]), case.rows.ids("items"))
    assert 2**31 - 2 in table["ids"]
    np.testing.assert_array_equal(table["rows"], case.rows.rows("items", table["ids"]))
    assert not any("items" in name for name in load_file(tmp_path / "model.safetensors"))
    expect_known_ids(case, tmp_path)
    as_the_readme_says(tmp_path)


def open_ended(form: str) -> Case:
    code, trainable = load(f"linear_{form}", lambda: None, input_dim=None)
    return Case(form, code, trainable, linear_batches())


def expect_known_ids(case: Case, directory: Path) -> None:
    """As `expect`, of ids that have a row: an open-ended table does not say how others would be born."""
    known = [i for i in case.rows.ids("items") if i < 20]
    features = {"x": case.batches[0].features["x"], "ids": np.resize(known, (8, 2))}
    np.savez(directory / "check.npz", expected=case.trainable.predict(features, case.rows), **features)


def test_a_model_larger_than_a_file_is_cut_into_files_with_an_index(
    linear: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 150)  # the table has 400 bytes
    trained(linear)
    names = linear.trainable.export(tmp_path, linear.rows)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * (50 * 2 + 5 + 1)
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{n:05d}-of-00004.safetensors" for n in range(1, 5)]
    assert set(files) < set(names)
    held = {}
    for file in files:
        tensors = load_file(tmp_path / file)
        assert sum(t.nbytes for t in tensors.values()) <= 150
        held |= {name: (file, tensor) for name, tensor in tensors.items()}
    assert {name: file for name, (file, _) in held.items()} == index["weight_map"]
    parts = sorted((int(name.partition("@")[2]), t) for name, (_, t) in held.items() if "@" in name)
    assert [first for first, _ in parts] == [0, 18, 36]
    np.testing.assert_array_equal(np.concatenate([t for _, t in parts]), linear.rows.rows("items", np.arange(50)))
    expect(linear, tmp_path)
    as_the_readme_says(tmp_path)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "subclass"])
def test_an_open_ended_table_larger_than_a_file_is_cut_too(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 90)  # five pairs of an id and a row
    case = open_ended(form)
    trained(case)
    case.trainable.export(tmp_path, case.rows)
    index = json.loads((tmp_path / "items.safetensors.index.json").read_text())
    ids, rows = [], []
    for number, file in enumerate(sorted(set(index["weight_map"].values())), 1):
        shard = load_file(tmp_path / file)
        assert set(shard) == {f"ids.{number:05d}", f"rows.{number:05d}"}
        assert 0 < len(shard[f"ids.{number:05d}"]) <= 5
        ids.append(shard[f"ids.{number:05d}"])
        rows.append(shard[f"rows.{number:05d}"])
    known = case.rows.ids("items")
    assert len(ids) == -(-len(known) // 5) > 2
    assert index["metadata"] == {"total_size": 16 * len(known), "rows": len(known), "table": "items"}
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), known)
    np.testing.assert_array_equal(np.concatenate(rows), case.rows.rows("items", np.concatenate(ids)))
    expect_known_ids(case, tmp_path)
    as_the_readme_says(tmp_path)


def test_the_manifest_lists_every_file_with_its_digest(digits: Case, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the user's own")
    for _ in range(2):  # a second export replaces the first
        names = digits.trainable.export(tmp_path, digits.rows)
    assert names[-1] == "manifest.json"
    assert {p.name for p in tmp_path.iterdir()} == {*names, "notes.txt"}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["files"]) == set(names) - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    reference = json.loads((tmp_path / "model.json").read_text())
    assert (reference["module"], reference["symbol"]) == (f"digits_{digits.form}", "custom_model")


_KILLED = f"""
import numpy as np, sys
from pathlib import Path
from elasticdl import faults
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelRequest
faults.arm("worker")
trainable = load_trainable(ModelRequest({str(MODELS)!r}, "digits_keras.custom_model"), 7)
trainable.export(Path(sys.argv[1]), None)
"""


def test_an_export_killed_before_its_manifest_is_invisible_and_the_next_one_completes_it(tmp_path: Path) -> None:
    target = tmp_path / "model"
    environment = os.environ | {"ELASTICDL_FAULTS": "worker.before_manifest@worker:1"}
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(target)], cwd=REPOSITORY, env=environment)
    assert killed.returncode == -9
    assert target.exists() and not (target / "manifest.json").exists()
    _, trainable = load("digits_keras", lambda: None)
    names = trainable.export(target, MemoryRows(trainable.parameters))
    assert {p.name for p in target.iterdir()} == set(names)


_CHECK_FORM = _CHECK_KERAS.replace('("x", "ids")', '("weights", "ids")')


@pytest.mark.parametrize("form", ["padded_sqrtn", "padded", "mask_zero", "padded_mean", "weighted", "hidden"])
def test_every_form_of_the_keras_layer_predicts_the_same_when_exported(form: str, tmp_path: Path) -> None:
    code, trainable = load("forms_keras", lambda: None, form=form)
    draw, padding = np.random.default_rng(2), 0 if form in ("mask_zero", "padded_mean") else -1
    ids = draw.integers(1, 30, (8, 4))
    ids[draw.random((8, 4)) < 0.4] = padding
    ids[3] = padding
    features = {"ids": ids, "weights": draw.random((8, 4)).astype(np.float32)}
    case = Case(form, code, trainable, [Batch(features, draw.normal(size=(8, 1)).astype(np.float32))] * 3)
    trained(case)
    assert padding not in case.rows.ids("items")
    names = trainable.export(tmp_path, case.rows)
    np.savez(tmp_path / "check.npz", expected=trainable.predict(features, case.rows), **features)
    if form in ("weighted", "hidden"):  # what no plain Keras layer does, or where none can be put
        assert "model.safetensors" in names
        as_the_readme_says(tmp_path)
    else:
        assert "model.keras" in names
        in_plain_python(_CHECK_FORM, tmp_path)

"""The language models of the zoo learn the sentences of a small grammar, as replicas of an all-reduce job."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="all-reduce exchanges torch tensors")

from elasticdl.data.custom import CustomReader  # noqa: E402
from elasticdl.frameworks.loading import load_replica  # noqa: E402
from elasticdl.frameworks.model_file import ModelFile, ModelRequest  # noqa: E402

REPOSITORY = Path(__file__).parents[2]


def sentences(count: int) -> str:
    draw = random.Random(4)
    actor, does, what = ("a worker", "the master", "a server"), ("hears", "sends", "keeps"), ("a step", "the state")
    return "".join(f"{draw.choice(actor)} {draw.choice(does)} {draw.choice(what)}. " for _ in range(count))


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["transformer_pytorch", "transformer_functional_api"])
def test_transformers_learn_sentences(name: str, tmp_path: Path) -> None:
    """A hundred steps of 16 windows: of the bytes of unseen sentences at least 0.8 are predicted."""
    (tmp_path / "book.txt").write_text(sentences(3000))
    request = ModelRequest(str(REPOSITORY / "model_zoo"), f"text.{name}.custom_model", params={"context": 32})
    code = ModelFile(request)
    reader = CustomReader(code.custom_data_reader(str(tmp_path), context="32"))
    [file] = reader.describe().files
    assert file.records == ((tmp_path / "book.txt").stat().st_size - 1) // 32
    replica = load_replica(code, 3, device="cpu")
    for step in range(100):
        features, labels = code.feed(reader.read(file.name, 16 * step, 16 * step + 16), "training", {})
        _, vector = replica.part(features, labels, step)
        replica.apply(vector, step, 0)
    features, labels = code.feed(reader.read(file.name, file.records - 50, file.records), "evaluation", {})
    assert features.shape == labels.shape == (50, 32)
    np.testing.assert_array_equal(features[:, 1:], labels[:, :-1])
    metrics = replica.new_metrics()
    metrics.update(labels, replica.predict(features))
    assert metrics.result()["accuracy"] >= 0.8
    assert "manifest.json" in replica.export(tmp_path / "exported")

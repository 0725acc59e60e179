"""MNIST's shape and RecordIO form, and the flags with which the tutorials train on it."""

from __future__ import annotations

from pathlib import Path

from elasticdl.data.example import encode_example
from elasticdl.data.recordio import RecordIOWriter
from tests.kubernetes.cluster_jobs import ROOT

RECORDS = 960  # to train on


def write_digits(folder: Path) -> Path:
    """8x8 digits, enlarged."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large = np.pad(np.kron(images.reshape(-1, 8, 8), np.ones((3, 3))) * (255 / 16), ((0, 0), (2, 2), (2, 2)))
    for name, part in (("train", range(RECORDS)), ("test", range(RECORDS, RECORDS + 256))):
        (folder / name).mkdir(parents=True)
        with RecordIOWriter(folder / name / "part-0.recordio") as writer:
            for i in part:
                writer.write(encode_example({"image": large[i].astype(np.uint8).tobytes(), "label": int(labels[i])}))
    return folder


def mnist(digits: Path, strategy: str) -> list[str]:
    """The flags of the first tutorial, except for the sizes of data and pods."""
    return [
        f"--model_zoo={ROOT / 'model_zoo'}", "--model_def=mnist.mnist_functional_api.custom_model",
        f"--training_data={digits / 'train'}", "--minibatch_size=64", "--num_minibatches_per_task=2",
        f"--distribution_strategy={strategy}",
    ]  # fmt: skip

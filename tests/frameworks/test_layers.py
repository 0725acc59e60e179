"""The embedding layers whose rows live on the servers, one by one against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the lookup used here is torch's")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("the lookup used here is torch's", allow_module_level=True)

from elasticdl.errors import ModelError  # noqa: E402
from elasticdl.frameworks.rows import answered_by, summed  # noqa: E402
from elasticdl.frameworks.torch_rows import TorchLookup  # noqa: E402
from elasticdl.job.parameters import InitializerSpec  # noqa: E402
from elasticdl.layers import Embedding as KerasEmbedding  # noqa: E402
from elasticdl.layers.torch import Embedding as TorchEmbedding  # noqa: E402

IDS = np.array([[3, 0, 7], [0, 0, 0], [7, 7, 2**40]])


class Squares:
    """Row of an id: [id mod 10, (id mod 10) squared]."""

    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        last = (ids % 10).astype(np.float32)
        return np.stack([last, last**2], axis=1)


def looked_up(layer: Any) -> np.ndarray:
    with answered_by(TorchLookup(Squares(), training=False)):
        return layer(torch.from_numpy(IDS)).numpy()


ROWS = Squares().rows("", IDS.reshape(-1)).reshape(3, 3, 2)
KEPT = (IDS != 0)[..., None]
COUNT = np.maximum(KEPT.sum(axis=1), 1)
EXPECTED = {
    ("sum", False): ROWS.sum(axis=1),
    ("mean", False): ROWS.mean(axis=1),
    ("sqrtn", False): ROWS.sum(axis=1) / np.sqrt(3),
    ("sum", True): (ROWS * KEPT).sum(axis=1),
    ("mean", True): (ROWS * KEPT).sum(axis=1) / COUNT,
    ("sqrtn", True): (ROWS * KEPT).sum(axis=1) / np.sqrt(COUNT),
}


@pytest.mark.parametrize(("combiner", "padded"), EXPECTED)
def test_a_combiner_reduces_the_last_axis_and_padding_counts_as_nothing(combiner: Any, padded: bool) -> None:
    for layer in (
        KerasEmbedding(2, combiner=combiner, mask_zero=padded),
        TorchEmbedding(2, combiner=combiner, padding_idx=0 if padded else None),
    ):
        np.testing.assert_allclose(looked_up(layer), EXPECTED[combiner, padded], rtol=1e-6)


def test_without_a_combiner_every_id_has_its_row() -> None:
    for layer in (KerasEmbedding(2), TorchEmbedding(2)):
        np.testing.assert_array_equal(looked_up(layer), ROWS)


def test_keras_padding_without_a_combiner_is_the_mask_of_later_layers() -> None:
    mask = KerasEmbedding(2, mask_zero=True).compute_mask(torch.from_numpy(IDS))
    np.testing.assert_array_equal(mask.numpy(), IDS != 0)


def test_padding_gets_no_gradient() -> None:
    layer, lookup = TorchEmbedding(2, combiner="sum", padding_idx=0), TorchLookup(Squares(), training=True)
    with answered_by(lookup):
        layer(torch.from_numpy(IDS)).sum().backward()
    ids, gradients = lookup.gradients()["embedding"]
    assert dict(zip(ids.tolist(), gradients.tolist(), strict=True)) == {
        0: [0, 0],
        3: [1, 1],
        7: [3, 3],
        2**40: [1, 1],
    }


def test_several_calls_of_one_layer_sum_their_gradients() -> None:
    layer, lookup = TorchEmbedding(2), TorchLookup(Squares(), training=True)
    with answered_by(lookup):
        (layer(torch.tensor([1, 2])).sum() + 2 * layer(torch.tensor([[2, 5]])).sum()).backward()
    ids, gradients = lookup.gradients()["embedding"]
    assert dict(zip(ids.tolist(), gradients[:, 0].tolist(), strict=True)) == {1: 1, 2: 3, 5: 2}


def test_no_ids_are_no_rows_and_no_gradients() -> None:
    layer, lookup = TorchEmbedding(2, combiner="sum"), TorchLookup(Squares(), training=True)
    with answered_by(lookup):
        found = layer(torch.zeros((4, 0), dtype=torch.int64))
        (found.sum() + torch.zeros(1, requires_grad=True)).backward()
    assert found.shape == (4, 2)
    assert lookup.gradients() == {}


def test_gradients_of_several_parts_are_added_by_id() -> None:
    one = np.array([5, 1]), np.array([[1.0], [2.0]], np.float32)
    two = np.array([1, 9]), np.array([[10.0], [20.0]], np.float32)
    ids, gradients = summed([one, two])
    assert ids.tolist() == [1, 5, 9]
    assert gradients.tolist() == [[12.0], [1.0], [20.0]]


@pytest.mark.parametrize("layer", [KerasEmbedding(2, name="items"), TorchEmbedding(2)])
def test_a_layer_outside_a_job_says_where_its_rows_are(layer: Any) -> None:
    with pytest.raises((ModelError, RuntimeError), match="called outside a job; its rows live on the job's"):
        layer(torch.tensor([1]))


def test_ids_that_are_not_integers_are_refused() -> None:
    for layer in (KerasEmbedding(2), TorchEmbedding(2)):
        with pytest.raises((ModelError, RuntimeError, TypeError), match="must be integers"):
            layer(torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [
        ("uniform", InitializerSpec(kind="uniform", a=-0.05, b=0.05)),
        ("zeros", InitializerSpec(kind="constant", a=0.0)),
        (keras.initializers.Constant(0.5), InitializerSpec(kind="constant", a=0.5)),
        (keras.initializers.RandomNormal(0.1, 0.2), InitializerSpec(kind="normal", a=0.1, b=0.2)),
    ],
)
def test_keras_initializers_are_described(initializer: Any, expected: InitializerSpec) -> None:
    assert KerasEmbedding(2, embeddings_initializer=initializer).table("t").initializer == expected


def test_an_initializer_that_needs_the_whole_matrix_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="GlorotUniform is not supported"):
        KerasEmbedding(2, embeddings_initializer="glorot_uniform")
    with pytest.raises(ModelError, match="initializer='xavier' is not known"):
        TorchEmbedding(2, initializer="xavier")


def test_an_unknown_combiner_is_refused() -> None:
    for layer in (KerasEmbedding, TorchEmbedding):
        with pytest.raises(ModelError, match="combiner='max' is not known"):
            layer(2, combiner="max")


def test_the_functional_shape_is_known_without_rows() -> None:
    ids = keras.Input((26,), dtype="int64")
    assert KerasEmbedding(8)(ids).shape == (None, 26, 8)
    assert KerasEmbedding(8, combiner="sum")(ids).shape == (None, 8)

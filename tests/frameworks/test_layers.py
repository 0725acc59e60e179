"""Each embedding layer whose rows are on the servers, against plain numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the lookup used here is torch's")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("the lookup used here is torch's", allow_module_level=True)

from elasticdl.errors import ModelError  # noqa: E402
from elasticdl.frameworks.rows import answered_by, summed  # noqa: E402
from elasticdl.frameworks.torch.rows import TorchLookup  # noqa: E402
from elasticdl.job.parameters import InitializerSpec  # noqa: E402
from elasticdl.layers import Embedding as KerasEmbedding  # noqa: E402
from elasticdl.layers.torch import Embedding as TorchEmbedding  # noqa: E402

IDS = np.array([[3, 0, 7], [0, 0, 0], [7, 7, 2**40]])


class Squares:
    """Row of an id: [id mod 10, (id mod 10) squared]. Notes what it is asked for."""

    def __init__(self, asked: list[int] | None = None) -> None:
        self._asked = asked if asked is not None else []

    def rows(self, table: str, ids: np.ndarray) -> np.ndarray:
        self._asked += ids.tolist()
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


@pytest.mark.parametrize("padding", [0, 7, -1, 2**40, 5])
@pytest.mark.parametrize("combiner", [None, "sum"])
def test_padding_is_zeros_and_is_never_asked_for(padding: int, combiner: Any) -> None:
    ids = np.where(IDS == 0, padding, IDS) if padding != 7 else IDS
    for make in (
        lambda: TorchEmbedding(2, combiner=combiner, padding_idx=padding),
        lambda: KerasEmbedding(2, combiner=combiner, mask_value=padding),
    ):
        asked: list[int] = []
        layer, lookup = make(), TorchLookup(Squares(asked), training=True)
        with answered_by(lookup):
            found = layer(torch.from_numpy(ids))
            found.sum().backward()
        kept = np.unique(ids[ids != padding])
        assert sorted(asked) == kept.tolist()
        expected = Squares().rows("", ids.reshape(-1)).reshape(3, 3, 2) * (ids != padding)[..., None]
        np.testing.assert_array_equal(found.detach().numpy(), expected if combiner is None else expected.sum(1))
        [(found_ids, gradients)] = lookup.gradients().values()
        counts = {i: float((ids == i).sum()) for i in kept.tolist()}
        assert dict(zip(found_ids.tolist(), gradients[:, 0].tolist(), strict=True)) == counts


BAGS = [[3, 2**62 + 7, 3], [], [-(2**63)], [2**63 - 1, 5]]


def reference(combiner: str, weights: list[list[float]] | None = None) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Values per bag and the gradient of their sum, weighted by [1, 10]; by plain arithmetic."""
    values, gradients = np.zeros((len(BAGS), 2)), {}
    for n, bag in enumerate(BAGS):
        w = np.array(weights[n] if weights else [1.0] * len(bag))
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner] if len(bag) else 1.0
        for i, one in zip(bag, w, strict=True):
            values[n] += Squares().rows("", np.array([i]))[0] * one / divisor
            gradients[i] = gradients.get(i, 0) + np.array([1.0, 10.0]) * one / divisor
    return values, gradients


def jagged() -> Any:
    return torch.nested.nested_tensor([torch.tensor(b, dtype=torch.int64) for b in BAGS], layout=torch.jagged)


FLAT = np.array([i for bag in BAGS for i in bag], np.int64)
RAGGED = {
    "a list of tensors": lambda layer, **w: layer([torch.tensor(b, dtype=torch.int64) for b in BAGS], **w),
    "a list of arrays": lambda layer, **w: layer([np.array(b, np.int64) for b in BAGS], **w),
    "a list of lists": lambda layer, **w: layer(BAGS, **w),
    "ids and offsets": lambda layer, **w: layer(torch.from_numpy(FLAT), torch.tensor([0, 3, 3, 4]), **w),
    "a pair of arrays": lambda layer, **w: layer((FLAT, np.array([0, 3, 3, 4])), **w),
    "a nested tensor": lambda layer, **w: layer(jagged(), **w),
}


@pytest.mark.parametrize("form", RAGGED)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags_of_different_lengths_are_reduced_one_by_one(combiner: Any, form: str) -> None:
    lookup = TorchLookup(Squares(), training=True)
    with answered_by(lookup):
        found = RAGGED[form](TorchEmbedding(2, combiner=combiner))
        (found * torch.tensor([1.0, 10.0])).sum().backward()
    values, gradients = reference(combiner)
    np.testing.assert_allclose(found.detach().numpy(), values, rtol=1e-6)
    [(ids, rows)] = lookup.gradients().values()
    assert ids.tolist() == sorted(gradients)
    np.testing.assert_allclose(rows, [gradients[i] for i in ids.tolist()], rtol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_count_as_in_an_average(combiner: Any) -> None:
    weights = [[0.5, 2.0, 1.0], [], [3.0], [0.25, 4.0]]
    flat = torch.tensor([w for bag in weights for w in bag], requires_grad=True)
    lookup = TorchLookup(Squares(), training=True)
    with answered_by(lookup):
        found = RAGGED["ids and offsets"](TorchEmbedding(2, combiner=combiner), per_sample_weights=flat)
        (found * torch.tensor([1.0, 10.0])).sum().backward()
    values, gradients = reference(combiner, weights)
    np.testing.assert_allclose(found.detach().numpy(), values, rtol=1e-6)
    [(ids, rows)] = lookup.gradients().values()
    np.testing.assert_allclose(rows, [gradients[i] for i in ids.tolist()], rtol=1e-6)
    assert torch.isfinite(flat.grad).all()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padded", [False, True])
def test_values_and_gradients_are_those_of_an_embedding_bag(mode: Any, padded: bool) -> None:
    ids, padding = np.random.default_rng(0).integers(0, 9, (6, 4)), 3 if padded else None
    ids[2] = 3  # with padding: an empty bag
    plain = torch.nn.EmbeddingBag(9, 2, mode=mode, padding_idx=padding)
    plain.weight.data = torch.from_numpy(Squares().rows("", np.arange(9)))
    for layer in (
        TorchEmbedding(2, 9, padding_idx=padding, combiner=mode),
        KerasEmbedding(2, input_dim=9, mask_value=padding, combiner=mode),
    ):
        plain.zero_grad()
        expected = plain(torch.from_numpy(ids))
        (expected**2).sum().backward()
        lookup = TorchLookup(Squares(), training=True)
        with answered_by(lookup):
            found = layer(torch.from_numpy(ids))
            (found**2).sum().backward()
        np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-6)
        gradients = np.zeros((9, 2), np.float32)
        [(where, rows)] = lookup.gradients().values()
        gradients[where] = rows
        np.testing.assert_allclose(gradients, plain.weight.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_keras_weights_and_padding_together(combiner: Any) -> None:
    ids = np.array([[1, 2, -1], [-1, -1, -1], [4, 4, 9]])
    weights = np.array([[0.5, 2.0, 7.0], [1.0, 1.0, 1.0], [1.0, 3.0, 0.25]], np.float32)
    kept = weights * (ids != -1)
    rows = Squares().rows("", ids.reshape(-1)).reshape(3, 3, 2)
    divisor = {"sum": np.ones(3), "mean": kept.sum(1), "sqrtn": np.sqrt((kept**2).sum(1))}[combiner]
    expected = (rows * kept[..., None]).sum(1) / np.where(divisor == 0, 1, divisor)[:, None]
    layer = KerasEmbedding(2, combiner=combiner, mask_value=-1)
    with answered_by(TorchLookup(Squares(), training=False)):
        np.testing.assert_allclose(layer(ids, weights=weights).numpy(), expected, rtol=1e-6)
        torch_layer = TorchEmbedding(2, combiner=combiner, padding_idx=-1)
        found = torch_layer(torch.from_numpy(ids), per_sample_weights=torch.from_numpy(weights))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_every_64_bit_id_arrives_as_it_is() -> None:
    ids = np.array([[-(2**63), -1, 0], [2**53 + 1, 2**62 + 1, 2**63 - 1]])
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, KerasEmbedding(2)(inputs))
    for layer in (model, KerasEmbedding(2), TorchEmbedding(2)):
        asked: list[int] = []
        with answered_by(TorchLookup(Squares(asked), training=False)):
            layer(torch.from_numpy(ids))
        assert asked == np.sort(ids.reshape(-1)).tolist()


def test_a_list_without_a_combiner_gives_the_rows_of_each_bag() -> None:
    with answered_by(TorchLookup(Squares(), training=False)):
        found = TorchEmbedding(2)(BAGS)
    assert [f.shape for f in found] == [(3, 2), (0, 2), (1, 2), (2, 2)]
    np.testing.assert_array_equal(torch.cat(found).numpy(), Squares().rows("", FLAT))


def named(layer: Any) -> Any:
    layer.bind(layer.table("items"))
    return layer


WRONG: dict[str, tuple[Any, str, str]] = {
    "floats": (
        lambda: named(TorchEmbedding(2))(torch.tensor([1.5])),
        r"layer 'items': ids have type torch.float32 and shape \(1,\)",
        "create int64 ids in feed",
    ),
    "text": (
        lambda: named(TorchEmbedding(2))(np.array(["a", "b"])),
        r"layer 'items': ids have type <U1 and shape \(2,\)",
        "text needs a hash",
    ),
    "truth": (lambda: named(TorchEmbedding(2))(torch.tensor([True])), "ids have type torch.bool", "must be integers"),
    "one axis": (
        lambda: named(TorchEmbedding(2, combiner="sum"))(torch.tensor([1, 2])),
        r"layer 'items': ids have shape \(2,\); combiner='sum'",
        "or ids on one axis with offsets",
    ),
    "four axes": (
        lambda: named(TorchEmbedding(2, combiner="sum"))(torch.zeros((2, 2, 2, 2), dtype=torch.int64)),
        r"ids have shape \(2, 2, 2, 2\); combiner='sum'",
        r"Pass ids \[records, ids\]",
    ),
    "offsets that fall": (
        lambda: named(TorchEmbedding(2, combiner="sum"))(torch.arange(4), torch.tensor([0, 3, 2])),
        r"offsets \[0, 3, 2\] do not split 4 ids into bags",
        "start with 0 and never decrease",
    ),
    "offsets that end early": (
        lambda: named(TorchEmbedding(2, combiner="sum", include_last_offset=True))(
            torch.arange(4), torch.tensor([0, 3])
        ),
        r"offsets \[0, 3\] do not split 4 ids into bags",
        "end with the number of ids",
    ),
    "a bag of two axes": (
        lambda: named(TorchEmbedding(2, combiner="sum"))([np.zeros((2, 2), np.int64)]),
        r"a bag has shape \(2, 2\)",
        "one 1-d array of ids per record",
    ),
    "weights without a combiner": (
        lambda: named(TorchEmbedding(2))(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1)),
        "weights need a combiner",
        "combiner='sum'",
    ),
    "weights of another shape": (
        lambda: named(TorchEmbedding(2, combiner="sum"))(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 2)),
        r"weights have shape \(1, 2\), but ids have shape \(1, 1\)",
        "one weight per id",
    ),
    "a negative id": (
        lambda: named(TorchEmbedding(2, 10))(torch.tensor([1, -3])),
        "layer 'items': it was called with id -3, but it is declared with 10 ids: 0 to 9",
        "without a number of ids",
    ),
    "an id too large": (
        lambda: named(TorchEmbedding(2, 10))(torch.tensor([1, 10])),
        "it was called with id 10, but it is declared with 10 ids: 0 to 9",
        "Declare it larger",
    ),
    "Keras floats": (
        lambda: KerasEmbedding(2, name="items")(keras.Input((3,))),
        r"layer 'items': ids have type float32 and shape \(None, 3\); they must be integers",
        'dtype="int64"',
    ),
    "Keras one axis": (
        lambda: KerasEmbedding(2, combiner="mean", name="items")(keras.Input((), dtype="int64")),
        r"layer 'items': ids have shape \(None,\); combiner='mean'",
        "For one id per record remove the combiner",
    ),
    "Keras four axes": (
        lambda: KerasEmbedding(2, combiner="mean", name="items")(keras.Input((1, 2, 3), dtype="int64")),
        r"ids have shape \(None, 1, 2, 3\)",
        r"\[records, fields, ids\]",
    ),
    "Keras weights of another shape": (
        lambda: KerasEmbedding(2, combiner="mean", name="items")(
            keras.Input((3,), dtype="int64"), weights=keras.Input((2,))
        ),
        r"weights have shape \(None, 2\), but ids have shape \(None, 3\)",
        "one weight per id",
    ),
    "Keras id too large": (
        lambda: KerasEmbedding(2, input_dim=10, name="items")(np.array([[11]])),
        "it was called with id 11, but it is declared with 10 ids",
        "map ids into this range",
    ),
    "no admission": (
        lambda: TorchEmbedding(2, admit_after=0),
        "admit_after=0: input should be greater than or equal to 1",
        "Correct the arguments of the layer",
    ),
    "two kinds of padding": (
        lambda: KerasEmbedding(2, mask_zero=True, mask_value=-1, name="items"),
        "layer 'items': both mask_zero and mask_value=-1 are set",
        "Use one of them",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ids_are_named_with_their_layer_and_a_remedy(case: str) -> None:
    keras.config.disable_traceback_filtering()  # as in a job
    call, what, remedy = WRONG[case]
    with answered_by(TorchLookup(Squares(), training=False)), pytest.raises(ModelError, match=what) as caught:
        call()
    assert re.search(remedy, str(caught.value))


def test_admission_and_eviction_are_told_to_the_servers() -> None:
    for layer in (
        TorchEmbedding(2, admit_after=3, evict_after_steps=100),
        KerasEmbedding(2, admit_after=3, evict_after_steps=100),
        KerasEmbedding.from_config(KerasEmbedding(2, admit_after=3, evict_after_steps=100).get_config()),
    ):
        assert (layer.table("t").admit_after, layer.table("t").evict_after_steps) == (3, 100)
    assert (TorchEmbedding(2).table("t").admit_after, TorchEmbedding(2).table("t").evict_after_steps) == (None, None)


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
        ("he_uniform", InitializerSpec(kind="uniform", a=-((6 / 24) ** 0.5), b=(6 / 24) ** 0.5)),
        (keras.initializers.RandomNormal(0.1, 0.2), InitializerSpec(kind="normal", a=0.1, b=0.2)),
    ],
)
def test_keras_initializers_are_described(initializer: Any, expected: InitializerSpec) -> None:
    assert KerasEmbedding(2, 24, embeddings_initializer=initializer).table("t").initializer == expected


def test_an_initializer_that_needs_the_whole_matrix_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="GlorotUniform is not supported: GlorotUniform depends on the number of ids"):
        KerasEmbedding(2, embeddings_initializer="glorot_uniform")
    with pytest.raises(ModelError, match=r"Orthogonal is not supported: .* creates the whole matrix at once"):
        KerasEmbedding(2, input_dim=9, embeddings_initializer="orthogonal")
    with pytest.raises(ModelError, match="initializer='xavier' is not supported"):
        TorchEmbedding(2, initializer="xavier")


def test_an_unknown_combiner_is_refused() -> None:
    for layer in (KerasEmbedding, TorchEmbedding):
        with pytest.raises(ModelError, match="combiner='max' is not supported"):
            layer(2, combiner="max")


def test_the_functional_shape_is_known_without_rows() -> None:
    ids = keras.Input((26,), dtype="int64")
    assert KerasEmbedding(8)(ids).shape == (None, 26, 8)
    assert KerasEmbedding(8, combiner="sum")(ids).shape == (None, 8)

"""What one server holds: dense slices, rows and the views pinned of them."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps.parameters import EXPORT_ROWS, Parameters, table_seed
from tests.ps.servers import SEED, Numpy, model
from tests.ps.stores import OPTIMIZERS, native_store


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_batches_move_everything_as_one_machine_would(optimizer: str) -> None:
    spec = model(OPTIMIZERS[optimizer])
    parameters = Parameters(spec, 0, 1, SEED)
    random = np.random.default_rng(3)
    parameters.weights[:] = random.normal(size=len(parameters.weights))
    parameters.state[:] = 1
    truth = Numpy(spec, parameters.weights, parameters.state)
    for step in range(1, 6):
        gradients = random.normal(size=len(parameters.weights)).astype(np.float32)
        difference = random.normal(size=len(parameters.state)).astype(np.float32)
        ids = {
            n: (random.integers(0, 9, 20), random.normal(size=(20, t.dim)).astype(np.float32))
            for n, t in enumerate(spec.tables)
        }
        parameters.apply(step, gradients, difference, ids)
        truth.push(gradients, difference, {spec.tables[n].name: r for n, r in ids.items()})
    np.testing.assert_array_equal(parameters.weights, truth.weights)
    np.testing.assert_array_equal(parameters.slots, np.concatenate(truth.slots) if truth.slots else [])
    np.testing.assert_array_equal(parameters.state, truth.state)
    for number, table in enumerate(truth.tables.values()):
        everything = np.arange(9)
        np.testing.assert_array_equal(parameters.rows(number, everything), table.peek(everything, 0))


def test_a_pinned_view_stands_still_and_creates_no_rows() -> None:
    parameters = Parameters(model(OPTIMIZERS["sgd"]), 0, 1, SEED)
    known, unknown = np.array([1, 2]), np.array([3])
    before = parameters.rows(0, known)
    parameters.pin(5)
    parameters.pin(5)  # said twice
    one = np.ones((2, 2), np.float32)
    parameters.apply(1, np.ones_like(parameters.weights), np.ones_like(parameters.state), {0: (known, one)})
    weights, state = parameters.pull(5)
    assert not weights.any() and not state.any()
    assert parameters.pull()[0].any() and parameters.pull()[1].all()
    np.testing.assert_array_equal(parameters.rows(0, known, view=5), before)
    assert (parameters.rows(0, known) != before).all()
    born = parameters.rows(0, unknown, view=5)
    assert len(parameters.tables[0]) == 2, "reading a view creates no row"
    np.testing.assert_array_equal(parameters.rows(0, unknown, create=False), born)
    assert len(parameters.tables[0]) == 2
    np.testing.assert_array_equal(parameters.rows(0, unknown), born)
    assert len(parameters.tables[0]) == 3
    parameters.release(5)
    parameters.release(5)
    with pytest.raises(KeyError, match="this server has no view 5"):
        parameters.pull(5)


def test_pinning_a_view_releases_older_views() -> None:
    """The word to drop it may be lost with a master; the copies it holds must not stay for ever."""
    parameters = Parameters(model(OPTIMIZERS["sgd"]), 0, 1, SEED)
    ids = np.arange(5000)
    parameters.rows(0, ids)
    sizes = []
    for cut in range(1, 6):
        parameters.pin(cut)
        parameters.apply(cut, parameters.weights, parameters.state, {0: (ids, np.ones((5000, 2), np.float32))})
        sizes.append(parameters.tables[0].nbytes())
    assert max(sizes[1:]) <= sizes[0]
    with pytest.raises(KeyError, match="this server has no view 4"):
        parameters.pull(4)
    parameters.pull(5)


def test_rows_are_born_the_same_on_every_server_and_for_every_order_of_tables() -> None:
    ids = np.arange(50)
    ones = Parameters(model(OPTIMIZERS["sgd"]), 0, 1, SEED)
    for index in range(3):
        other = Parameters(model(OPTIMIZERS["sgd"]), index, 3, SEED)
        np.testing.assert_array_equal(other.rows(1, ids[::-1].copy())[::-1], ones.rows(1, ids))
    turned = ParametersSpec(variables=(), tables=ones.spec.tables[::-1], optimizer=ones.spec.optimizer)
    np.testing.assert_array_equal(Parameters(turned, 0, 1, SEED).rows(0, ids), ones.rows(1, ids))
    assert (Parameters(model(OPTIMIZERS["sgd"]), 0, 1, SEED + 1).rows(1, ids) != ones.rows(1, ids)).all()


def test_the_seed_of_a_table_never_changes() -> None:
    assert table_seed(0, "items") == int.from_bytes(bytes.fromhex("f03031553b791864"), "little")
    assert table_seed(0, "items") != table_seed(1, "items") != table_seed(1, "users")


def test_export_gives_every_row_once_in_pieces() -> None:
    spec = ParametersSpec(
        variables=(VariableSpec(name="v", shape=(1,)),),
        tables=(TableSpec(name="t", dim=1),),
        optimizer=OPTIMIZERS["keras adam"],
    )
    parameters = Parameters(spec, 0, 1, SEED)
    ids = np.arange(EXPORT_ROWS + 5) * 7
    rows = parameters.rows(0, ids)
    first, again = parameters.export(0, 0), parameters.export(0, EXPORT_ROWS)
    assert len(first[0]) == EXPORT_ROWS and len(again[0]) == 5
    order = np.argsort(np.concatenate([first[0], again[0]]))
    np.testing.assert_array_equal(np.concatenate([first[1], again[1]])[order], rows)
    assert len(parameters.export(0, EXPORT_ROWS + 5)[0]) == 0
    assert len(parameters.export(0, 2**63)[0]) == 0


def test_rows_and_counts_that_were_not_pushed_for_long_go_by_themselves() -> None:
    spec = ParametersSpec(
        variables=(),
        tables=(
            TableSpec(name="aging", dim=1, evict_after_steps=20),
            TableSpec(name="choosy", dim=1, evict_after_steps=20, admit_after=2),
            TableSpec(name="plain", dim=1),
        ),
        optimizer=OPTIMIZERS["sgd"],
    )
    parameters = Parameters(spec, 0, 1, SEED)
    nothing, one = np.zeros(0, np.float32), np.ones((1, 1), np.float32)

    def push(step: int, id: int) -> None:
        parameters.apply(step, nothing, nothing, {n: (np.array([id]), one) for n in range(3)})

    push(1, 5)
    for step in range(2, 30):
        push(step, 6)
        assert len(parameters.tables[0]) == (2 if step < 21 else 1), "20 steps after its last push 5 goes"
    assert [len(t) for t in parameters.tables] == [1, 1, 2]
    assert [len(s) for s in parameters.stores] == [1, 1, 2, 0], "and the count of 5 with them"
    parameters.pin(1)
    for step in range(30, 60):
        push(step, 7)
    assert len(parameters.tables[0]) == 2, "a view has 6"
    parameters.release(1)
    push(60, 7)
    push(61, 7)
    assert len(parameters.tables[0]) == 1


def test_a_table_too_large_is_named_with_the_remedy() -> None:
    spec = ParametersSpec(variables=(), tables=(TableSpec(name="users", dim=2),), optimizer=OPTIMIZERS["sgd"])
    parameters = Parameters(spec, 0, 1, SEED)
    parameters.tables[0] = native_store(2, OPTIMIZERS["sgd"], max_rows=3)
    with pytest.raises(OverflowError) as raised:
        parameters.rows(0, np.arange(9))
    assert str(raised.value) == (
        "table users: no room for id 3: the store holds its limit of 3 rows. "
        "Give each server more memory (--ps_resource_request) or use more servers (--num_ps_pods)."
    )

"""Synchronous training on the servers: what is kept, rejected and repeated, when a round is applied, and as what."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import Refused
from elasticdl.job.parameters import OptimizerSpec, TableSpec
from elasticdl.ps.client import Batch, Client, Interrupted, Stale
from elasticdl.ps.connections import Reply
from elasticdl.ps.ledger import Ledger, Push, Verdict
from elasticdl.ps.rounds import Rounds, ledger_of
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire import frames
from tests.ps.servers import TIMELINE, TOKEN, Servers, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS


def rounds(size: int = 2, epoch_batches: int = 5, tolerance: int = 0, opened: int = 5) -> Rounds:
    ledger = Rounds(timeline=1, size=size, epoch_batches=epoch_batches, tolerance=tolerance)
    for index in range(opened):
        ledger.opened(f"train/0/{index}", 1, 0, 1)
    return ledger


def push(ledger: Rounds, index: int, on: int | None = None, attempt: int = 1, epoch: int = 0) -> Verdict:
    """Judge a push of a batch, computed on its round's version by default, and follow the verdict."""
    on = ledger.round_of(epoch, index) if on is None else on
    asked = Push(1, epoch, index, attempt, 0, on)
    verdict = ledger.judge(asked).verdict
    if verdict is Verdict.KEEP:
        ledger.keep(asked)
        ledger.confirm(epoch, index)
        while ledger.whole():
            ledger.round_applied()
    return verdict


def test_a_round_is_a_version_and_the_last_of_an_epoch_may_be_short() -> None:
    ledger = rounds()
    versions = [(push(ledger, i), ledger.version)[1] for i in (1, 0, 2, 3, 4)]
    assert versions == [0, 1, 1, 2, 3]
    ledger.opened("train/1/0", 1, 0, 1)
    assert ledger.round_of(1, 0) == 3 and push(ledger, 0, epoch=1) is Verdict.KEEP


def test_the_first_gradient_of_a_batch_is_kept_and_every_other_is_a_repeat() -> None:
    ledger = rounds()
    assert [push(ledger, 0), push(ledger, 0)] == [Verdict.KEEP, Verdict.REPEAT]
    push(ledger, 1)
    ledger.close("train/0/0")
    assert push(ledger, 0) is Verdict.REPEAT, "applied, and its mark is gone"
    assert ledger.version == 1


def test_a_round_waits_until_every_batch_of_it_is_known_to_be_on_every_server() -> None:
    ledger = rounds()
    push(ledger, 0)
    ledger.keep(Push(1, 0, 1, 1, 0, 0))
    assert ledger.unconfirmed(0, 1) and not ledger.unconfirmed(0, 0) and not ledger.whole()
    ledger.opened("train/0/1", 2, 0, 1)  # its worker died, and another one computes it for the other servers
    assert push(ledger, 1, attempt=2) is Verdict.REPEAT and not ledger.whole()
    ledger.confirm(0, 1)
    assert ledger.whole()
    ledger.round_applied()
    ledger.confirm(0, 1)  # asked again: nothing happens
    assert ledger.version == 1 and not ledger.confirmed
    with pytest.raises(ValueError, match="this server does not have batch 3 of epoch 0"):
        ledger.confirm(0, 3)


def test_a_gradient_of_an_old_version_is_rejected_and_moves_no_counter() -> None:
    ledger = rounds()
    push(ledger, 0)
    push(ledger, 1)
    assert push(ledger, 2, on=0) is Verdict.STALE
    assert not ledger.kept and ledger.entries["train/0/2"].next_batch == 0
    assert push(ledger, 2, on=1) is Verdict.KEEP


def test_a_tolerance_takes_what_is_a_little_old_and_keeps_what_is_a_little_early() -> None:
    ledger = rounds(tolerance=1)
    assert push(ledger, 2, on=0) is Verdict.KEEP and ledger.version == 0
    assert push(ledger, 4, on=0) is Verdict.STALE
    assert [push(ledger, i, on=0) for i in (3, 0, 1)] == [Verdict.KEEP] * 3
    assert ledger.version == 2, "the second round was whole when the first one was applied"


def test_leases_count_as_in_asynchronous_training() -> None:
    ledger = rounds(opened=1)
    assert push(ledger, 1) is Verdict.WAIT
    ledger.opened("train/0/0", 2, 0, 1)
    assert push(ledger, 0) is Verdict.REFUSE and push(ledger, 0, attempt=2) is Verdict.KEEP
    assert ledger.judge(Push(2, 0, 0, 1, 0)).verdict is Verdict.OVER
    assert ledger.judge(Push(1, 0, 9, 1, 0)).verdict is Verdict.REFUSE


def test_a_cut_waits_for_the_round_that_has_begun_and_reports_its_end() -> None:
    ledger = rounds()
    push(ledger, 0)
    ledger.hold(1, at=0)
    assert ledger.report() == (1, {}) and ledger.holds_at == 1 and not ledger.holding
    assert push(ledger, 2, on=1) is Verdict.WAIT, "the next round is not begun"
    assert push(ledger, 1) is Verdict.KEEP
    told = ledger.report()
    assert told == (1, {"train/0/0": 1, "train/0/1": 1, "train/0/2": 0, "train/0/3": 0, "train/0/4": 0})
    assert ledger.holding and ledger.report() is None
    ledger.hold(1, at=2)
    assert not ledger.holding and push(ledger, 2) is Verdict.KEEP, "another server has begun it: all go there"
    ledger.release(1)
    assert push(ledger, 3) is Verdict.KEEP and ledger.version == 2


def test_a_cut_between_two_rounds_holds_at_once() -> None:
    ledger = rounds()
    push(ledger, 0)
    push(ledger, 1)
    ledger.hold(1, at=1)
    assert ledger.holding and ledger.report() is not None
    assert push(ledger, 2) is Verdict.WAIT


def test_the_master_chooses_the_mode() -> None:
    restore = pb.Restore(timeline=4, version=7, round_batches=3, epoch_batches=10, tolerance=2)
    ledger = ledger_of(restore)
    assert isinstance(ledger, Rounds)
    assert (ledger.timeline, ledger.version, ledger.size, ledger.epoch_batches, ledger.tolerance) == (4, 7, 3, 10, 2)
    assert type(ledger_of(pb.Restore(timeline=1))) is Ledger


# Real servers.

ADAGRAD = model(OPTIMIZERS["keras adagrad"])


def begin(servers: Servers, size: int, batches: int) -> None:
    restore = pb.Restore(timeline=TIMELINE + 1, round_batches=size, epoch_batches=batches)
    servers.direct(restore=restore)
    servers.hear("restored")
    for index in range(batches):
        servers.open(index, batches=1)


@pytest.fixture
def synchronous() -> Iterator[tuple[Servers, Trainer]]:
    with serving(2) as servers:
        begin(servers, 2, 6)
        with training(servers, ADAGRAD, timeline=TIMELINE + 1) as trainer:
            yield servers, trainer


def averaged(trainer: Trainer, parts: list[tuple[int, tuple[object, ...]]]) -> None:
    """What a round does to the model on one machine: one step with the mean over all records."""
    total = sum(n for n, _ in parts)
    shares = [np.float32(n / total) for n, _ in parts]
    dense = sum(w[0] * s for s, (_, w) in zip(shares, parts, strict=True))
    state = sum(w[1] * s for s, (_, w) in zip(shares, parts, strict=True))
    rows = {}
    for t in trainer.spec.tables:
        ids = np.concatenate([w[2][t.name][0] for _, w in parts])
        rows[t.name] = (ids, np.concatenate([w[2][t.name][1] * s for s, (_, w) in zip(shares, parts, strict=True)]))
    trainer.truth.push(dense, state, rows)


def test_a_round_is_one_step_with_the_mean_over_its_records(synchronous: tuple[Servers, Trainer]) -> None:
    _, trainer = synchronous
    client = trainer.client
    first, second = trainer.batch(), trainer.batch()
    assert client.push(Batch(0, 1, 1, 0), *second, records=3) == 0, "kept, and nothing moves"
    trainer.check()
    assert client.push(Batch(0, 0, 1, 0), *first, records=8) == 1
    averaged(trainer, [(8, first), (3, second)])
    trainer.check()
    client.push(Batch(0, 0, 1, 0), *second, records=8)
    trainer.check()


def test_a_batch_without_records_weighs_nothing(synchronous: tuple[Servers, Trainer]) -> None:
    _, trainer = synchronous
    what, nothing = trainer.batch(), trainer.batch()
    trainer.client.push(Batch(0, 0, 1, 0), *nothing, records=0)
    assert trainer.client.push(Batch(0, 1, 1, 0), *what, records=5) == 1
    trainer.truth.push(*what)
    trainer.check()
    for index in (2, 3):
        trainer.client.push(Batch(0, index, 1, 0), *nothing, version=1, records=0)
    trainer.truth.version += 1
    trainer.check()


def test_a_stale_gradient_is_rejected_by_every_server(synchronous: tuple[Servers, Trainer]) -> None:
    _, trainer = synchronous
    for index in (0, 1):
        trainer.client.push(Batch(0, index, 1, 0), *trainer.batch())
    before = trainer.client.pull()
    with pytest.raises(Stale, match="is at version 1"):
        trainer.client.push(Batch(0, 2, 1, 0), *trainer.batch(), version=0)
    np.testing.assert_array_equal(trainer.client.pull()[0], before[0])
    trainer.client.push(Batch(0, 2, 1, 0), *trainer.batch(), version=1)


def test_a_pull_waits_for_the_version_it_asks_for(synchronous: tuple[Servers, Trainer]) -> None:
    servers, trainer = synchronous
    other = servers.client(ADAGRAD, timeline=TIMELINE + 1)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(other.pull(at_least=1)[2]))
    thread.start()
    trainer.client.push(Batch(0, 0, 1, 0), *trainer.batch())
    thread.join(0.3)
    assert thread.is_alive() and not got, "it was answered before its time"
    trainer.client.push(Batch(0, 1, 1, 0), *trainer.batch())
    thread.join(10)
    assert got == [1]
    other.close()


def test_a_rollback_forgets_what_was_kept(synchronous: tuple[Servers, Trainer]) -> None:
    servers, trainer = synchronous
    trainer.client.push(Batch(0, 0, 1, 0), *trainer.batch())
    servers.direct(restore=pb.Restore(timeline=TIMELINE + 2, round_batches=2, epoch_batches=6))
    servers.hear("restored")
    for index in range(6):
        servers.open(index, batches=1)
    with training(servers, ADAGRAD, timeline=TIMELINE + 2) as again:
        parts = [again.batch(), again.batch()]
        assert [again.client.push(Batch(0, i, 1, 0), *w) for i, w in enumerate(parts)] == [0, 1]
        averaged(again, [(1, parts[0]), (1, parts[1])])
        again.check()


class Dying(Client):
    """A worker that dies when every server has its batch and so many of them have its Confirm."""

    def __init__(self, servers: Servers, told: int) -> None:
        super().__init__(servers.addresses, TOKEN, ADAGRAD, TIMELINE + 1)
        self._told = told

    def _ask_all(self, operation: frames.Operation, bodies: Sequence[Sequence[Any]] | None = None) -> list[Reply]:
        if not isinstance(operation, frames.Confirm):
            return super()._ask_all(operation, bodies)
        self._connections.ask(operation, [(s, []) for s in range(self._told)], lambda place, reply: None)
        raise Interrupted("died")


def train(client: Client, index: int, attempt: int = 1) -> int:
    """A batch whose gradients follow from the values they are computed on, as they do in training."""
    weights, state, _ = client.pull(at_least=index // 2)
    ids = np.arange(index, index + 9)
    rows = {t.name: (ids, client.rows(t.name, ids) + np.float32(index)) for t in ADAGRAD.tables}
    return client.push(Batch(0, index, attempt, 0), weights * (index + 1), state / (index + 2), rows, index // 2)


def trained(servers: Servers, told: int = 2, dies_at: int | None = None) -> list[np.ndarray[Any, Any]]:
    """Every value after three rounds; a worker may die in the midst of a batch, and another one takes it over."""
    begin(servers, 2, 6)
    with ExitStack() as stack:
        dying, waiting, worker = Dying(servers, told), *(servers.client(ADAGRAD, timeline=TIMELINE + 1) for _ in "ww")
        for client in (dying, waiting, worker):
            stack.callback(client.close)
        weights = np.linspace(-1, 1, worker.trainable_size, dtype=np.float32)
        worker.declare(weights, np.ones(worker.state_size, np.float32))
        for index in range(6):
            before = index // 2
            after = before + index % 2
            if index == dies_at:
                with pytest.raises(Interrupted):
                    train(dying, index)
                ahead = after if told else before
                assert [s.ledger.version for s in servers.services] == [ahead, before]
                servers.open(index, attempt=2, batches=1)
                if ahead > before:  # a client waits for the next version, which one server has
                    pull = stack.enter_context(ThreadPoolExecutor(1)).submit(waiting.pull, at_least=after)
                    assert train(worker, index, attempt=2) == after
                    assert pull.result(10)[2] == after
                    continue
            assert train(worker, index, attempt=1 + (index == dies_at)) == after
        weights, state, slots, version = worker.pull_with_slots()
        assert version == 3
        tables = [part for t in ADAGRAD.tables for rows in worker.export_rows(t.name) for part in rows]
        return [weights, state, slots, *tables]


@pytest.mark.parametrize("told", [0, 1], ids=["before it confirms", "between two confirms"])
@pytest.mark.parametrize("dies_at", [2, 3, 5], ids=["first of a round", "last of a round", "last of all"])
def test_a_worker_that_dies_with_its_batch_everywhere_changes_not_one_bit(dies_at: int, told: int) -> None:
    with serving(2) as calm, serving(2) as disturbed:
        for a, b in zip(trained(disturbed, told, dies_at), trained(calm), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_confirmation_of_what_a_server_does_not_have_is_refused(synchronous: tuple[Servers, Trainer]) -> None:
    servers, trainer = synchronous
    client = Dying(servers, told=2)
    with pytest.raises(Refused, match="refused Confirm: this server does not have batch 3 of epoch 0"):
        client._ask_all(frames.Confirm(epoch=0, index=3))
    client.close()
    trainer.check()


def test_rows_that_count_are_added_up() -> None:
    counting = TableSpec(name="t", dim=1, optimizer=OptimizerSpec(kind="sgd", learning_rate=1.0), summed=True)
    spec = ADAGRAD.model_copy(update={"tables": (counting,)})
    ids, ones = np.arange(4), np.ones((4, 1), np.float32)
    with serving(2) as servers:
        begin(servers, 2, 2)
        with training(servers, spec, timeline=TIMELINE + 1) as trainer:
            before = trainer.client.rows("t", ids)
            for index, records in enumerate((6, 0)):
                gradients, state, _ = trainer.batch()
                rows = {"t": (ids, ones)}
                trainer.client.push(Batch(0, index, 1, 0), gradients, state, rows, records=records)
            np.testing.assert_allclose(trainer.client.rows("t", ids), before - 2, atol=1e-6)


# Asynchronous.


def test_the_rate_is_divided_by_the_age_of_a_gradient() -> None:
    spec = model(OptimizerSpec(kind="sgd", learning_rate=0.5))
    with serving(1, staleness_modulation=True) as servers:
        servers.open(0)
        with training(servers, spec) as trainer:
            trainer.step()
            trainer.step()
            for age, factor in ((0, 1.0), (1, 1.0), (2, 0.5), (4, 0.25)):
                weights, _, version = trainer.client.pull()
                row = trainer.client.rows("t0", np.array([7]))
                gradients = np.ones_like(weights)
                rows = {"t0": (np.array([7]), np.ones((1, 2), np.float32))}
                number = version
                while trainer.client.pull()[2] < version + age:  # others push in between, and move nothing
                    empty = np.zeros_like(weights)
                    trainer.client.push(Batch(0, 0, 1, number), empty, np.zeros(9, np.float32), {}, number)
                    number += 1
                trainer.client.push(Batch(0, 0, 1, number), gradients, np.zeros(9, np.float32), rows, version)
                np.testing.assert_allclose(trainer.client.pull()[0], weights - 0.5 * factor, rtol=1e-6)
                np.testing.assert_allclose(trainer.client.rows("t0", np.array([7])), row - 0.5 * factor, rtol=1e-6)


def test_slots_come_with_a_pull_when_they_are_asked_for() -> None:
    with serving(3) as servers:
        servers.open(0)
        with training(servers, model(OPTIMIZERS["keras adam"])) as trainer:
            trainer.step()
            weights, state, slots, version = trainer.client.pull_with_slots()
            np.testing.assert_array_equal(weights, trainer.truth.weights)
            np.testing.assert_array_equal(state, trainer.truth.state)
            np.testing.assert_array_equal(slots, np.concatenate(trainer.truth.slots))
            assert version == 1


def test_a_push_of_no_records_counts_and_moves_nothing() -> None:
    with serving(2) as servers:
        servers.open(0)
        with training(servers, model(OPTIMIZERS["keras adam"])) as trainer:
            trainer.step()
            assert trainer.client.push(Batch(0, 0, 1, 1), *trainer.batch(), records=0) == 2
            trainer.truth.version += 1
            trainer.check()

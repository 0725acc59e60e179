"""Clients and one to three servers: the same bits as one machine, whatever is repeated, lost or called off."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from elasticdl.errors import Refused, WireError
from elasticdl.ps import _native
from elasticdl.ps.client import Batch, Client, Interrupted, Resend, TimelineOver
from elasticdl.ps.parameters import table_seed
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire import frames
from tests.ps.oracle import Oracle
from tests.ps.servers import SEED, TIMELINE, TOKEN, Servers, Trainer, export_ids, model, serving, training
from tests.ps.stores import OPTIMIZERS

SGD = model(OPTIMIZERS["sgd"])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "torch nesterov", "keras adagrad", "keras adam", "torch adam"])
def test_any_number_of_servers_holds_what_one_machine_would(count: int, optimizer: str) -> None:
    spec = model(OPTIMIZERS[optimizer], large=count == 2)
    with serving(count) as servers, training(servers, spec) as trainer:
        servers.open()
        for step in range(5):
            ids = np.arange(10)
            for name, table in trainer.truth.tables.items():
                np.testing.assert_array_equal(trainer.client.rows(name, ids), table.pull(ids))
            assert trainer.step() == step + 1
        trainer.step(ids=0)  # a batch without rows still counts on every server
        trainer.check()


@pytest.mark.parametrize("count", [1, 3])
def test_batches_of_many_frames_arrive_whole(count: int) -> None:
    """Rows are asked for in pieces, and gradients sent in frames, of about a megabyte."""
    spec = model(OPTIMIZERS["keras adagrad"])
    random = np.random.default_rng(5)
    with serving(count) as servers, training(servers, spec) as trainer:
        servers.open()
        ids = random.integers(0, 10**9, 300_000)
        for wanted in (ids, trainer.client.unique(ids)[0], np.sort(ids), ids[:0]):
            for table in spec.tables:
                seed = table_seed(SEED, table.name)
                start = table.initializer
                expected = _native.initial_rows(wanted, table.dim, start.kind, start.a, start.b, seed)
                np.testing.assert_array_equal(trainer.client.rows(table.name, wanted), expected)
        rows = {t.name: (ids, random.normal(size=(len(ids), t.dim)).astype(np.float32)) for t in spec.tables}
        dense = np.zeros(trainer.client.trainable_size, np.float32)
        state = np.zeros(trainer.client.state_size, np.float32)
        assert trainer.client.push(Batch(0, 0, 1, 0), dense, state, rows) == 1
        some = np.unique(ids)[::1000]
        for table in spec.tables:
            twin = Oracle(table.dim, spec.optimizer, table.initializer, table_seed(SEED, table.name))
            mine = np.isin(ids, some)
            twin.push(ids[mine], rows[table.name][1][mine], spec.optimizer.learning_rate, 1)
            np.testing.assert_array_equal(trainer.client.rows(table.name, some), twin.peek(some, 0))
        shuffled = np.ascontiguousarray(ids[::-1]), np.asfortranarray(rows["t0"][1])
        assert trainer.client.push(Batch(0, 0, 1, 1), dense, state, {"t0": shuffled}) == 2


def test_declaring_again_changes_nothing_and_another_model_is_refused() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        trainer.step()
        late = servers.client(SGD)
        late.declare(np.zeros(late.trainable_size, np.float32), np.zeros(late.state_size, np.float32))
        trainer.check(client=late)
        late.close()
        other = servers.client(model(OPTIMIZERS["keras adam"]))
        with pytest.raises(Refused, match="another worker declared a different model"):
            other.declare(np.zeros(other.trainable_size, np.float32), np.zeros(other.state_size, np.float32))
        other.close()
        trainer.check()


def test_a_repeated_push_is_acknowledged_and_not_applied() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        what = trainer.batch()
        first = trainer.client.push(Batch(0, 0, 1, 0), *what)
        trainer.truth.push(*what)
        for _ in range(3):
            assert trainer.client.push(Batch(0, 0, 1, 0), *trainer.batch()) == first
        trainer.check()


def test_a_batch_that_came_too_early_is_asked_for_again_from_where_the_server_stands() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        trainer.step()
        with pytest.raises(Resend) as resend:
            trainer.client.push(Batch(0, 0, 1, 3), *trainer.batch())
        assert resend.value.next_batch == 1
        trainer.step()
        trainer.check()


def test_a_batch_that_reached_one_of_two_servers_is_applied_once_on_both_by_the_next_lease() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        trainer.step()
        torn = trainer.batch()
        servers.direct(servers=1, hold=pb.Hold(cut=1, at=0))
        servers.hear("held", 1)
        dies = servers.client(SGD)
        dead = threading.Event()
        dies.called_off_by(dead.is_set)
        pushing = threading.Thread(target=_push_until_called_off, args=(dies, Batch(0, 0, 1, 1), torn))
        pushing.start()
        _wait_until(lambda: servers.services[0].ledger.version == 2)
        dead.set()
        dies.interrupt()
        pushing.join(10)
        dies.close()
        assert [s.ledger.version for s in servers.services] == [2, 1]
        servers.open(attempt=2)
        servers.direct(release=pb.Release(cut=1))
        with pytest.raises(Refused, match="lease 1 of train/0/0 was revoked"):
            trainer.client.push(Batch(0, 0, 1, 1), *torn)
        heir = servers.client(SGD)
        assert heir.push(Batch(0, 0, 2, 1), *torn) == 2
        trainer.truth.push(*torn)
        trainer.check(client=heir)
        heir.close()


def _push_until_called_off(client: Client, batch: Batch, what: Any) -> None:
    with contextlib.suppress(Interrupted):
        client.push(batch, *what)


def _wait_until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    bell = threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        bell.wait(0.002)


def test_closed_shards_and_epochs_refuse_and_say_so() -> None:
    with serving(1) as servers, training(servers, SGD) as trainer:
        servers.open(batches=1)
        trainer.step()
        with pytest.raises(Refused, match="has only 1 batches"):
            trainer.client.push(Batch(0, 0, 1, 1), *trainer.batch())
        servers.direct(close_shard=pb.CloseShard(shard="train/0/0"))
        with pytest.raises(Refused, match="shard train/0/0 is closed"):
            trainer.client.push(Batch(0, 0, 1, 0), *trainer.batch())
        servers.direct(close_epoch=pb.CloseEpoch(epoch=0))
        with pytest.raises(Refused, match="shard train/0/5 is closed"):
            trainer.client.push(Batch(0, 5, 1, 0), *trainer.batch())
        trainer.check()


def test_a_push_of_an_unknown_lease_waits_until_the_server_knows_it() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open(servers=0)
        opener = threading.Timer(0.2, lambda: servers.open(servers=1))
        opener.start()
        trainer.step()
        trainer.check()


def test_a_push_of_an_unknown_shard_is_refused_in_the_end_however_often_it_is_sent() -> None:
    """The client sends again what stays unanswered; that must not start the wait anew."""
    with serving(1, unknown_seconds=0.5) as servers, training(servers, SGD, resend_seconds=0.05) as trainer:
        began = time.monotonic()
        with pytest.raises(Refused, match="shard train/0/3 is not open on this server"):
            trainer.client.push(Batch(0, 3, 1, 0), *trainer.batch())
        assert 0.5 < time.monotonic() - began < 5


def test_a_server_on_another_timeline_answers_that() -> None:
    with serving(1) as servers, training(servers, SGD):
        old = servers.client(SGD, timeline=TIMELINE + 2)
        with pytest.raises(TimelineOver, match=f"timeline {TIMELINE + 2} is over; the current one is {TIMELINE}"):
            old.pull()
        old.close()


@contextlib.contextmanager
def answering(answer: frames.Answer, *body: bytes) -> Iterator[str]:
    """A socket that gives this answer to whatever is asked, once it was greeted."""
    context = zmq.Context()
    server = context.socket(zmq.ROUTER)
    server.bind("tcp://127.0.0.1:*")

    def serve() -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            for n in range(100):
                sender, header, *_ = server.recv_multipart()
                asked = frames.read(header, frames.OPERATIONS)
                said = frames.Header(asked.request, asked.timeline, answer if n else frames.Done(0))
                server.send_multipart([sender, said.pack(), *(body if n else ())])
        server.close(0)

    thread = threading.Thread(target=serve)
    address = server.getsockopt_string(zmq.LAST_ENDPOINT)
    thread.start()
    try:
        yield address
    finally:
        context.term()
        thread.join(10)


def test_the_end_of_a_timeline_is_no_refusal() -> None:
    """A refusal gives the lease back; the end of a timeline means to wait for the next one."""
    with answering(frames.Over(), b"timeline 3 is over; the current one is 4") as address:
        client = Client([address], TOKEN, SGD, 3)
        with pytest.raises(TimelineOver, match="ps-0: timeline 3 is over; the current one is 4") as over:
            client.pull()
        assert (over.value.server, over.value.text) == (0, "timeline 3 is over; the current one is 4")
        assert isinstance(over.value, WireError) and not isinstance(over.value, Refused)
        client.close()
    with answering(frames.Over()) as address:
        client = Client([address], TOKEN, SGD, 3)
        with pytest.raises(TimelineOver, match="no reason given"):
            client.rows("t0", np.arange(3))
        client.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_client_moves_to_any_number_of_other_servers(count: int) -> None:
    with serving(2) as first, serving(count) as then, training(first, SGD) as trainer:
        first.open()
        trainer.step()
        trainer.check()
        stays = first.client(SGD)
        moves = trainer.client
        moves.move(then.addresses, TIMELINE)
        assert moves.servers == count
        weights = np.arange(moves.trainable_size, dtype=np.float32)
        state = np.arange(moves.state_size, dtype=np.float32)
        moves.declare(weights, state)
        np.testing.assert_array_equal(moves.pull()[0], weights)
        then.open()
        gradients, change, rows = trainer.batch()
        assert moves.push(Batch(0, 0, 1, 0), gradients, change, rows) == 1
        np.testing.assert_array_equal(moves.pull()[0], weights - np.float32(0.05) * gradients)
        np.testing.assert_array_equal(moves.pull()[1], state + change)
        for name, (ids, _) in rows.items():
            np.testing.assert_array_equal(export_ids(moves, name), np.unique(ids))
        moves.move(first.addresses, TIMELINE)
        trainer.check()
        trainer.step()
        trainer.check(client=stays)
        stays.close()


def test_a_client_that_moved_speaks_of_the_new_timeline_and_greets_again() -> None:
    with answering(frames.Over(), b"not on timeline 4 yet") as before, serving(1) as servers, training(servers, SGD):
        client = Client([before], TOKEN, SGD, 3)
        with pytest.raises(TimelineOver):
            client.pull()
        client.move(servers.addresses, TIMELINE)
        assert client.timeline == TIMELINE
        assert client.pull()[2] == 0
        client.close()


def test_what_was_asked_before_the_move_is_void() -> None:
    """A push behind a cut is called off and the client moves on: its late answer is not taken for the next one."""
    with serving(1) as old, serving(1) as new, training(old, SGD) as trainer:
        old.open()
        old.direct(hold=pb.Hold(cut=1, at=0))
        old.hear("held")
        gone = threading.Event()
        client = trainer.client
        client.called_off_by(gone.is_set)

        def call_off() -> None:
            gone.set()
            client.interrupt()

        threading.Timer(0.1, call_off).start()
        with pytest.raises(Interrupted):
            client.push(Batch(0, 0, 1, 0), *trainer.batch())
        client.called_off_by(lambda: False)
        client.move(new.addresses, TIMELINE)
        old.direct(release=pb.Release(cut=1))
        client.declare(np.zeros(client.trainable_size, np.float32), np.zeros(client.state_size, np.float32))
        assert client.pull()[2] == 0
        np.testing.assert_array_equal(client.pull()[0], 0)


def test_moving_often_leaves_no_connection_behind() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        trainer.step()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(50):
            trainer.client.move(servers.addresses, TIMELINE)
            trainer.client.pull()
        trainer.check()
        _wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) < before + 20)


def test_a_wrong_token_is_refused() -> None:
    with serving(2) as servers:
        stranger = servers.client(SGD, token="guess")
        with pytest.raises(Refused, match="not the token of this job"):
            stranger.pull()
        stranger.close()


def test_a_push_waiting_behind_a_cut_is_called_off_at_once() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        servers.direct(hold=pb.Hold(cut=1, at=0))
        servers.hear("held")
        gone = threading.Event()
        trainer.client.called_off_by(gone.is_set)

        def call_off() -> None:
            gone.set()
            trainer.client.interrupt()

        threading.Timer(0.2, call_off).start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            trainer.client.push(Batch(0, 0, 1, 0), *trainer.batch())
        assert time.monotonic() - began < 1


def test_a_client_without_servers_can_be_interrupted_before_its_first_request() -> None:
    with serving(1) as servers:
        addresses = servers.addresses
    client = Client(addresses, TOKEN, SGD, TIMELINE)
    gone = threading.Event()
    client.called_off_by(gone.is_set)

    def call_off() -> None:
        gone.set()
        client.interrupt()

    threading.Timer(0.1, call_off).start()
    with pytest.raises(Interrupted):
        client.declare(np.zeros(client.trainable_size, np.float32), np.zeros(client.state_size, np.float32))
    client.close()
    client.interrupt()  # a late message of the master does no harm


def test_ringing_often_never_blocks() -> None:
    with serving(1) as servers:
        client = servers.client(SGD)
        for _ in range(5000):
            client.interrupt()
        client.close()
        servers.services[0].stop()
        for _ in range(5000):
            servers.open()


def test_resends_of_an_impatient_client_do_no_harm() -> None:
    with serving(2) as servers, training(servers, SGD, resend_seconds=0.001) as trainer:
        servers.open()
        for _ in range(30):
            trainer.step()
        trainer.check()


def test_state_differences_of_several_workers_add_up() -> None:
    with serving(2) as servers, training(servers, SGD) as trainer:
        none = np.zeros(trainer.client.trainable_size, np.float32)
        start = trainer.client.pull()[1]
        ones = np.ones(trainer.client.state_size, np.float32)

        def work(index: int) -> None:
            client = servers.client(SGD)
            servers.open(index)
            for n in range(20):
                client.push(Batch(0, index, 1, n), none, ones * (index + 1), {})
            client.close()

        workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(20)
        _, state, version = trainer.client.pull()
        assert version == 60
        np.testing.assert_allclose(state - start, 20 * (1 + 2 + 3), rtol=1e-5)


@pytest.fixture
def cut() -> Iterator[tuple[Servers, Trainer]]:
    """Two servers with some training done."""
    with serving(2) as servers, training(servers, SGD) as trainer:
        servers.open()
        for _ in range(3):
            trainer.step()
        yield servers, trainer


def test_a_view_shows_the_moment_it_was_pinned_while_training_goes_on(cut: tuple[Servers, Trainer]) -> None:
    servers, trainer = cut
    servers.direct(hold=pb.Hold(cut=1, at=0))
    held = servers.hear("held")
    assert all({c.shard: c.next_batch for c in h.counters} == {"train/0/0": 3} for h in held.values())
    servers.direct(freeze=pb.Freeze(cut=1, purpose="view"))
    servers.hear("frozen")
    servers.direct(release=pb.Release(cut=1))
    pinned = trainer.client.pull()
    known = np.arange(-60, 60)
    rows = {name: table.peek(known, 0) for name, table in trainer.truth.tables.items()}
    ids_before = {name: export_ids(trainer.client, name) for name in rows}
    trainer.step(ids=5)
    weights, state, _ = trainer.client.pull(view=1)
    np.testing.assert_array_equal(weights, pinned[0])
    np.testing.assert_array_equal(state, pinned[1])
    unborn = np.arange(10**6, 10**6 + 50)
    for name, expected in rows.items():
        np.testing.assert_array_equal(trainer.client.rows(name, known, view=1), expected)
        trainer.client.rows(name, unborn, view=1)
        assert not np.isin(unborn, export_ids(trainer.client, name)).any(), "an evaluation pull created rows"
        assert set(ids_before[name]) <= set(export_ids(trainer.client, name))
    trainer.check()
    servers.direct(drop_view=pb.DropView(cut=1))
    with pytest.raises(Refused, match="this server has no view 1"):
        trainer.client.pull(view=1)


def test_a_held_push_goes_through_after_the_release(cut: tuple[Servers, Trainer]) -> None:
    servers, trainer = cut
    servers.direct(hold=pb.Hold(cut=1, at=0))
    servers.hear("held")
    released = threading.Timer(0.3, lambda: servers.direct(release=pb.Release(cut=1)))
    released.start()
    began = time.monotonic()
    trainer.step()
    assert time.monotonic() - began > 0.25
    trainer.check()


def test_a_cut_at_a_later_version_lets_pushes_through_until_then(cut: tuple[Servers, Trainer]) -> None:
    servers, trainer = cut
    servers.direct(hold=pb.Hold(cut=1, at=5))
    trainer.step()
    trainer.step()
    held = servers.hear("held")
    assert all(h.counters[0].next_batch == 5 for h in held.values())


def test_servers_that_stand_unequal_advance_to_the_same_batch(cut: tuple[Servers, Trainer]) -> None:
    servers, trainer = cut
    servers.direct(servers=1, hold=pb.Hold(cut=1, at=0))
    servers.hear("held", 1)
    what = trainer.batch()
    pushing = threading.Thread(target=trainer.client.push, args=(Batch(0, 0, 1, 3), *what))
    pushing.start()
    _wait_until(lambda: servers.services[0].ledger.version == 4)
    servers.direct(servers=0, hold=pb.Hold(cut=1, at=0))
    assert servers.hear("held", 1)[0].counters[0].next_batch == 4
    servers.direct(advance=pb.Advance(cut=1, counters=[pb.Counter(shard="train/0/0", next_batch=4)]))
    held = servers.hear("held")
    assert [held[s].counters[0].next_batch for s in (0, 1)] == [4, 4]
    pushing.join(10)
    servers.direct(release=pb.Release(cut=1))
    trainer.truth.push(*what)
    trainer.check()


def test_directives_are_followed_while_many_pushes_arrive() -> None:
    with serving(1) as servers, training(servers, SGD) as trainer:
        stop = threading.Event()

        def pour(index: int) -> None:
            client = servers.client(SGD)
            client.called_off_by(stop.is_set)
            servers.open(index, batches=10**6)
            none = np.zeros(client.trainable_size, np.float32)
            state = np.zeros(client.state_size, np.float32)
            try:
                for n in range(10**6):
                    client.push(Batch(0, index, 1, n), none, state, {})
            except Interrupted:
                client.close()

        workers = [threading.Thread(target=pour, args=(i,)) for i in range(4)]
        for w in workers:
            w.start()
        _wait_until(lambda: servers.services[0].ledger.version > 100)
        for cut in range(1, 6):
            began = time.monotonic()
            servers.direct(hold=pb.Hold(cut=cut, at=0))
            servers.hear("held")
            assert time.monotonic() - began < 1
            servers.direct(release=pb.Release(cut=cut))
        stop.set()
        servers.direct(hold=pb.Hold(cut=9, at=0))
        servers.hear("held")
        servers.direct(release=pb.Release(cut=9))
        for w in workers:
            w.join(10)
            assert not w.is_alive()
        assert trainer.client.pull()[2] > 100

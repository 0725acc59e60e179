"""A server that receives random bytes from unknown clients: it survives, and answers the next good client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zmq

from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire import frames
from tests.ps.servers import TIMELINE, TOKEN, Servers, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS

SPEC = model(OPTIMIZERS["sgd"])


class Raw:
    """A socket that sends any message."""

    def __init__(self, address: str, greet: bool = True) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self.socket.connect(address)
        self.requests = 0
        if greet:
            assert self.ask(frames.Greet(), TOKEN.encode())[0] == frames.Done(0)

    def ask(
        self, operation: frames.Operation, *body: Any, timeline: int = TIMELINE
    ) -> tuple[frames.Answer, list[bytes]]:
        self.requests += 1
        self.socket.send_multipart([frames.Header(self.requests, timeline, operation).pack(), *body])
        while True:
            received = self.socket.recv_multipart()
            header = frames.read(received[0], frames.ANSWERS)
            if header.request == self.requests:
                return header.message, received[1:]

    def refused(self, operation: frames.Operation, *body: Any, **more: int) -> str:
        answer, parts = self.ask(operation, *body, **more)
        assert isinstance(answer, frames.Refused), answer
        return parts[0].decode()

    def over(self, operation: frames.Operation, *body: Any, **more: int) -> str:
        answer, parts = self.ask(operation, *body, **more)
        assert isinstance(answer, frames.Over), answer
        return parts[0].decode()

    def close(self) -> None:
        self.socket.close(0)
        self._context.term()


@pytest.fixture
def server() -> Iterator[tuple[Servers, Trainer, Raw]]:
    with serving(1, unknown_seconds=0.3) as servers, training(servers, SPEC) as trainer:
        raw = Raw(servers.addresses[0])
        servers.open()
        try:
            yield servers, trainer, raw
            trainer.step()
            trainer.check()
        finally:
            raw.close()


Server = tuple[Servers, Trainer, Raw]


def test_nothing_is_answered_before_the_token(server: Server) -> None:
    servers, _, _ = server
    stranger = Raw(servers.addresses[0], greet=False)
    operations = [
        frames.Declare(), frames.Pull(), frames.Rows(0), frames.Push(0, 0, 1, 0), frames.Confirm(0, 0),
        frames.Export(0, 0),
    ]  # fmt: skip
    assert {*map(type, operations), frames.Greet} == set(frames.OPERATIONS.values())
    for operation in operations:
        assert stranger.over(operation) == "this connection has not sent the job's token"
    for wrong in ((), (b"",), (b"guess",), (TOKEN.encode()[:-1],), (TOKEN.encode(), b"")):
        assert stranger.refused(frames.Greet(), *wrong) == "not the token of this job"
        assert stranger.over(frames.Pull()) == "this connection has not sent the job's token"
    assert stranger.ask(frames.Greet(), TOKEN.encode())[0] == frames.Done(0)
    assert stranger.ask(frames.Pull())[0] == frames.Done(0)
    stranger.close()


def test_a_server_without_a_model_refuses_a_pull() -> None:
    with serving(1) as servers:
        raw = Raw(servers.addresses[0])
        assert raw.refused(frames.Pull()) == "no worker has declared the model yet"
        raw.close()


def test_a_cut_before_the_first_declaration_waits_for_it() -> None:
    with serving(1) as servers:
        servers.direct(freeze=pb.Freeze(cut=1, purpose="view"))
        spec = model(OPTIMIZERS["keras adam"])
        with training(servers, spec) as trainer:
            assert servers.hear("frozen")[0].cut == 1
            assert np.array_equal(trainer.client.pull(view=1)[0], trainer.client.pull()[0])


def test_wrong_tables_views_and_timelines_are_refused(server: Server) -> None:
    _, _, raw = server
    one = np.zeros(1, np.int64)
    assert raw.refused(frames.Rows(2), one) == "there is no table 2"
    assert raw.refused(frames.Export(65535, 0)) == "there is no table 65535"
    assert raw.refused(frames.Rows(0, view=4), one) == "this server has no view 4"
    assert raw.refused(frames.Pull(view=2**64 - 1)) == f"this server has no view {2**64 - 1}"
    assert raw.over(frames.Pull(), timeline=0) == "timeline 0 is over; the current one is 1"
    assert raw.over(frames.Push(0, 0, 1, 0), timeline=9) == "timeline 9 is over; the current one is 1"
    assert raw.over(frames.Declare(), timeline=2) == "timeline 2 is over; the current one is 1"


def test_a_pull_of_a_later_version_waits_for_it_but_not_one_of_a_view_that_is_not_there(server: Server) -> None:
    servers, trainer, raw = server
    assert raw.refused(frames.Pull(view=7, at_least=1)) == "this server has no view 7"
    asking = ThreadPoolExecutor(1).submit(raw.ask, frames.Pull(at_least=1))
    trainer.step()
    assert asking.result(10)[0] == frames.Done(1), "answered once the version is there"
    assert not servers.failures


def test_wrong_numbers_of_frames_and_bytes_are_refused(server: Server) -> None:
    _, trainer, raw = server
    assert "expected 1" in raw.refused(frames.Rows(0))
    assert "expected 1" in raw.refused(frames.Rows(0), b"", b"")
    assert "64-bit ids" in raw.refused(frames.Rows(0), b"12345")
    assert "expected 3" in raw.refused(frames.Declare(), b"{}")
    assert "expected 6" in raw.refused(frames.Push(0, 0, 1, 0))
    n, m = trainer.client.trainable_size, trainer.client.state_size
    good = [bytes(4 * n), bytes(4 * m), bytes(8), bytes(8), bytes(8), bytes(20)]
    for place, what in enumerate(
        ["dense gradients", "state difference", "ids of t0", "gradients of t0", "ids of t1", "gradients of t1"]
    ):
        for wrong in (b"", good[place][:-1], good[place] + b"\0"):
            body = [*good[:place], wrong, *good[place + 1 :]]
            said = raw.refused(frames.Push(0, 0, 1, 0), *body)
            assert said.startswith((what, f"gradients of {what[-2:]}")), said


def test_an_unknown_shard_is_refused_after_a_while(server: Server) -> None:
    _, _, raw = server
    assert raw.refused(frames.Push(0, 77, 1, 0)) == "shard train/0/77 is not open on this server"


def test_shapes_are_checked_before_memory_is_taken() -> None:
    huge = ParametersSpec(
        variables=(VariableSpec(name="v", shape=(1 << 40, 1 << 20)),), optimizer=OPTIMIZERS["sgd"]
    )  # fmt: skip
    negative = ParametersSpec(variables=(VariableSpec(name="v", shape=(-4, -4)),), optimizer=OPTIMIZERS["sgd"])
    wide = ParametersSpec(variables=(), tables=(TableSpec(name="t", dim=1 << 60),), optimizer=OPTIMIZERS["sgd"])
    with serving(1) as servers:
        raw = Raw(servers.addresses[0])
        assert "expected" in raw.refused(frames.Declare(), huge.model_dump_json().encode(), b"", b"")
        assert "impossible" in raw.refused(frames.Declare(), negative.model_dump_json().encode(), bytes(64), b"")
        assert "impossible" in raw.refused(frames.Declare(), wide.model_dump_json().encode(), b"", b"")
        assert "validation error" in raw.refused(frames.Declare(), b'{"variables": 3}', b"", b"")
        assert "Invalid JSON" in raw.refused(frames.Declare(), b"\xff\x00", b"", b"")
        assert raw.refused(frames.Pull()) == "no worker has declared the model yet"
        raw.close()


def test_ids_in_unaligned_frames_are_read_right(server: Server) -> None:
    """ZeroMQ keeps small frames inside its own message, where they lie as they fall."""
    _, trainer, raw = server
    for count in range(1, 12):
        ids = np.arange(count) * 1000
        answer, body = raw.ask(frames.Rows(1), ids.tobytes())
        assert isinstance(answer, frames.Done)
        got = np.frombuffer(body[0], "<f4").reshape(count, -1)
        np.testing.assert_array_equal(got, trainer.truth.tables["t1"].pull(ids))


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_do_no_harm(server: Server, seed: int) -> None:
    servers, trainer, raw = server
    rng = random.Random(seed)
    stranger = Raw(servers.addresses[0], greet=False)

    def some() -> int:
        return rng.choice([0, 1, rng.getrandbits(64)])

    def table() -> int:
        return rng.choice([0, 1, rng.getrandbits(16)])

    for _ in range(400):
        parts = [rng.randbytes(rng.choice([0, 1, 4, 20, 21, 22, 55, 300])) for _ in range(rng.randint(0, 4))]
        if rng.random() < 0.5:
            number, timeline = rng.getrandbits(64), rng.choice([0, 1, 2**64 - 1])
            message: frames.Message = rng.choice(
                [
                    frames.Greet(), frames.Declare(), frames.Confirm(rng.getrandbits(32), rng.getrandbits(32)),
                    frames.Pull(some(), some(), rng.random() < 0.5), frames.Rows(table(), some(), rng.random() < 0.5),
                    frames.Export(table(), some()), frames.Done(some()), frames.Pushed(some(), True), frames.Resend(1),
                    frames.Stale(some()), frames.Refused(), frames.Over(),
                ]
            )  # fmt: skip
            parts = [frames.Header(number, timeline, message).pack(), *parts]
        rng.choice([raw, stranger]).socket.send_multipart(parts or [b""])
    stranger.close()
    trainer.step()
    assert raw.ask(frames.Pull())[0] == frames.Done(1)


def test_messages_truncated_at_every_place_do_no_harm(server: Server) -> None:
    _, trainer, raw = server
    gradients, state, rows = trainer.batch()
    arrays = [gradients, state, *(a for pair in rows.values() for a in pair)]
    real = [frames.Header(1, TIMELINE, frames.Push(0, 0, 1, 0)).pack(), *(a.tobytes() for a in arrays)]
    for place in range(len(real)):
        raw.socket.send_multipart(real[:place] or [b""])
        raw.socket.send_multipart([*real[:place], real[place][: len(real[place]) // 2]])
    assert raw.ask(frames.Pull())[0] == frames.Done(0), "a message cut short was applied"


def test_a_message_after_the_end_of_the_service_is_ignored() -> None:
    with serving(1) as servers:
        servers.services[0].stop()
        servers._threads[0].join(10)
        servers.open()
        servers.services[0].stop()

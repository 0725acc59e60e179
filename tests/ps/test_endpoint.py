"""How clients reach a server: over TCP or a socket on this machine, encrypted or not; strangers are turned away."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from elasticdl.errors import Refused
from elasticdl.job import names
from elasticdl.ps import endpoint
from elasticdl.ps.client import Client, Interrupted
from elasticdl.ps.connections import nearest
from elasticdl.wire.auth import Keys
from tests.ps.servers import TIMELINE, TOKEN, Servers, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS

SGD = model(OPTIMIZERS["sgd"])


def trains(servers: Servers, trainer: Trainer) -> None:
    servers.open()
    trainer.step()
    trainer.check()


@pytest.mark.parametrize("large", [False, True])
def test_encrypted_servers_train_like_plain_ones(large: bool) -> None:
    """Large: with frames as long as they get."""
    spec = model(OPTIMIZERS["sgd"], large=large)
    with serving(1 if large else 2, keys=Keys.new()) as servers, training(servers, spec) as trainer:
        trains(servers, trainer)


class Listener:
    """Passes one connection on to a server and remembers every byte."""

    def __init__(self, servers: Servers) -> None:
        self._to = ("127.0.0.1", int(servers.addresses[0].split()[0].rsplit(":", 1)[1]))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.heard = b""

    def __enter__(self) -> Listener:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _serve(self) -> None:
        near, _ = self._door.accept()
        far = socket.create_connection(self._to)
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other side is gone
            while data := a.recv(65536):
                self.heard += data
                b.sendall(data)


def test_what_travels_encrypted_cannot_be_read_on_the_way() -> None:
    """A proxy that listens finds the rows in plain frames, and does not find them in encrypted ones."""
    for keys in (None, Keys.new()):
        with serving(1, keys=keys) as servers, training(servers, SGD) as trainer, Listener(servers) as listener:
            client = Client([listener.address], TOKEN, SGD, TIMELINE, keys=keys)
            rows = client.rows("t1", np.arange(50))
            client.close()
            np.testing.assert_array_equal(rows, trainer.client.rows("t1", np.arange(50)))
            assert (rows.tobytes() in listener.heard) is (keys is None)
            assert (TOKEN.encode() in listener.heard) is (keys is None)


def _unanswered(client: Client, seconds: float = 0.5) -> None:
    """Its request has no answer and can be interrupted."""
    given_up = threading.Event()
    client.called_off_by(given_up.is_set)

    def give_up() -> None:
        given_up.set()
        client.interrupt()

    threading.Timer(seconds, give_up).start()
    with pytest.raises(Interrupted):
        client.pull()
    client.close()


@pytest.mark.parametrize("theirs", ["wrong", "none"])
def test_a_client_without_the_right_key_is_refused_and_logged_and_the_server_lives(
    theirs: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(1, keys=Keys.new()) as servers, training(servers, SGD) as trainer:
        keys = Keys(Keys.new().public) if theirs == "wrong" else None
        _unanswered(Client(servers.addresses, TOKEN, SGD, TIMELINE, keys=keys))
        trains(servers, trainer)
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Refused")]
    reasons = ("a wrong key",) if theirs == "wrong" else ("one side encrypts and the other does not", "no handshake")
    assert len(told) == 1 and any(reason in told[0] for reason in reasons), told


def test_many_strangers_make_few_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LOG_SECONDS", 0.3)
    caplog.set_level(logging.WARNING)
    began = time.monotonic()
    with serving(1, keys=Keys.new()) as servers, training(servers, SGD) as trainer:
        for _ in range(10):
            _unanswered(Client(servers.addresses, TOKEN, SGD, TIMELINE, keys=Keys(Keys.new().public)), 0.1)
        trains(servers, trainer)
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Refused")]
    assert 1 <= len(told) <= 1 + (time.monotonic() - began) / 0.3
    assert any(int(line.split()[1]) > 1 for line in told), "later lines count what they stand for"


def test_the_token_is_needed_inside_the_encryption_too() -> None:
    keys = Keys.new()
    with serving(1, keys=keys) as servers:
        stranger = Client(servers.addresses, "guess", SGD, TIMELINE, keys=keys)
        with pytest.raises(Refused, match="not the token of this job"):
            stranger.pull()
        stranger.close()


def test_workers_are_not_given_the_secret_key() -> None:
    keys = Keys.new()
    assert keys.env(servers=False) == {names.ENV_DATA_KEY: keys.public}
    assert Keys.of(keys.env(servers=True)) == keys
    assert Keys.of(keys.env(servers=False)) == Keys(keys.public)
    assert Keys.of({}) is None
    assert Keys.new() != keys


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for a socket's: the system allows some hundred characters in all."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_clients_on_this_machine_use_its_socket_and_others_tcp(short_path: Path) -> None:
    tmp_path = short_path / "with a space"
    tmp_path.mkdir()
    with serving(2, directory=tmp_path) as servers, training(servers, SGD) as trainer:
        ways = [nearest(a) for a in servers.addresses]
        assert all(w.startswith(f"ipc://{tmp_path}/") for w in ways) and len(set(ways)) == 2
        elsewhere = [a.replace(str(tmp_path), "/not/here") for a in servers.addresses]
        assert all(nearest(a).startswith("tcp://127.0.0.1:") for a in elsewhere)
        trains(servers, trainer)
        far = Client(elsewhere, TOKEN, SGD, TIMELINE)
        trainer.check(client=far)
        far.close()
    assert list(tmp_path.iterdir()) == [], "a server that ends takes its socket along"


def test_a_socket_whose_path_the_kernel_would_not_take_is_left_out(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with serving(1, directory=deep) as servers, training(servers, SGD) as trainer:
        assert "ipc://" not in servers.addresses[0]
        trains(servers, trainer)


def test_a_frame_longer_than_any_of_ours_ends_the_connection_and_nothing_else() -> None:
    with serving(1) as servers, training(servers, SGD) as trainer:
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(servers.addresses[0])
        stranger.send(bytes(8 << 20))
        trains(servers, trainer)
        stranger.close(0)
        context.term()

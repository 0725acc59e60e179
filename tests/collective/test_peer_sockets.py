"""Signals between workers on one machine: all receive them, strangers are refused, and every wait can be ended."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticdl.collective.peer_sockets import FILLED, READ, READY, PeerListener, PeerLost
from tests.collective.sharing import connected

SECONDS = 20.0

# Connects to the listener at the given address, sends one signal, and no more.
PEER = """
import json, signal, sys
from elasticdl.collective.peer_sockets import READY, PeerListener
sockets = PeerListener().connect(1, [json.loads(sys.argv[1]), {}], 20.0)
sockets.send(READY)
signal.pause()
"""


def test_all_members_receive_all_signals_in_order_and_whether_a_flag_was_set() -> None:
    members = connected(4)
    with ThreadPoolExecutor(4) as pool:
        for flagged in (None, 0, 3):
            for what in (FILLED, READY, READ):
                for rank, sockets in enumerate(members):
                    sockets.send(what, rank == flagged)
                received = [pool.submit(sockets.receive, what) for sockets in members]
                assert [r.result() for r in received] == [flagged is not None and rank != flagged for rank in range(4)]
    for sockets in members:
        sockets.close()


def test_a_peer_that_is_killed_is_named_at_once() -> None:
    listener = PeerListener()
    with subprocess.Popen([sys.executable, "-c", PEER, json.dumps(dict(listener.address()))]) as peer:
        sockets = listener.connect(0, [listener.address(), {}], SECONDS)
        assert sockets is not None
        assert sockets.receive(READY) is False
        threading.Timer(0.2, peer.send_signal, [signal.SIGKILL]).start()
        with pytest.raises(PeerLost, match=r"closed|reset") as lost:
            sockets.receive(READ)
        assert lost.value.peer == 1
        with pytest.raises(PeerLost, match="pipe"):
            sockets.send(READ)
    sockets.close()
    listener.close()


def test_a_shutdown_at_either_end_ends_the_waits_at_both() -> None:
    one, other = connected(2)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(sockets.receive, READY) for sockets in (one, other)]
        threading.Timer(0.1, one.shut_down).start()
        for answer in waiting:
            with pytest.raises(PeerLost, match="closed"):
                answer.result(SECONDS)
    one.shut_down()  # again: harmless
    for sockets in (one, other):
        sockets.close()


def test_an_unexpected_signal_is_an_error() -> None:
    one, other = connected(2)
    other.send(READ)
    with pytest.raises(PeerLost, match="received signal 3, expected 2"):
        one.receive(READY)


def test_strangers_are_refused_and_absent_members_are_waited_for_only_so_long() -> None:
    listener, late = PeerListener(), PeerListener()
    addresses = [listener.address(), late.address()]
    for greeting in (b"x" * 24, bytes.fromhex(addresses[0]["secret"]) + (7).to_bytes(8, "little"), b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(bytes.fromhex(addresses[0]["name"]))
            stranger.sendall(greeting)
    assert listener.connect(0, addresses, 0.3) is None
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(it.connect, rank, addresses, SECONDS) for rank, it in enumerate((listener, late))]
        one, other = (answer.result() for answer in answers)
        assert one is not None and other is not None
        other.send(READY, True)
        assert one.receive(READY)
    for opened in (listener, late, one, other):
        opened.close()


def test_a_listener_that_is_closed_cannot_be_reached() -> None:
    gone, here = PeerListener(), PeerListener()
    addresses = [gone.address(), here.address()]
    gone.close()
    assert here.connect(1, addresses, SECONDS) is None
    here.close()

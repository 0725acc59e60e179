"""Words among workers on one machine: heard by all, refused to strangers, and an end to every wait."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticdl.collective.words import FILLED, READ, READY, Door, Lost
from tests.collective.sharing import talking

SECONDS = 20.0

# Meets the one behind the offer that it is given, says one word, and then nothing any more.
PEER = """
import json, signal, sys
from elasticdl.collective.words import READY, Door
words = Door().meet(1, [json.loads(sys.argv[1]), {}], 20.0)
words.tell(READY)
signal.pause()
"""


def test_everybody_hears_everybodys_words_in_order_and_whether_a_flag_was_set() -> None:
    members = talking(4)
    with ThreadPoolExecutor(4) as pool:
        for who in (None, 0, 3):
            for what in (FILLED, READY, READ):
                for rank, words in enumerate(members):
                    words.tell(what, rank == who)
                heard = [pool.submit(words.hear, what) for words in members]
                assert [h.result() for h in heard] == [who is not None and rank != who for rank in range(4)]
    for words in members:
        words.close()


def test_a_peer_that_is_killed_is_named_at_once() -> None:
    door = Door()
    with subprocess.Popen([sys.executable, "-c", PEER, json.dumps(dict(door.offer()))]) as peer:
        words = door.meet(0, [door.offer(), {}], SECONDS)
        assert words is not None
        assert words.hear(READY) is False
        threading.Timer(0.2, peer.send_signal, [signal.SIGKILL]).start()
        with pytest.raises(Lost, match=r"closed|reset") as lost:
            words.hear(READ)
        assert lost.value.peer == 1
        with pytest.raises(Lost, match="pipe"):
            words.tell(READ)
    words.close()
    door.close()


def test_who_waits_is_freed_when_the_connections_are_cut_on_either_side() -> None:
    one, other = talking(2)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(words.hear, READY) for words in (one, other)]
        threading.Timer(0.1, one.cut).start()
        for answer in waiting:
            with pytest.raises(Lost, match="closed"):
                answer.result(SECONDS)
    one.cut()  # once more does no harm
    for words in (one, other):
        words.close()


def test_a_word_out_of_turn_is_no_word() -> None:
    one, other = talking(2)
    other.tell(READ)
    with pytest.raises(Lost, match="it says 3 where 2 was to come"):
        one.hear(READY)


def test_strangers_are_turned_away_and_those_who_do_not_come_are_not_waited_for_for_long() -> None:
    door, late = Door(), Door()
    offers = [door.offer(), late.offer()]
    for greeting in (b"x" * 24, bytes.fromhex(offers[0]["word"]) + (7).to_bytes(8, "little"), b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(bytes.fromhex(offers[0]["name"]))
            stranger.sendall(greeting)
    assert door.meet(0, offers, 0.3) is None
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(d.meet, rank, offers, SECONDS) for rank, d in enumerate((door, late))]
        one, other = (answer.result() for answer in met)
        assert one is not None and other is not None
        other.tell(READY, True)
        assert one.hear(READY)
    for opened in (door, late, one, other):
        opened.close()


def test_a_door_that_is_gone_is_not_met() -> None:
    gone, here = Door(), Door()
    offers = [gone.offer(), here.offer()]
    gone.close()
    assert here.meet(1, offers, SECONDS) is None
    here.close()

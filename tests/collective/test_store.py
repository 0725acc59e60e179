"""The relayed store: what one member sets the others get, a wait ends by a value, by its deadline or from outside."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore

from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff, Unreachable


def silent(generation: int = 1, timeout_seconds: float = 5.0) -> RelayedStore:
    return RelayedStore(generation, lambda key, value: None, timeout_seconds)


def test_a_value_is_sent_once_and_can_be_read() -> None:
    sent: list[tuple[str, bytes]] = []
    store = RelayedStore(3, lambda key, value: sent.append((key, value)), 5.0)
    store.set("a", "text")
    store.multi_set(["b", "c"], [b"1", b"2"])
    assert sent == [("a", b"text"), ("b", b"1"), ("c", b"2")]
    assert store.multi_get(["a", "b", "c"]) == [b"text", b"1", b"2"]
    assert (store.num_keys(), store.list_keys()) == (3, ["a", "b", "c"])


def test_two_stores_that_deliver_to_each_other_hold_the_same_under_a_prefix() -> None:
    stores: list[RelayedStore] = []
    stores.append(RelayedStore(1, lambda key, value: stores[1].deliver(key, value), 5.0))
    stores.append(RelayedStore(1, lambda key, value: stores[0].deliver(key, value), 5.0))
    PrefixStore("world-1", stores[0]).set("0/0", "here")
    assert PrefixStore("world-1", stores[1]).get("0/0") == b"here"
    assert stores[1].list_keys() == ["world-1/0/0"]


def test_a_get_waits_for_the_value_that_another_thread_delivers() -> None:
    store = silent()
    threading.Timer(0.05, store.deliver, ("key", b"value")).start()
    assert not store.check(["key"])
    assert store.get("key") == b"value"
    assert store.check(["key"]) and not store.check(["key", "other"])


def test_the_first_value_of_a_key_counts() -> None:
    store = silent()
    store.deliver("key", b"first")
    store.deliver("key", b"second")
    assert store.get("key") == b"first"


def test_a_wait_past_its_deadline_names_the_key() -> None:
    store = silent(generation=7, timeout_seconds=0.05)
    with pytest.raises(Unreachable, match=r"no member set b in generation 7 within 0\.05 s"):
        store.deliver("a", b"")
        store.wait(["a", "b"])
    store.set_timeout(timedelta(seconds=9))
    assert store.timeout == timedelta(seconds=9)
    with pytest.raises(Unreachable, match=r"within 0\.02 s"):
        store.wait(["b"], timedelta(seconds=0.02))


def test_an_interrupt_ends_a_wait_at_once_and_refuses_later_calls() -> None:
    store = silent()
    store.deliver("there", b"1")
    began = time.monotonic()
    threading.Timer(0.05, store.interrupt, ("worker-2 is gone",)).start()
    with pytest.raises(CalledOff, match="worker-2 is gone"):
        store.get("absent")
    assert time.monotonic() - began < 2
    store.interrupt("a second reason does not count")
    with pytest.raises(CalledOff, match="worker-2 is gone"):
        store.set("late", "x")
    assert store.get("there") == b"1", "what is there needs no waiting"


def test_an_interrupt_reaches_listeners_added_before_and_after_it() -> None:
    class Listener:
        def __init__(self) -> None:
            self.reasons: list[str] = []

        def interrupted(self, reason: str) -> None:
            self.reasons.append(reason)

    store, early, late = silent(), Listener(), Listener()
    store.on_interrupt(early.interrupted)
    store.on_interrupt(Listener().interrupted)  # garbage-collected by then
    store.interrupt("enough")
    store.on_interrupt(late.interrupted)
    assert early.reasons == late.reasons == ["enough"]


def test_calls_that_need_a_server_raise_an_error() -> None:
    store = silent()
    assert not store.has_extended_api()
    for call in (lambda: store.add("n", 1), lambda: store.compare_set("k", "", "v"), lambda: store.delete_key("k")):
        with pytest.raises(NotImplementedError):
            call()

"""The store through which the members of one generation find each other: the master relays what a member sets.

Gloo keeps the addresses of its peers in a `torch.distributed.Store`. This one has no server and no socket of its own:
it uses the stream to the master. So it is authenticated, it outlives any member, and a wait in it can be interrupted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store

from elasticdl import faults
from elasticdl.errors import CalledOff, Unreachable


class RelayedStore(Store):  # type: ignore[misc]  # torch has no types here
    """Keys of one generation. `deliver` and `interrupt` may be called from any thread."""

    def __init__(self, generation: int, send: Callable[[str, bytes], None], timeout_seconds: float) -> None:
        super().__init__()
        self.generation = generation
        self._send = send
        self._timeout_seconds = timeout_seconds
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._reason: str | None = None
        self._listeners: list[weakref.WeakMethod[Callable[[str], None]]] = []

    def deliver(self, key: str, value: bytes) -> None:
        """A value that another member has set. Only the first one counts: no address ever changes."""
        with self._changed:
            self._values.setdefault(key, bytes(value))
            self._changed.notify_all()

    def interrupt(self, reason: str) -> None:
        """End every wait, now and later, and abort the group that uses this store."""
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason
            listeners = list(self._listeners)
            self._changed.notify_all()
        for listener in listeners:
            call = listener()
            if call is not None:
                call(reason)

    def on_interrupt(self, method: Callable[[str], None]) -> None:
        """Call this method when the store is interrupted, as long as its object lives; now, if it was already."""
        with self._changed:
            self._listeners.append(weakref.WeakMethod(method))
            reason = self._reason
        if reason is not None:
            method(reason)

    # Called by Gloo, from its own threads: set, wait and get.

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            if self._reason is not None:
                raise CalledOff(self._reason)
            self._values[key] = data
            self._changed.notify_all()
        self._send(key, data)
        faults.point("worker.building")

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._timeout_seconds if timeout is None else timeout.total_seconds()
        with self._changed:
            self._changed.wait_for(lambda: self._reason is not None or self._has(keys), seconds)
            if self._has(keys):
                return
            if self._reason is not None:
                raise CalledOff(self._reason)
            absent = ", ".join(key for key in keys if key not in self._values)
            raise Unreachable(f"no member set {absent} in generation {self.generation} within {seconds:g} s")

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return self._has(keys)

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    # The rest of the interface, except counters (`add`, `compare_set`), which would need a server.

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return [self._values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return False

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)

    def list_keys(self) -> list[str]:
        with self._changed:
            return sorted(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_seconds)

    def add(self, key: str, amount: int) -> int:
        raise NotImplementedError("a store without a server cannot count")

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        raise NotImplementedError("a store without a server cannot compare and set")

    def delete_key(self, key: str) -> bool:
        raise NotImplementedError("what was sent to the other members cannot be taken back")

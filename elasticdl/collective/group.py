"""One generation's process group: built, used, aborted from another thread, and released.

Gloo's calls block until they succeed, fail or time out, and nothing ends them early. So each group has a communication
thread that makes these calls; the training thread waits for it or for an abort, whichever comes first. On an abort it
shuts down the group's connections and continues at once. The communication thread keeps the process group and its
buffers until Gloo has returned them: a buffer that a late peer may still write to is never used for anything else.
"""

from __future__ import annotations

import atexit
import re
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from elasticdl.collective import nccl
from elasticdl.collective.peer_sockets import PeerLost, PeerSockets
from elasticdl.collective.shared import Shared
from elasticdl.collective.sockets import Address, listening_address, named_in, shut_down
from elasticdl.collective.store import RelayedStore
from elasticdl.errors import CalledOff, GroupBroken, WireError

T = TypeVar("T")

_LAST_SECONDS = 1.0  # that the end of the process waits for all communication threads together
_SOURCE_LINE = re.compile(r"\[(?:enforce fail at )?/[^\]]*:\d+\]\s*")  # the line of Gloo's sources that raised an error


class Transfer:
    """A tensor that is being sent or received."""

    def __init__(self, work: Any, tensor: torch.Tensor, peer: int, limit: timedelta) -> None:
        self._work, self._tensor, self._peer, self._limit = work, tensor, peer, limit

    def wait(self) -> torch.Tensor:
        try:
            self._work.wait(self._limit)
        except RuntimeError as error:
            raise PeerLost(self._peer, str(error)) from error
        return self._tensor


class PeerLink:
    """The group as its communication thread sees it. Other threads may only call `disconnect`."""

    def __init__(self, store: Store, prefix: str, size: int, timeout_seconds: float) -> None:
        self._limit = timedelta(seconds=timeout_seconds)  # of each wait for a peer
        self.gloo: Any = None
        self.nccl: Any = None  # where each member has a GPU of its own
        self.sockets: PeerSockets | None = None  # where all members are on one machine
        self._store, self._prefix, self._size = store, prefix, size
        self._disconnected = self._aborted = False

    def build(self, rank: int, host: str, build_seconds: float) -> None:
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=build_seconds)
        options._threads = 1
        options._devices = [ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
        self.gloo = ProcessGroupGloo(PrefixStore(self._prefix, self._store), rank, self._size, options)
        self.gloo._set_default_timeout(self._limit)  # of sums; `Transfer` has its own

    def connect_devices(self, rank: int, device: torch.device, timeout_seconds: float) -> None:
        """From now on NCCL adds up tensors on GPUs. All members call this together."""
        self.check()
        self.nccl = nccl.connect(self._store, self._prefix, rank, self._size, device, timeout_seconds)
        self.nccl.allreduce([torch.zeros(1, device=device)]).wait()  # this connects
        torch.cuda.synchronize(device)
        self.check()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Transfer:
        self.check()
        return Transfer(self.gloo.send([tensor], to, tag), tensor, to, self._limit)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Transfer:
        self.check()
        return Transfer(self.gloo.recv([tensor], source, tag), tensor, source, self._limit)

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Start to replace the tensor by the sum over all members; what to wait for."""
        self.check()
        return (self.nccl if tensor.is_cuda else self.gloo).allreduce([tensor])

    def disconnect(self) -> None:
        """Shut down all connections: every wait ends, here and at the peers."""
        self._disconnected = True
        shut_down(self.addresses().values())
        if self.sockets is not None:
            self.sockets.shut_down()
        self.abort_devices()

    def abort_devices(self) -> None:
        if self.nccl is not None and not self._aborted:
            self._aborted = True
            self.nccl.abort()

    def addresses(self) -> dict[int, Address]:
        """Where the members listen, as far as they have stored it."""
        found = {}
        for rank in range(self._size):
            key = f"{self._prefix}/0/{rank}"
            if self._store.check([key]):
                address = listening_address(self._store.get(key))
                if address is not None:
                    found[rank] = address
        return found

    def unknown(self) -> list[int]:
        """The members that have not stored where they listen."""
        return [rank for rank in range(self._size) if not self._store.check([f"{self._prefix}/0/{rank}"])]

    def check(self) -> None:
        """Raise if the group is disconnected: what it received may be incomplete."""
        if self._disconnected:
            raise RuntimeError("the group was abandoned")


class Operation(Generic[T]):
    """A call for the communication thread, and its outcome."""

    def __init__(self, body: Callable[[PeerLink], T], give_up: Callable[[], None]) -> None:
        self.body, self.give_up = body, give_up
        self.ended = threading.Event()  # it is done or aborted
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self, link: PeerLink) -> None:
        try:
            with torch.no_grad():
                self.results.append(self.body(link))
        except BaseException as error:  # the training thread raises it again
            self.error = error

    def release(self) -> None:
        """Release what the frames of failed calls hold: buffers and connections."""
        error = self.error
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def _communicate(link: PeerLink, operations: SimpleQueue[Operation[Any] | None]) -> None:
    while (operation := operations.get()) is not None:
        operation.run(link)
        operation.release()
        operation.ended.set()
        del operation  # with the buffers in it
    link.abort_devices()
    link.gloo = link.nccl = None  # closes the connections; Gloo's threads are idle by now
    if link.sockets is not None:
        link.sockets.close()


_threads: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Operation[Any] | None]] = weakref.WeakKeyDictionary()


@atexit.register
def _end_threads() -> None:
    # A thread that returns from Gloo while the interpreter shuts down would crash the process.
    deadline = time.monotonic() + _LAST_SECONDS
    threads = list(_threads.items())
    for _, operations in threads:
        operations.put(None)
    for thread, _ in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class Group:
    """The connected members of one generation. All calls from one thread, except `abort`."""

    def __init__(
        self, generation: int, rank: int, members: Sequence[str], store: Store, host: str, timeout_seconds: float,
        build_seconds: float | None = None,
    ) -> None:  # fmt: skip
        """`timeout_seconds` limits each wait for a peer once the group is built."""
        build_seconds = timeout_seconds if build_seconds is None else build_seconds
        self.generation, self.rank, self.members, self.size = generation, rank, tuple(members), len(members)
        self.sizes_agreed: set[int] = set()  # of vectors: all members are known to have the same
        self.on_devices = False  # whether NCCL adds up tensors on GPUs
        self.shared: Shared | None = None  # memory for sums, where the members are on one machine
        self._buffers: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._operation: Operation[Any] | None = None
        self._reason: str | None = None
        self._broken: GroupBroken | None = None
        self._link = PeerLink(store, f"world-{generation}", self.size, timeout_seconds)
        self._operations: SimpleQueue[Operation[Any] | None] = SimpleQueue()
        # Also ends the thread of a group that is garbage-collected without `close`.
        self._dismiss = weakref.finalize(self, self._operations.put, None)
        self._dismiss.atexit = False
        if isinstance(store, RelayedStore):
            store.on_interrupt(self.abort)
        if self.size == 1:
            return
        self._start_thread()
        try:
            self.run(lambda link: link.build(rank, host, build_seconds), build_seconds + 1)
        except BaseException:
            self.close()
            raise

    def connect_devices(self, device: torch.device, timeout_seconds: float) -> None:
        """Have NCCL add up tensors on GPUs; each member must have its own GPU. One member alone can try it out."""
        if self.size == 1:
            self._start_thread()
        rank = self.rank
        self.run(lambda link: link.connect_devices(rank, device, timeout_seconds), timeout_seconds + 1)
        self.on_devices = True

    def share(self, shared: Shared) -> None:
        """Make sums through memory that the members share."""
        self.shared, self._link.sockets = shared, shared.sockets

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=_communicate, args=(self._link, self._operations), name=f"world {self.generation}", daemon=True
        )
        thread.start()
        _threads[thread] = self._operations

    @property
    def alone(self) -> bool:
        """Whether there is nothing to exchange."""
        return self.size == 1 and not self.on_devices

    @property
    def peers(self) -> list[int]:
        """The other ranks, starting with the next one, so that not all begin with rank 0."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def check(self) -> None:
        """Raise if this group was aborted or is broken."""
        with self._lock:
            if self._reason is not None:
                raise CalledOff(self._reason)
            if self._broken is not None:
                raise GroupBroken(str(self._broken), self._broken.suspects)

    def run(self, body: Callable[[PeerLink], T], seconds: float | None = None) -> T:
        """Run this in the communication thread, and wait for it. By default only the waits for peers are limited."""
        return self.wait(self.begin(body), seconds)

    def begin(self, body: Callable[[PeerLink], T], give_up: Callable[[], None] = lambda: None) -> Operation[T]:
        """Run this in the communication thread. The caller waits for it before the next, or closes the group; then
        `give_up` frees a body that waits for its own side."""
        operation = Operation(body, give_up)
        self.check()
        with self._lock:
            self._operation = operation
            if self._reason is not None:
                operation.ended.set()
        self._operations.put(operation)
        return operation

    def wait(self, operation: Operation[T], seconds: float | None = None) -> T:
        """Its result; raises CalledOff or GroupBroken where there is none."""
        in_time = operation.ended.wait(seconds)
        with self._lock:
            self._operation = None
            reason = self._reason
        if operation.results:
            return operation.results[0]
        self._link.disconnect()
        if reason is not None:
            raise CalledOff(reason)
        if not in_time:
            raise self._break(f"generation {self.generation}: not all members connected within {seconds:g} s", ())
        assert operation.error is not None
        if isinstance(operation.error, (RuntimeError, WireError, PeerLost)):
            raise self._blame(operation.error) from operation.error
        raise operation.error

    def _blame(self, error: Exception) -> GroupBroken:
        if isinstance(error, GroupBroken):
            return self._break(str(error), error.suspects)
        named = [rank for rank in named_in(str(error), self._link.addresses()) if rank != self.rank]
        asked = [error.peer] if isinstance(error, PeerLost) else []
        suspects = tuple(self.members[rank] for rank in named or asked or self._link.unknown())
        lines = _SOURCE_LINE.sub("", str(error)).splitlines() or [type(error).__name__]
        what = lines[0].partition(". This is typically")[0]
        about = f" (about {', '.join(suspects)})" if suspects else ""
        return self._break(f"generation {self.generation}: {what}{about}", suspects)

    def _break(self, what: str, suspects: Sequence[str]) -> GroupBroken:
        self._broken = GroupBroken(what, suspects)
        return GroupBroken(what, suspects)

    def buffer(self, name: str, size: int, pinned: bool = False) -> torch.Tensor:
        """A vector in main memory that lives as long as this group; the same one for the same name and size."""
        found = self._buffers.get(name)
        if found is None or found.numel() != size:
            found = self._buffers[name] = torch.empty(size, dtype=torch.float32, pin_memory=pinned)
        return found

    def abort(self, reason: str) -> None:
        """End the operation that is running, and refuse all later ones."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
            if self._operation is not None:
                self._operation.ended.set()

    def close(self) -> None:
        """Abort what is running. Connections are closed as soon as Gloo returns."""
        self.abort("the group is closed")
        with self._lock:
            operation, self._operation = self._operation, None
        if operation is not None:
            operation.give_up()
            self._link.disconnect()
        self._buffers = {}
        self._dismiss()

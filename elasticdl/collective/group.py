"""One generation's process group: built, used, called off from another thread, and let go.

Gloo's calls block until they succeed, fail or time out, and nothing ends them early. So each group has a thread of its
own, the courier, that makes these calls; the thread that trains waits for the courier or for an abort, whichever comes
first. On an abort it cuts the group's connections and goes on at once. The courier keeps the process group and every
buffer that Gloo knows of until Gloo has returned them, and only then lets go: a buffer that a late peer may still write
to is never used for anything else.
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
from elasticdl.collective.shared import Shared
from elasticdl.collective.sockets import Address, listening_address, named_in, sever
from elasticdl.collective.store import RelayedStore
from elasticdl.collective.words import Lost, Words
from elasticdl.errors import CalledOff, GroupBroken, WireError

T = TypeVar("T")

_LAST_SECONDS = 1.0  # that the end of the process waits for couriers, all together
_SOURCE_LINE = re.compile(r"\[(?:enforce fail at )?/[^\]]*:\d+\]\s*")  # where in Gloo's sources an error was made


class Passage:
    """A tensor on its way from or to a peer."""

    def __init__(self, work: Any, tensor: torch.Tensor, peer: int, limit: timedelta) -> None:
        self._work, self._tensor, self._peer, self._limit = work, tensor, peer, limit

    def wait(self) -> torch.Tensor:
        try:
            self._work.wait(self._limit)
        except RuntimeError as error:
            raise Lost(self._peer, str(error)) from error
        return self._tensor


class Link:
    """The group as its courier sees it. Only `part` may be called from elsewhere."""

    def __init__(self, store: Store, prefix: str, size: int, timeout_seconds: float) -> None:
        self._limit = timedelta(seconds=timeout_seconds)  # of each wait for a peer
        self.gloo: Any = None
        self.nccl: Any = None  # where each member has a GPU of its own
        self.words: Words | None = None  # where all members are on one machine
        self._store, self._prefix, self._size = store, prefix, size
        self._parted = self._aborted = False

    def build(self, rank: int, host: str, build_seconds: float) -> None:
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=build_seconds)
        options._threads = 1
        options._devices = [ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
        self.gloo = ProcessGroupGloo(PrefixStore(self._prefix, self._store), rank, self._size, options)
        self.gloo._set_default_timeout(self._limit)  # of sums; messages have theirs from `Passage`

    def connect_devices(self, rank: int, device: torch.device, timeout_seconds: float) -> None:
        """From now on tensors on GPUs are added up there. All members do this together."""
        self.check()
        self.nccl = nccl.connect(self._store, self._prefix, rank, self._size, device, timeout_seconds)
        self.nccl.allreduce([torch.zeros(1, device=device)]).wait()  # connects
        torch.cuda.synchronize(device)
        self.check()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Passage:
        self.check()
        return Passage(self.gloo.send([tensor], to, tag), tensor, to, self._limit)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Passage:
        self.check()
        return Passage(self.gloo.recv([tensor], source, tag), tensor, source, self._limit)

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Begin to put the sum over all members in place of this one's numbers; what to wait for."""
        self.check()
        return (self.nccl if tensor.is_cuda else self.gloo).allreduce([tensor])

    def part(self) -> None:
        """Nothing leaves or comes in any more; whoever waits for this member, or here for another, hears of it."""
        self._parted = True
        sever(self.addresses().values())
        if self.words is not None:
            self.words.cut()
        self.abort_devices()

    def abort_devices(self) -> None:
        if self.nccl is not None and not self._aborted:
            self._aborted = True
            self.nccl.abort()

    def addresses(self) -> dict[int, Address]:
        """Where the members listen, as far as they have said so."""
        found = {}
        for rank in range(self._size):
            key = f"{self._prefix}/0/{rank}"
            if self._store.check([key]):
                address = listening_address(self._store.get(key))
                if address is not None:
                    found[rank] = address
        return found

    def unheard(self) -> list[int]:
        """The members that have not said where they listen."""
        return [rank for rank in range(self._size) if not self._store.check([f"{self._prefix}/0/{rank}"])]

    def check(self) -> None:
        """Raise if nothing that came in lately can be relied on."""
        if self._parted:
            raise RuntimeError("the group was given up")


class Errand(Generic[T]):
    """Something for the courier to do, and what came of it."""

    def __init__(self, body: Callable[[Link], T], give_up: Callable[[], None]) -> None:
        self.body, self.give_up = body, give_up
        self.woken = threading.Event()  # it is done, or not waited for any more
        self.results: list[T] = []
        self.error: BaseException | None = None

    def do(self, link: Link) -> None:
        try:
            with torch.no_grad():
                self.results.append(self.body(link))
        except BaseException as error:  # the border between two threads: the one that waits raises it again
            self.error = error

    def forget(self) -> None:
        """Let go of what failed calls have left in their frames: buffers, and connections."""
        error = self.error
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def _courier(link: Link, errands: SimpleQueue[Errand[Any] | None]) -> None:
    while (errand := errands.get()) is not None:
        errand.do(link)
        errand.forget()
        errand.woken.set()
        del errand  # with the buffers in it
    link.abort_devices()
    link.gloo = link.nccl = None  # closes the connections; its threads are idle by now
    if link.words is not None:
        link.words.close()


_couriers: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Errand[Any] | None]] = weakref.WeakKeyDictionary()


@atexit.register
def _let_go() -> None:
    # A courier that comes back from Gloo while the interpreter is being taken down would take the process with it.
    deadline = time.monotonic() + _LAST_SECONDS
    couriers = list(_couriers.items())
    for _, errands in couriers:
        errands.put(None)
    for courier, _ in couriers:
        courier.join(max(0.0, deadline - time.monotonic()))


class Group:
    """The members of one generation, connected. All calls from one thread, but `abort`, which any thread may call."""

    def __init__(
        self, generation: int, rank: int, members: Sequence[str], store: Store, host: str, timeout_seconds: float,
        build_seconds: float | None = None,
    ) -> None:  # fmt: skip
        """`timeout_seconds` are those of each wait for a peer, but while the group is built."""
        build_seconds = timeout_seconds if build_seconds is None else build_seconds
        self.generation, self.rank, self.members, self.size = generation, rank, tuple(members), len(members)
        self.sizes_agreed: set[int] = set()  # of vectors that all members are known to hold
        self.on_devices = False  # whether NCCL adds up what is on GPUs
        self.shared: Shared | None = None  # what members on one machine have for sums
        self._buffers: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._errand: Errand[Any] | None = None
        self._reason: str | None = None
        self._broken: GroupBroken | None = None
        self._link = Link(store, f"world-{generation}", self.size, timeout_seconds)
        self._errands: SimpleQueue[Errand[Any] | None] = SimpleQueue()
        # Also when nobody closes the group: the courier ends once the group is out of reach.
        self._dismiss = weakref.finalize(self, self._errands.put, None)
        self._dismiss.atexit = False
        if isinstance(store, RelayedStore):
            store.on_interrupt(self.abort)
        if self.size == 1:
            return
        self._send_courier()
        try:
            self.run(lambda link: link.build(rank, host, build_seconds), build_seconds + 1)
        except BaseException:
            self.close()
            raise

    def connect_devices(self, device: torch.device, timeout_seconds: float) -> None:
        """Have NCCL add up what is on GPUs; each member must have its own. Also for one member, to try it out."""
        if self.size == 1:
            self._send_courier()
        rank = self.rank
        self.run(lambda link: link.connect_devices(rank, device, timeout_seconds), timeout_seconds + 1)
        self.on_devices = True

    def share(self, shared: Shared) -> None:
        """Have sums go through memory that the members share."""
        self.shared, self._link.words = shared, shared.words

    def _send_courier(self) -> None:
        courier = threading.Thread(
            target=_courier, args=(self._link, self._errands), name=f"world {self.generation}", daemon=True
        )
        courier.start()
        _couriers[courier] = self._errands

    @property
    def alone(self) -> bool:
        """Nothing has to be exchanged."""
        return self.size == 1 and not self.on_devices

    @property
    def peers(self) -> list[int]:
        """The other ranks, beginning with the next one: not everybody turns to rank 0 first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def check(self) -> None:
        """Raise if this group was called off or is broken."""
        with self._lock:
            if self._reason is not None:
                raise CalledOff(self._reason)
            if self._broken is not None:
                raise GroupBroken(str(self._broken), self._broken.suspects)

    def run(self, body: Callable[[Link], T], seconds: float | None = None) -> T:
        """Have the courier do this, and wait for it. Without a limit, Gloo's own for each of its waits holds."""
        return self.wait(self.begin(body), seconds)

    def begin(self, body: Callable[[Link], T], give_up: Callable[[], None] = lambda: None) -> Errand[T]:
        """Have the courier do this. Whoever begins it waits for it before the next, or closes the group; then `give_up`
        frees a body that waits for its own side."""
        errand = Errand(body, give_up)
        self.check()
        with self._lock:
            self._errand = errand
            if self._reason is not None:
                errand.woken.set()
        self._errands.put(errand)
        return errand

    def wait(self, errand: Errand[T], seconds: float | None = None) -> T:
        """What came of it. CalledOff or GroupBroken when nothing did."""
        in_time = errand.woken.wait(seconds)
        with self._lock:
            self._errand = None
            reason = self._reason
        if errand.results:
            return errand.results[0]
        self._link.part()
        if reason is not None:
            raise CalledOff(reason)
        if not in_time:
            raise self._break(f"generation {self.generation} did not come together within {seconds:g} s", ())
        assert errand.error is not None
        if isinstance(errand.error, (RuntimeError, WireError, Lost)):
            raise self._blame(errand.error) from errand.error
        raise errand.error

    def _blame(self, error: Exception) -> GroupBroken:
        if isinstance(error, GroupBroken):
            return self._break(str(error), error.suspects)
        named = [rank for rank in named_in(str(error), self._link.addresses()) if rank != self.rank]
        asked = [error.peer] if isinstance(error, Lost) else []
        suspects = tuple(self.members[rank] for rank in named or asked or self._link.unheard())
        lines = _SOURCE_LINE.sub("", str(error)).splitlines() or [type(error).__name__]
        what = lines[0].partition(". This is typically")[0]
        about = f" (about {', '.join(suspects)})" if suspects else ""
        return self._break(f"generation {self.generation}: {what}{about}", suspects)

    def _break(self, what: str, suspects: Sequence[str]) -> GroupBroken:
        self._broken = GroupBroken(what, suspects)
        return GroupBroken(what, suspects)

    def buffer(self, name: str, size: int, pinned: bool = False) -> torch.Tensor:
        """A vector in main memory that lives and dies with this group; the same one for the same name and size."""
        found = self._buffers.get(name)
        if found is None or found.numel() != size:
            found = self._buffers[name] = torch.empty(size, dtype=torch.float32, pin_memory=pinned)
        return found

    def abort(self, reason: str) -> None:
        """Call off whatever the group is at, and all that it might be asked for later."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
            if self._errand is not None:
                self._errand.woken.set()

    def close(self) -> None:
        """No more calls. What is under way is called off; connections are closed as soon as Gloo lets go of them."""
        self.abort("the group is closed")
        with self._lock:
            errand, self._errand = self._errand, None
        if errand is not None:
            errand.give_up()
            self._link.part()
        self._buffers = {}
        self._dismiss()

"""A member of worlds, for tests: a process with a control thread, like a worker, that runs tasks."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch

from elasticdl import faults
from elasticdl.collective import exchange
from elasticdl.collective.exchange import PIECE_FLOATS, gather_bytes, tree_total
from elasticdl.collective.group import Group
from elasticdl.collective.store import RelayedStore
from elasticdl.collective.sums import Sums
from elasticdl.collective.transfer import CHUNK_BYTES, receive_state, send_state
from elasticdl.collective.tree import runs
from elasticdl.errors import GroupBroken, WireError
from tests.collective.plain import plain_total


def contribution(size: int, step: int, virtual: int) -> torch.Tensor:
    """Numbers of very different sizes, so that the order of additions shows in the bits."""
    generator = torch.Generator().manual_seed(step * 1000 + virtual)
    return torch.randn(size, generator=generator) * 10.0 ** torch.randint(-6, 7, (size,), generator=generator)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def sample_state(size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model/weights": torch.randn(size, generator=generator),
        "model/half": torch.randn(3, 5, 7, generator=generator).to(torch.bfloat16),
        "model/transposed": torch.randn(40, 30, generator=generator).t(),
        "model/counted": torch.tensor(7 + seed),
        "optimizer/step": torch.tensor(3.5),
        "optimizer/none": torch.empty(0, 4),
        "optimizer/mask": torch.tensor([True, False, True]),
        "optimizer/moment": torch.randn(size // 2 + 1, generator=generator, dtype=torch.float64),
    }


class Tasks:
    """The tasks of a member; they run in its main thread."""

    def __init__(self, connection: Connection) -> None:
        self.store: RelayedStore | None = None
        self.group: Group | None = None
        self.sums: dict[int, Sums] = {}  # by step; parts that were computed stay
        self.early: dict[int, list[tuple[str, bytes]]] = {}  # values that came before the generation was built
        self.lock = threading.Lock()
        self._connection = connection
        self._sending = threading.Lock()

    def reply(self, *message: Any) -> None:
        with self._sending:
            self._connection.send(message)

    def deliver(self, generation: int, key: str, value: bytes) -> None:
        with self.lock:
            if self.store is None or self.store.generation != generation:
                self.early.setdefault(generation, []).append((key, value))
            else:
                self.store.deliver(key, value)

    def build(self, generation: int, rank: int, members: list[str], timeout_seconds: float = 20.0) -> float:
        began = time.monotonic()
        store = RelayedStore(generation, lambda k, v: self.reply("stored", generation, k, v), timeout_seconds)
        with self.lock:
            self.store = store
            for key, value in self.early.pop(generation, []):
                store.deliver(key, value)
        if self.group is not None:
            self.group.close()
        self.group = None
        self.group = Group(generation, rank, members, store, "127.0.0.1", timeout_seconds)
        return time.monotonic() - began

    def compute(self, virtual: int, size: int, step: int) -> int:
        """The parts of a step that are missing; how many they were."""
        assert self.group is not None
        sums = self.sums.setdefault(step, Sums(virtual))
        missing = sums.missing(*runs(virtual, self.group.size)[self.group.rank])
        for v in missing:
            sums.add(v, contribution(size, step, v))
        return len(missing)

    def total(
        self,
        virtual: int,
        size: int,
        step: int,
        flag: bool = False,
        fresh: bool = False,
        piece: int = 0,
        device: str = "cpu",
        means: int = 0,
    ) -> tuple[str, bool, int]:
        """One step's deterministic sum: its digest, the flag, and how many parts had to be computed for it."""
        assert self.group is not None
        if fresh:
            self.sums.pop(step, None)
        exchange.PIECE_FLOATS = piece or PIECE_FLOATS
        computed = self.compute(virtual, size, step)
        run = runs(virtual, self.group.size)[self.group.rank]
        nodes = {node: tensor.to(device) for node, tensor in self.sums[step].nodes(*run).items()}
        total, any_flag = tree_total(self.group, nodes, virtual, flag, means)
        return digest(total.cpu()), any_flag, computed

    def totals(self, virtual: int, size: int, steps: range) -> list[str]:
        found = []
        for step in steps:
            found.append(self.total(virtual, size, step)[0])
            del self.sums[step]
        return found

    def plain(self, size: int, step: int, flag: bool = False, device: str = "cpu") -> tuple[list[float], bool]:
        assert self.group is not None
        total, any_flag = plain_total(self.group, contribution(size, step, self.group.rank).to(device), flag)
        return total.tolist(), any_flag

    def gather(self, mine: bytes) -> list[bytes]:
        assert self.group is not None
        return gather_bytes(self.group, mine)

    def send(self, to: int, size: int, seed: int, together: bool = True) -> tuple[int, float]:
        assert self.group is not None
        state = sample_state(size, seed)
        if together:
            gather_bytes(self.group, b"ready")
        began = time.monotonic()
        moves: list[float] = []
        sent = send_state(self.group, to, state, lambda: moves.append(time.monotonic()))
        assert len(moves) > sent // CHUNK_BYTES, "it was not seen that the state moves"
        return sent, time.monotonic() - began

    def receive(self, source: int, size: int, seed: int, together: bool = True) -> float:
        """Copy the state and compare it, bit for bit, to what it must be; the seconds that the copy took."""
        assert self.group is not None
        wanted = sample_state(size, seed)
        if together:
            gather_bytes(self.group, b"ready")
        began = time.monotonic()
        moves: list[float] = []
        state = receive_state(self.group, source, lambda: moves.append(time.monotonic()))
        size = sum(t.numel() * t.element_size() for t in state.values())
        assert len(moves) >= -(-size // CHUNK_BYTES), "it was not seen that the state moves"
        took = time.monotonic() - began
        assert list(state) == list(wanted)
        for name, tensor in wanted.items():
            assert (state[name].dtype, state[name].shape) == (tensor.dtype, tensor.shape), name
            assert digest(state[name]) == digest(tensor), name
        return took

    def raw(self, to: int, messages: list[tuple[int, bytes]]) -> None:
        """Send something else than a state."""
        assert self.group is not None
        tensors = [(tag, torch.frombuffer(bytearray(data), dtype=torch.uint8)) for tag, data in messages]

        def carry_out(link: Any) -> None:
            for transfer in [link.send(tensor, to, tag) for tag, tensor in tensors]:
                transfer.wait()

        self.group.run(carry_out)

    def resources(self) -> tuple[int, int, int]:
        """Threads, open files and resident kilobytes of this process, once all groups are let go."""
        assert self.group is not None
        self.group.close()
        for thread in threading.enumerate():
            if thread.name.startswith("world "):
                thread.join(10)
        me = psutil.Process()
        return me.num_threads(), me.num_fds(), me.memory_info().rss // 1024


def serve(connection: Connection, name: str, plan: str) -> None:
    torch.set_num_threads(1)
    os.environ["ELASTICDL_FAULTS"] = plan
    faults.arm(name)
    tasks = Tasks(connection)
    orders: queue.SimpleQueue[tuple[int, str, dict[str, Any]]] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                kind, *rest = connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            if kind == "do":
                orders.put((rest[0], rest[1], rest[2]))
            elif kind == "stored":
                tasks.deliver(*rest)
            elif kind == "abort" and tasks.group is not None:
                tasks.group.abort(rest[0])
            elif kind == "interrupt" and tasks.store is not None:
                tasks.store.interrupt(rest[0])

    threading.Thread(target=listen, daemon=True).start()
    while True:
        number, command, arguments = orders.get()
        try:
            tasks.reply("answer", number, getattr(tasks, command)(**arguments), "", "", ())
        except (WireError, ValueError, AssertionError) as error:
            suspects = error.suspects if isinstance(error, GroupBroken) else ()
            tasks.reply("answer", number, None, type(error).__name__, str(error), suspects)

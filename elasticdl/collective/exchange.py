"""The deterministic sum of a step over the members of a world, and gathering of small messages.

The sum is cut into one slice per rank. Every rank sends the pieces of each slice to its owner, which finishes the tree
and sends the result to all others. Pieces are small, and several are in flight while one is added up, so that adding
costs little and memory stays in the cache. Each rank sends its flag before its first piece.

Members that share memory and have one node each read the other nodes there, and each finishes the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from elasticdl import faults
from elasticdl.collective.group import Group, PeerLink, Transfer
from elasticdl.collective.peer_sockets import READ, READY
from elasticdl.collective.shared import Shared
from elasticdl.collective.tree import Node, halves, one_node_each, root, runs, subtrees, value
from elasticdl.errors import GroupBroken

PIECE_FLOATS = 1 << 20  # measured: smaller costs messages, larger leaves nothing to overlap
AHEAD = 4  # rounds of pieces in flight at once
_SHARED_FLOATS = 1 << 16  # of a piece that is read from shared memory: three of them stay in the cache
_LINE_FLOATS = 16  # slices start at a cache line

# Tags of messages between two ranks.
_HEADER, _LENGTH, _BYTES, _RECEIPT = 0, 1, 2, 3
_FIRST_ROUND_TAG, _TAGS_PER_ROUND = 1024, 64
_MOST_GATHERED_BYTES = 1 << 30

Value = tuple[torch.Tensor, bool]  # a tensor, and whether it may be overwritten


def tree_total(
    group: Group, nodes: Mapping[Node, torch.Tensor], virtual: int, flag: bool, means: int = 0
) -> tuple[torch.Tensor, bool]:
    """The sum over all virtual workers, the same bits for any world, and whether any rank's flag was set.

    The first `means` numbers are means. `nodes` are this rank's, and are not changed; a world of one makes the sum in
    place of its node, all others in a new tensor.
    """
    group.check()
    shares = [subtrees(*run, virtual) for run in runs(virtual, group.size)]
    if set(nodes) != set(shares[group.rank]):
        raise ValueError(f"rank {group.rank} must have the nodes {shares[group.rank]}, not {tuple(nodes)}")
    if group.size == 1:
        total = nodes[root(virtual)]
        _divide(total, slice(0, len(total)), means, virtual)
        return total, flag
    device = next(iter(nodes.values())).device
    mine = nodes if device.type == "cpu" else _staged(group, nodes)
    # A new tensor for each sum, since an optimizer may keep a part of it; made in the thread that keeps freed memory.
    first = next(iter(mine.values()))
    total = torch.empty(first.numel(), dtype=first.dtype)
    shared, here = group.shared, device.type == "cpu"
    means_here = means if here else 0
    exchange: _Exchange | _SharedExchange
    if shared is not None and here and one_node_each(virtual, group.size):
        if first is not shared.mine:  # it was complete before this world was formed, or is a single part
            shared.mine.copy_(first)
        exchange = _SharedExchange(shared, [share[0] for share in shares], virtual, flag, means_here, total)
    else:
        exchange = _Exchange(group, mine, shares, virtual, flag, means_here, total)
    any_flag = group.run(exchange.carry_out)
    if not here:  # divided on the GPU, as in a world of one: its rounding may differ
        total = total.to(device)
        _divide(total, slice(0, len(total)), means, virtual)
    return total, any_flag


def _staged(group: Group, nodes: Mapping[Node, torch.Tensor]) -> dict[Node, torch.Tensor]:
    """Copies in main memory: Gloo does not read that of a GPU."""
    staged = {}
    for node, tensor in nodes.items():
        copy = group.buffer(f"node {node}", tensor.numel(), pinned=True)
        staged[node] = copy.copy_(tensor, non_blocking=True)
    torch.cuda.synchronize()
    return staged


@dataclass(frozen=True)
class _Exchange:
    """One rank's side of a deterministic sum."""

    group: Group
    nodes: Mapping[Node, torch.Tensor]
    shares: list[tuple[Node, ...]]  # the nodes of each rank
    virtual: int
    flag: bool
    means: int
    total: torch.Tensor

    @property
    def size(self) -> int:
        return int(next(iter(self.nodes.values())).numel())

    @property
    def rounds(self) -> int:
        return -(-self.size // (self.group.size * PIECE_FLOATS))

    def piece(self, rank: int, turn: int) -> slice:
        """What the owner of a slice adds up in a round: `turn`."""
        start, stop = self._slice_start(rank), self._slice_start(rank + 1)
        step = -(-(stop - start) // self.rounds)
        return slice(min(start + turn * step, stop), min(start + (turn + 1) * step, stop))

    def _slice_start(self, rank: int) -> int:
        if rank == self.group.size:
            return self.size
        return self.size * rank // self.group.size // _LINE_FLOATS * _LINE_FLOATS

    def carry_out(self, link: PeerLink) -> bool:
        total = self.total
        receipts = _Receipts(link, self.group.peers)
        headers = Headers(self.group, link, self.size, self.flag)
        if self.size not in self.group.sizes_agreed:
            headers.wait()  # pieces of unequal sizes would crash Gloo
        coming: list[list[tuple[Node, Transfer]]] = []
        back: list[Transfer] = []  # sums of the other slices
        going: list[Transfer] = []
        for turn in range(min(AHEAD, self.rounds)):
            coming.append(self._start(link, turn, total, back, going))
        for turn in range(self.rounds):
            received = [(node, transfer.wait()) for node, transfer in coming[turn]]
            self._finish(received, turn, total[self.piece(self.group.rank, turn)])
            if turn == 0:
                faults.point("worker.in_exchange")
            if turn + AHEAD < self.rounds:
                coming.append(self._start(link, turn + AHEAD, total, back, going))
            going += self._distribute(link, turn, total)
        for transfer in back:
            transfer.wait()
        receipts.settle(going)
        return headers.wait()

    def _start(
        self, link: PeerLink, turn: int, total: torch.Tensor, back: list[Transfer], going: list[Transfer]
    ) -> list[tuple[Node, Transfer]]:
        """Start a round; the pieces that this rank will add up."""
        mine = self.piece(self.group.rank, turn)
        places = self._places(turn, mine.stop - mine.start)
        tag = _FIRST_ROUND_TAG + turn * _TAGS_PER_ROUND
        coming = []
        for peer in self.group.peers:
            theirs = self.piece(peer, turn)
            if mine.stop > mine.start:
                for number, node in enumerate(self.shares[peer]):
                    coming.append((node, link.receive(next(places), peer, tag + number)))
            if theirs.stop > theirs.start:
                for number, node in enumerate(self.shares[self.group.rank]):
                    going.append(link.send(self.nodes[node][theirs], peer, tag + number))
                back.append(link.receive(total[theirs], peer, tag + _TAGS_PER_ROUND - 1))
        return coming

    def _places(self, turn: int, length: int) -> Iterator[torch.Tensor]:
        """The buffers for a round's pieces, free again once the round is added up."""
        count = sum(len(self.shares[peer]) for peer in self.group.peers)
        longest = self.piece(self.group.rank, 0)
        width = longest.stop - longest.start
        space = self.group.buffer("pieces", AHEAD * count * width)
        for number in range(count):
            start = (turn % AHEAD * count + number) * width
            yield space[start : start + length]

    def _finish(self, received: list[tuple[Node, torch.Tensor]], turn: int, result: torch.Tensor) -> None:
        """Add up one piece of this rank's slice, from the nodes of all ranks."""
        mine = self.piece(self.group.rank, turn)
        if mine.stop == mine.start:
            return
        held: dict[Node, Value] = {node: (tensor[mine], False) for node, tensor in self.nodes.items()}
        held.update((node, (tensor, True)) for node, tensor in received)
        _finish(held, self.virtual, result)
        _divide(result, mine, self.means, self.virtual)

    def _distribute(self, link: PeerLink, turn: int, total: torch.Tensor) -> list[Transfer]:
        mine = self.piece(self.group.rank, turn)
        if mine.stop == mine.start:
            return []
        tag = _FIRST_ROUND_TAG + (turn + 1) * _TAGS_PER_ROUND - 1
        return [link.send(total[mine], peer, tag) for peer in self.group.peers]


@dataclass(frozen=True)
class _SharedExchange:
    """The same where each member has one node, and all can read them."""

    shared: Shared
    nodes: list[Node]  # by rank
    virtual: int
    flag: bool
    means: int
    total: torch.Tensor

    def carry_out(self, link: PeerLink) -> bool:
        size, sockets = self.total.numel(), self.shared.sockets
        sockets.send(READY, self.flag)
        any_flag = sockets.receive(READY) or self.flag
        faults.point("worker.in_exchange")
        for start in range(0, size, _SHARED_FLOATS):
            piece = slice(start, min(start + _SHARED_FLOATS, size))
            pairs = zip(self.nodes, self.shared.places, strict=True)
            _finish({node: (place.vector[piece], False) for node, place in pairs}, self.virtual, self.total[piece])
            _divide(self.total[piece], piece, self.means, self.virtual)
        self.shared.check()
        sockets.send(READ)
        sockets.receive(READ)
        return any_flag


def _finish(held: Mapping[Node, Value], virtual: int, result: torch.Tensor) -> None:
    """Add up to the root."""
    left, right = (value(half, virtual, held, _add) for half in halves(root(virtual), virtual))
    torch.add(left[0], right[0], out=result)


def _add(left: Value, right: Value) -> Value:
    place = left[0] if left[1] else right[0] if right[1] else None
    return torch.add(left[0], right[0], out=place), True


def _divide(result: torch.Tensor, piece: slice, means: int, virtual: int) -> None:
    """Turn sums into means, as far as the piece has any."""
    if virtual > 1 and piece.start < means:
        result[: means - piece.start] /= virtual


class _Receipts:
    """Confirmations between all ranks that they received all they need.

    When a peer is gone, Gloo fails a wait to receive at once, but not a wait to send.
    """

    def __init__(self, link: PeerLink, peers: list[int]) -> None:
        self._link, self._peers = link, peers
        self._coming = [link.receive(torch.empty(1, dtype=torch.uint8), peer, _RECEIPT) for peer in peers]

    def settle(self, going: list[Transfer]) -> None:
        """This rank received all it needs; wait until the others received what it sent."""
        receipt = torch.zeros(1, dtype=torch.uint8)
        sent = [self._link.send(receipt, peer, _RECEIPT) for peer in self._peers]
        for transfer in (*self._coming, *going, *sent):
            transfer.wait()


class Headers:
    """The number of floats and the flag of each member."""

    def __init__(self, group: Group, link: PeerLink, size: int, flag: bool) -> None:
        self._group, self._size, self._mine = group, size, flag
        mine = torch.tensor([size, flag], dtype=torch.int64)
        self._going = [link.send(mine, peer, _HEADER) for peer in group.peers]
        self._coming = [(peer, link.receive(torch.empty(2, dtype=torch.int64), peer, _HEADER)) for peer in group.peers]
        self._flag: bool | None = None

    def wait(self) -> bool:
        if self._flag is None:
            received = [(peer, *transfer.wait().tolist()) for peer, transfer in self._coming]
            for transfer in self._going:  # so that the others report a mismatch as well
                transfer.wait()
            flags = [self._mine]
            for peer, size, flag in received:
                if size != self._size:
                    member = self._group.members[peer]
                    what = f"{member} adds {size} numbers to the sum, this worker {self._size}"
                    raise GroupBroken(f"{what}: their models differ", [member])
                flags.append(bool(flag))
            self._flag = any(flags)
            self._group.sizes_agreed.add(self._size)
        return self._flag


def gather_bytes(group: Group, mine: bytes) -> list[bytes]:
    """The bytes of all members, by rank."""
    group.check()
    if group.size == 1:
        return [mine]
    peers = group.peers

    def carry_out(link: PeerLink) -> list[bytes]:
        receipts = _Receipts(link, peers)
        length = torch.tensor([len(mine)], dtype=torch.int64)
        transfers = [link.send(length, peer, _LENGTH) for peer in peers]
        lengths = [link.receive(torch.empty(1, dtype=torch.int64), peer, _LENGTH) for peer in peers]
        if mine:
            data = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
            transfers += [link.send(data, peer, _BYTES) for peer in peers]
        coming: dict[int, Transfer] = {}
        found = {group.rank: mine}
        for peer, announced in zip(peers, lengths, strict=True):
            count = int(announced.wait().item())
            if not 0 <= count <= _MOST_GATHERED_BYTES:
                raise GroupBroken(f"{group.members[peer]} announced a message of {count} bytes", [group.members[peer]])
            found[peer] = b""
            if count:
                coming[peer] = link.receive(torch.empty(count, dtype=torch.uint8), peer, _BYTES)
        for peer, transfer in coming.items():
            found[peer] = transfer.wait().numpy().tobytes()
        receipts.settle(transfers)
        return [found[rank] for rank in range(group.size)]

    return group.run(carry_out)

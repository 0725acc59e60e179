"""A worker's client of all parameter servers: it pulls, pushes and exports values, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.job.parameters import ParametersSpec
from elasticdl.ps.connections import RESEND_SECONDS, Connections, Interrupted, Reply, Resend, Stale, TimelineOver
from elasticdl.ps.placement import gather_index, place, split, unique
from elasticdl.wire import frames
from elasticdl.wire.auth import Keys
from elasticdl.wire.frames import FRAME_BYTES, floats, ids

__all__ = ["Batch", "Client", "Interrupted", "Resend", "Stale", "TimelineOver"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Names the batch that is pushed."""

    epoch: int
    index: int
    attempt: int
    number: int


class Client:
    """Used by one thread, except `interrupt`."""

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        spec: ParametersSpec,
        timeline: int,
        resend_seconds: float = RESEND_SECONDS,
        keys: Keys | None = None,
    ) -> None:
        self.spec = spec
        self._trainable_variables = tuple(v for v in spec.variables if v.trainable)
        self._state_variables = tuple(v for v in spec.variables if not v.trainable)
        self.trainable_size = sum(v.size for v in self._trainable_variables)
        self.state_size = sum(v.size for v in self._state_variables)
        self._numbers = {t.name: n for n, t in enumerate(spec.tables)}
        self._connections = Connections(addresses, token, timeline, resend_seconds, keys)
        self._place()

    def move(self, addresses: Sequence[str], timeline: int) -> None:
        """Use other servers on another timeline, after a rollback or a change of their number. Drops all requests."""
        self._connections.move(addresses, timeline)
        self._place()

    def _place(self) -> None:
        self.servers = len(self._connections.addresses)
        trainable, state = place(self._trainable_variables, self.servers), place(self._state_variables, self.servers)
        self._slices = [(gather_index(t), gather_index(s)) for t, s in zip(trainable, state, strict=True)]

    @property
    def timeline(self) -> int:
        return self._connections.timeline

    def close(self) -> None:
        self._connections.close()

    def interrupt(self) -> None:
        """From any thread: ask the question of `called_off_by` again."""
        self._connections.interrupt()

    def called_off_by(self, question: Callable[[], bool]) -> None:
        """A request that waits raises Interrupted once `question` answers True; `interrupt` has it asked."""
        self._connections.called_off_by(question)

    # Operations.

    def declare(self, trainable: Floats, state: Floats) -> None:
        """Send the model's shapes and first values to every server, which takes the values only if it has none."""
        text = self.spec.model_dump_json().encode()
        self._ask_all(frames.Declare(), [[text, trainable[t], state[s]] for t, s in self._slices])

    def pull(self, view: int = 0, at_least: int = 0) -> tuple[Floats, Floats, int]:
        """All dense values, the state and the lowest version among the servers, each at version `at_least` or later."""
        trainable, state, _, version = self._pull(frames.Pull(view, at_least))
        return trainable, state, version

    def pull_with_slots(self) -> tuple[Floats, Floats, Floats, int]:
        """The same, with the optimizer's slots after the state: one slot after the other, flat."""
        return self._pull(frames.Pull(slots=True))

    def _pull(self, pull: frames.Pull) -> tuple[Floats, Floats, Floats, int]:
        replies = self._ask_all(pull)
        trainable = np.empty(self.trainable_size, np.float32)
        state = np.empty(self.state_size, np.float32)
        slots = np.empty((self.spec.optimizer.slots if pull.slots else 0, self.trainable_size), np.float32)
        for (mine, also_mine), (_, body) in zip(self._slices, replies, strict=True):
            trainable[mine] = floats(body[0], len(mine), "dense values")
            state[also_mine] = floats(body[1], len(also_mine), "state")
            if len(slots):
                slots[:, mine] = floats(body[2], slots[:, mine].size, "slots").reshape(len(slots), -1)
        return trainable, state, slots.reshape(-1), min(done.version for done, _ in replies)

    def unique(self, wanted: Ids) -> tuple[Ids, Ids]:
        """The distinct ids, in the order that is fastest for `rows` and `push`, and the position of each id in them."""
        return unique(np.ascontiguousarray(wanted, np.int64), self.servers)

    def rows(self, table: str, wanted: Ids, view: int = 0, create: bool = True) -> Floats:
        """The rows of these ids, in their order. Sent in pieces, so that servers look up rows while others travel."""
        number, dim = self._numbers[table], self.spec.tables[self._numbers[table]].dim
        wanted = np.ascontiguousarray(wanted, np.int64)
        cut = split(wanted, self.servers)
        at_once = max(1, (FRAME_BYTES - 1) // max(4 * dim, 8))
        spans = [s for group in cut.pieces(at_once) for s in group]
        out = np.empty((len(wanted), dim), np.float32)

        def take(place: int, reply: Reply) -> None:
            _, start, stop = spans[place]
            got = floats(reply[1][0], (stop - start) * dim, f"rows of {table}")
            cut.put(start, stop, got.reshape(-1, dim), out)

        requests = [(server, [cut.take(start, stop, wanted)]) for server, start, stop in spans]
        self._connections.ask(frames.Rows(number, view, create), requests, take)
        return out

    def push(
        self, batch: Batch, gradients: Floats, state: Floats, rows: Mapping[str, tuple[Ids, Floats]],
        version: int = 0, rate: float = 0.0, records: int = 1,
    ) -> int:  # fmt: skip
        """Push one batch to every server, wait until all have it, and return the lowest version among them.

        `version`, `records` and `rate` are those of `frames.Push`. Raises Refused when the lease is no longer valid,
        TimelineOver after a rollback, Stale when the version is too old for synchronous training.
        """
        bodies: list[list[Any]] = [[gradients[t], state[s]] for t, s in self._slices]
        for table in self.spec.tables:
            found, grads = rows.get(table.name, (np.empty(0, np.int64), np.empty((0, table.dim), np.float32)))
            found, grads = np.ascontiguousarray(found, np.int64), np.ascontiguousarray(grads, np.float32)
            cut = split(found, self.servers)
            for body, start, stop in zip(bodies, cut.bounds, cut.bounds[1:], strict=False):
                body += [cut.take(start, stop, found), cut.take(start, stop, grads)]
        push = frames.Push(batch.epoch, batch.index, batch.attempt, batch.number, version, records, rate)
        replies = self._ask_all(push, bodies)
        if any(isinstance(done, frames.Pushed) and done.unconfirmed for done, _ in replies):
            replies = self._ask_all(frames.Confirm(batch.epoch, batch.index))
        return min(done.version for done, _ in replies)

    def export_rows(self, table: str) -> Iterator[tuple[Ids, Floats]]:
        """Every id that has a row, with its row: some thousands at a time, server by server."""
        for server in range(self.servers):
            start = 0
            while len((part := self._export(server, table, start))[0]):
                start += len(part[0])
                yield part

    def _export(self, server: int, table: str, start: int) -> tuple[Ids, Floats]:
        number, dim = self._numbers[table], self.spec.tables[self._numbers[table]].dim
        got: list[tuple[Ids, Floats]] = []

        def take(_: int, reply: Reply) -> None:
            found = ids(reply[1][0], "ids")
            rows = floats(reply[1][1], len(found) * dim, f"rows of {table}")
            got.append((found, rows.reshape(-1, dim)))

        self._connections.ask(frames.Export(number, start), [(server, [])], take)
        return got[0]

    def _ask_all(self, operation: frames.Operation, bodies: Sequence[Sequence[Any]] | None = None) -> list[Reply]:
        """One request to every server; their answers in the order of the servers."""
        replies: dict[int, Reply] = {}
        requests = list(enumerate(bodies if bodies is not None else [[]] * self.servers))
        self._connections.ask(operation, requests, replies.__setitem__)
        return [replies[s] for s in range(self.servers)]

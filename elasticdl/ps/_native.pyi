"""What the native module offers (C++ in native/). Arrays must be C-contiguous and of exactly the type named."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

class Optimizer:
    """The rule that moves weights; arguments are `elasticdl.job.parameters.OptimizerSpec.constants`."""

    slots: int  # floats of state per weight
    slot_starts: tuple[float, ...]  # what each of them holds at the beginning

    def __init__(
        self,
        kind: str,
        flavour: str,
        momentum: float = 0.0,
        nesterov: bool = False,
        initial_accumulator: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        dampening: float = 0.0,
        amsgrad: bool = False,
        rho: float = 0.9,
        centered: bool = False,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        maximize: bool = False,
        rate_decay: float = 0.0,
        power: float = 0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> None: ...

class RowStore:
    """Embedding rows by 64-bit id, `[weights | slots]`. One thread owns a store; a call from a second one is an error.

    Rows are born by their first pull or push, as `initial_rows` says, with their slots at the optimizer's start.
    """

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        initializer: str,
        a: float,
        b: float,
        seed: int,  # 0 to 2**64 - 1
        capacity: int = 0,  # rows expected: the index is made that large at once
        max_rows: int = 4294967295,  # births beyond it raise OverflowError
        admit_after: int = 0,  # an id gets its row in the n-th step that pushes it; 0: from its first pull or push
        aging: bool = False,  # rows know the step that moved them last, and can be evicted
    ) -> None: ...
    def pull(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Read rows into out[n, dim]; absent ones are born."""
    def peek(self, ids: NDArray[np.int64], out: NDArray[np.float32], view: int = 0) -> None:
        """Read rows of the live table (view 0) or a pinned view. Creates none: absent rows show their birth value."""
    def push(self, ids: NDArray[np.int64], grads: NDArray[np.float32], learning_rate: float, step: int) -> int:
        """Sum the gradients of each id, in order, and take one optimizer step per distinct row; returns their count.

        All absent rows are born before any row moves. `step` is 1 for the first batch ever applied.
        """
    def push_unique(self, ids: NDArray[np.int64], grads: NDArray[np.float32], learning_rate: float, step: int) -> None:
        """`push` for ids that are all different."""
    def evict(self, before_step: int, limit: int = 4294967295) -> int:
        """Remove rows that no push moved at `before_step` or later, at most `limit`; returns how many.

        None while a view is pinned. Fewer than `limit`: the whole table was looked at; otherwise the next call goes on.
        """
    def remove(self, ids: NDArray[np.int64]) -> int:
        """Remove the rows of these ids; those that have none are passed over. Returns how many went.

        Not while a view is pinned.
        """
    @property
    def candidates(self) -> RowStore | None:
        """Where `admit_after` is 2 or more: how many steps pushed each id that has no row, in a store of one column.

        To be saved and restored like any other. Exact up to max(2**20, rows) ids, bounded beyond (Misra and Gries).
        """
    @property
    def width(self) -> int:
        """Columns of an exported row: dim * (1 + slots), and with `aging` one more: its step, as bits of a uint32."""
    def pin(self) -> int:
        """Freeze a view of the table as it is now; returns its number (never 0). Several may exist."""
    def release(self, view: int) -> None:
        """Give a view up, and the copies only it needed."""
    def mark(self) -> int:
        """`pin`, and take which rows changed (were born, pushed or imported) since the mark before this one.

        The first mark takes every row. `release` it when what changed is safe, `unmark` it when it is not.
        """
    def unmark(self, view: int) -> None:
        """Give a marked view up as if it had not been made: what it took counts as changed, or removed, again."""
    def changed(self, view: int) -> int:
        """How many rows of a marked view had changed."""
    def removed(self, view: int) -> NDArray[np.int64]:
        """Ids that were removed between the mark before and this one, and are not in this view; ascending."""
    def export_changed(self, view: int, start: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """Rows of a marked view that had changed, from row number `start` on, at most `limit`: ids, rows as
        `export_rows` gives them, and the row number to go on from, -1 when there are no more.
        """
    def __len__(self) -> int: ...
    def nbytes(self) -> int:
        """Resident bytes: index, slabs and what is held for views."""
    def export_rows(self, start: int, limit: int, view: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and rows[m, width] from row `start` on, in birth order, at most `limit`."""
    def import_rows(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Insert or overwrite rows[m, width]."""

def update_dense(
    weights: NDArray[np.float32],
    slots: NDArray[np.float32],
    grads: NDArray[np.float32],
    optimizer: Optimizer,
    learning_rate: float,
    step: int,
) -> None:
    """One optimizer step on weights[n], in place; slots[n * optimizer.slots] one slot after the other."""

def initial_rows(
    ids: NDArray[np.int64], dim: int, initializer: str, a: float, b: float, seed: int
) -> NDArray[np.float32]:
    """What rows[n, dim] are born as: a pure function of seed and id."""

def split(ids: NDArray[np.int64], servers: int) -> tuple[NDArray[np.int64] | None, list[int]]:
    """Positions of the ids grouped by server, in their order (None: they lie so already); the bounds of the groups."""

def partition_owners(servers: int) -> NDArray[np.int64]:
    """Which server holds each of the 1024 partitions."""

def unique(ids: NDArray[np.int64], servers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Distinct ids grouped by server, first come first; where each id went in them; the bounds of the groups."""

def scatter_rows(order: NDArray[np.int64], part: NDArray[np.float32], whole: NDArray[np.float32]) -> None:
    """whole[order] = part, for rows of any width."""

def gather_rows(order: NDArray[np.int64], part: NDArray[np.float32], whole: NDArray[np.float32]) -> None:
    """part[:] = whole[order], for rows of any width."""

def isa() -> str:
    """The instruction set in use."""

def set_isa(name: Literal["best", "scalar", "avx2", "avx512"]) -> None:
    """Choose the instruction set; the results are the same bits."""

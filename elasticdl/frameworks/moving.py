"""Plain embedding layers that become tables on the parameter servers by themselves: what both frameworks share.

A layer moves in place: its object stays where it is and gets a class that asks the servers for rows, so that it does
not matter how the model holds it. A layer that would compute something else there stays, and the reason is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl.errors import ModelError

FLAG = "--table_threshold_bytes"


class Moved(Protocol):
    """A layer whose rows moved."""

    used_directly: bool  # whether the user's code touched its weights, which are no longer there

    def move_back(self) -> None:
        """Make it the layer it was."""
        ...

    def settle(self) -> None:
        """Let go of the weights."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A layer large enough to move; `hindrance` says why it cannot."""

    name: str
    shape: tuple[int, ...]
    move: Callable[[], Moved]
    hindrance: str | None

    @property
    def title(self) -> str:
        rows, dim = self.shape
        return f"Embedding {self.name!r} ({rows:,} rows of {dim}, {4 * rows * dim / 2**20:,.1f} MiB)"


def move_all(candidates: Iterable[Candidate], probe: Callable[[], Any] | None) -> list[str]:
    """Move what can be moved; a note for the user per candidate.

    `probe` runs the model once. It finds layers whose weights are used in other ways too (as the output projection of
    a language model): those come back.
    """
    notes: list[str] = []
    moved: list[tuple[Candidate, Moved]] = []
    for candidate in candidates:
        if candidate.hindrance is None:
            moved.append((candidate, candidate.move()))
        else:
            notes.append(stays(candidate, candidate.hindrance))
    if moved and probe is not None:
        probe()
    for candidate, layer in moved:
        if layer.used_directly:
            layer.move_back()
            notes.append(stays(candidate, "the model also uses its weights directly"))
        else:
            layer.settle()
            notes.append(f"{candidate.title} lives on the parameter servers, since it is larger than {FLAG} says")
    return notes


def stays(candidate: Candidate, reason: str) -> str:
    return f"{candidate.title} is trained as a dense variable: {reason}"


def gone(name: str) -> ModelError:
    """What the user's code hears when it asks a moved layer for its weights."""
    return ModelError(
        f"layer {name!r}",
        "its weights are used directly, but they live on the parameter servers",
        f"Give {FLAG}=0, which keeps such layers in the model.",
    )

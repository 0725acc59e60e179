"""Large plain embedding layers move to the parameter servers automatically: what Keras and PyTorch share.

A layer moves in place: the object gets a class that asks the servers for rows, so it does not matter how the model
holds it. A layer that would compute something else on the servers stays in the model, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl.errors import ModelError

FLAG = "--table_threshold_bytes"


class Moved(Protocol):
    """A layer whose rows moved."""

    used_directly: bool  # whether the user's code accessed its weights, which are no longer there

    def move_back(self) -> None:
        """Become the plain layer again."""
        ...

    def settle(self) -> None:
        """Release the weights."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A layer that is large enough to move; `hindrance` says why it cannot."""

    name: str
    shape: tuple[int, ...]
    move: Callable[[], Moved]
    hindrance: str | None

    @property
    def title(self) -> str:
        rows, dim = self.shape
        return f"Embedding {self.name!r} ({rows:,} rows of {dim}, {4 * rows * dim / 2**20:,.1f} MiB)"


def move_all(candidates: Iterable[Candidate], probe: Callable[[], Any] | None) -> list[str]:
    """Move the layers that can move; returns one note for the user per candidate.

    `probe` runs the model once. It finds layers whose weights the model also uses directly (as the output projection of
    a language model): those move back.
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
            notes.append(f"{candidate.title} moved to the parameter servers (larger than {FLAG})")
    return notes


def stays(candidate: Candidate, reason: str) -> str:
    return f"{candidate.title} stays a dense variable: {reason}"


def gone(name: str) -> ModelError:
    """The error for user code that accesses the weights of a moved layer."""
    return ModelError(
        f"layer {name!r}",
        "the model uses its weights directly, but they are on the parameter servers",
        f"Set {FLAG}=0 to keep such layers in the model.",
    )

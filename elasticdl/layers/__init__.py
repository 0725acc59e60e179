"""Embedding layers whose rows live on the parameter servers: `Embedding` for Keras, `elasticdl.layers.torch.Embedding`.

Keras is imported on first use only, so that a torch model does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.layers.keras import Embedding

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    if name == "Embedding":
        from elasticdl.layers.keras import Embedding

        return Embedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Embedding layers whose rows live on the parameter servers: `Embedding` for Keras, `elasticdl.layers.torch.Embedding`.

`rows_from` answers them outside a job, from an exported model.

Keras is imported on first use only, so that a torch model does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.layers.exported import rows_from

if TYPE_CHECKING:
    from elasticdl.layers.keras import Embedding

__all__ = ["Embedding", "rows_from"]


def __getattr__(name: str) -> Any:
    if name == "Embedding":
        from elasticdl.layers.keras import Embedding

        return Embedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Embedding layers with rows on the parameter servers: `Embedding` for Keras, `elasticdl.layers.torch.Embedding`.

`rows_from` gives them the rows of an exported model, outside a job. Keras is imported only when it is used.
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

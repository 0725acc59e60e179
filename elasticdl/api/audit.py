"""The audit of an all-reduce job: a vector beside the model in which every record counts how often it was trained.

It is moved by the same exchanges as the gradients, and copied and saved with the model, so that it shows what is really
in the model and not what the counters say that decide about it.
"""

from __future__ import annotations

import torch

from elasticdl.errors import ModelError

NAMED = 5  # how many wrong records the message lists


def verdict(witness: torch.Tensor, expected: int) -> str:
    """A sentence when so many records are trained, each as often as any other; ModelError when not."""
    times = witness.cpu().round().to(torch.int64)
    total = int(times.sum())
    whole, rest = divmod(expected, len(times))
    most = whole + (1 if rest else 0)
    off = torch.nonzero((times < whole) | (times > most)).reshape(-1).tolist()
    if off or total != expected:
        named = ", ".join(f"record {i} {int(times[i])} times" for i in off[:NAMED])
        raise ModelError("audit", f"{total} of {expected} records were trained; wrong are: {named or 'none'}")
    often = f"{most} time{'s' if most != 1 else ''}"
    if rest:
        return f"{total} records trained, none more than {often}"
    return f"{len(times)} records, each trained exactly {often}"

"""The audit of an all-reduce job: a vector beside the model in which every record counts how often it was trained.

It is moved by the same exchanges as the gradients, and copied and saved with the model, so that it shows what is really
in the model and not what the counters say that decide about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elasticdl.errors import ModelError

NAMED = 5  # how many wrong records the message lists


def verdict(witness: torch.Tensor, expected: int, set_aside: Sequence[int] = ()) -> str:
    """A sentence when so many records are trained, each as often as any other; ModelError when not.

    Those set aside count as `expected`, and may be trained less often: by so much, and no more, the sum may be short.
    """
    aside = sorted(set(set_aside))
    times = witness.cpu().round().to(torch.int64)
    total = int(times.sum())
    whole, rest = divmod(expected, len(times))
    most = whole + (1 if rest else 0)
    least = torch.full_like(times, whole)
    least[aside] = 0
    off = torch.nonzero((times < least) | (times > most)).reshape(-1).tolist()
    left_out = int((most - times[aside]).sum())
    if off or not expected - left_out <= total <= expected:
        named = ", ".join(f"record {i} {int(times[i])} times" for i in off[:NAMED])
        raise ModelError("audit", f"{total} of {expected} records were trained; wrong are: {named or 'none'}")
    often = f"{most} time{'s' if most != 1 else ''}"
    but = f", {len(aside)} set aside" if aside else ""
    if rest:
        return f"{total} records trained, none more than {often}{but}"
    return f"{int((times > 0).sum())} records, each trained exactly {often}{but}"

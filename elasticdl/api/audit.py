"""The audit of an all-reduce job: a vector beside the model that counts how often each record was trained.

It is summed in the same exchanges as the gradients, and copied and saved with the model. So it shows what is in the
model, independently of the counters that decide which records to train.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elasticdl.errors import ModelError

NAMED = 5  # how many wrong records the message lists


def verdict(witness: torch.Tensor, expected: int, set_aside: Sequence[int] = ()) -> str:
    """A sentence if `expected` records are trained, each as often as any other; else ModelError.

    Records that were set aside are among the expected ones, but may be trained less often.
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

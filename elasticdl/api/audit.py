"""The audit of an all-reduce job: a vector beside the model in which every record counts how often it was trained.

It is moved by the same exchanges as the gradients, and copied and saved with the model, so that it shows what is really
in the model and not what the counters say that decide about it.
"""

from __future__ import annotations

import torch

from elasticdl.core.steps import StepPlan
from elasticdl.errors import ModelError

NAMED = 5  # how many wrong records the message lists


def verdict(witness: torch.Tensor, plan: StepPlan, steps: int) -> str:
    """A sentence when every record was trained as often as it should be after so many steps; ModelError when not."""
    times = witness.cpu().round().to(torch.int64)
    total, expected = int(times.sum()), plan.records_before(steps)
    whole, rest = divmod(steps, plan.steps_per_epoch)
    most = whole + (1 if rest else 0)
    off = torch.nonzero((times < whole) | (times > most)).reshape(-1).tolist()
    if off or total != expected:
        named = ", ".join(f"record {i} {int(times[i])} times" for i in off[:NAMED])
        raise ModelError("audit", f"{total} of {expected} records were trained; wrong are: {named or 'none'}")
    often = f"{most} time{'s' if most != 1 else ''}"
    if rest:
        return f"{total} records trained, none more than {often}"
    return f"{len(times)} records, each trained exactly {often}"

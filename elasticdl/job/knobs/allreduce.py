"""Knobs of elastic all-reduce."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, OptionalPositive


class AllreduceKnobs(KnobGroup):
    title: ClassVar[str] = "All-reduce"

    min_workers: OptionalPositive = knob(
        None, "Training waits while fewer workers than this are ready.", commands=TRAIN
    )
    max_workers: OptionalPositive = knob(None, "The job never takes more workers than this.", commands=TRAIN)
    num_standby: Count = knob(0, "How many workers are kept warm to replace one that is lost.", commands=TRAIN)
    virtual_workers: OptionalPositive = knob(
        None,
        "Into how many parts each step's batch is cut, however many workers share them; fixed for the life of a job.",
        commands=TRAIN,
    )
    deterministic: bool = knob(
        True,
        "Whether gradients are added in one fixed order, so that the weights do not depend on who was alive.",
        commands=TRAIN,
    )
    batch_policy: Literal["fixed", "per_worker"] = knob(
        "fixed",
        "Whether a step's batch stays the same when workers come and go, or follows their number.",
        commands=TRAIN,
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = knob(
        "linear",
        "How the learning rate, meant for --num_workers, follows a batch that follows the number of workers.",
        commands=TRAIN,
    )

"""Knobs of elastic all-reduce."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, OptionalPositive


class AllreduceKnobs(KnobGroup):
    title: ClassVar[str] = "All-reduce"

    min_workers: OptionalPositive = knob(
        None, "Training pauses while fewer workers than this are ready.", commands=TRAIN
    )
    max_workers: OptionalPositive = knob(None, "The job never has more workers than this.", commands=TRAIN)
    num_standby: Count = knob(0, "How many started workers stand by to replace a lost one.", commands=TRAIN)
    virtual_workers: OptionalPositive = knob(
        None,
        "How many parts each step's batch is split into, whatever the number of workers; fixed for the life of a job.",
        commands=TRAIN,
    )
    deterministic: bool = knob(
        True,
        "Add gradients in one fixed order, so that the weights do not depend on which workers were alive.",
        commands=TRAIN,
    )
    batch_policy: Literal["fixed", "per_worker"] = knob(
        "fixed",
        "Whether the batch of a step stays the same when workers come and go, or grows and shrinks with their number.",
        commands=TRAIN,
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = knob(
        "linear",
        "How the learning rate, chosen for --num_workers, is scaled when the batch follows the number of workers.",
        commands=TRAIN,
    )

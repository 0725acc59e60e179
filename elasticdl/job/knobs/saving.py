"""Knobs of evaluation while training, checkpoints and the exported model."""

from __future__ import annotations

from typing import ClassVar

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, SecondsOrNever, Text


class EvaluationKnobs(KnobGroup):
    title: ClassVar[str] = "Evaluation"

    evaluation_steps: Count = knob(
        0,
        "Evaluate on --validation_data every this many steps; 0 evaluates once, at the end.",
        commands=TRAIN,
        common=True,
    )


class SavingKnobs(KnobGroup):
    title: ClassVar[str] = "Checkpoints and output"

    output: Text = knob(
        None,
        "The directory for the trained model: model.keras, or model.safetensors for PyTorch.",
        metavar="PATH",
        common=True,
    )
    checkpoint_dir: Text = knob(
        None, "The folder for checkpoints; by default below --state_dir.", metavar="DIR", common=True
    )
    checkpoint_dir_for_init: Text = knob(
        None, "Start from the newest checkpoint in this folder.", metavar="DIR", common=True
    )
    checkpoint_steps: Count = knob(
        0,
        "Write a checkpoint every this many steps and keep it; 0 leaves checkpoints to --checkpoint_seconds.",
        commands=TRAIN,
    )
    checkpoint_seconds: SecondsOrNever = knob(
        60.0,
        "Write a checkpoint this often and keep the newest two; a lost server costs the steps since. 0 writes none.",
        commands=TRAIN,
    )
    keep_checkpoint_max: Count = knob(
        0, "How many checkpoints of --checkpoint_steps are kept; 0 keeps all.", commands=TRAIN
    )

"""Knobs of the training loop, for every strategy."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.strategies import FOLDERS
from elasticdl.job.values import CommandLine, Count, Positive, StrategyName


class TrainingKnobs(KnobGroup):
    title: ClassVar[str] = "Training"

    distribution_strategy: StrategyName = knob(
        "ParameterServerStrategy",
        "How workers exchange gradients: through parameter servers, by all-reduce, not at all (one worker), or in "
        "their own way (--job_command).",
        common=True,
        later={"CustomStrategy": "running a program of your own"},
        remedy="Use ParameterServerStrategy.",
        choices=FOLDERS,
    )
    minibatch_size: Positive = knob(64, "How many records are in a worker's batch.", common=True)
    num_epochs: Positive = knob(1, "How often each record is trained on.", commands=TRAIN, common=True)
    max_step: Count = knob(0, "Stop after this many steps; 0 trains all epochs.", commands=TRAIN)
    log_loss_steps: Positive = knob(100, "Each worker logs its loss every this many steps.", commands=TRAIN)
    nonfinite_gradients: Literal["fail", "skip"] = knob(
        "fail",
        "What to do with a batch whose loss or gradients are not finite (NaN or infinite): fail the job and name the "
        "batch, or skip its gradients and report it. A skipped batch counts as trained.",
        commands=TRAIN,
    )
    audit: bool = knob(
        False,
        "Count on the servers how often each record was trained, and fail at the end if any count is wrong.",
        commands=TRAIN,
    )


class OwnProgramKnobs(KnobGroup):
    title: ClassVar[str] = "Your own program"

    job_command: CommandLine = knob(
        None,
        "A program of your own that every worker, server and evaluator runs, instead of a model file.",
        metavar="COMMAND",
        commands=TRAIN,
        later="running a program of your own without --distribution_strategy=AllreduceStrategy",
        remedy="Write the model as a model file and give --model_def, or use all-reduce.",
    )
    training_records: Count = knob(
        0, "How many training records there are, where your own program reads them.", commands=TRAIN
    )
    validation_records: Count = knob(
        0, "How many validation records there are, where your own program reads them.", commands=TRAIN
    )
    need_tf_config: bool = knob(
        False,
        "Set TF_CONFIG, which names all replicas, as a TensorFlow Estimator needs.",
        commands=TRAIN,
        later="TF_CONFIG for programs of your own",
    )
    num_evaluators: Count = knob(
        0,
        "How many evaluators run beside the workers of a TensorFlow Estimator.",
        aliases=("num_evaluator",),
        later="evaluators as replicas of their own",
        remedy="Leave it out: workers evaluate when --evaluation_steps is given.",
    )

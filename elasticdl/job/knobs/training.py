"""Knobs of the training loop, whichever way the workers exchange what they learn."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.strategies import FOLDERS
from elasticdl.job.values import CommandLine, Count, Positive, StrategyName


class TrainingKnobs(KnobGroup):
    title: ClassVar[str] = "Training"

    distribution_strategy: StrategyName = knob(
        "ParameterServerStrategy",
        "How workers share what they learn: through parameter servers, by all-reduce, not at all (one worker), or in a "
        "way of their own (--job_command).",
        common=True,
        later={"CustomStrategy": "running a program of your own"},
        remedy="Use ParameterServerStrategy.",
        choices=FOLDERS,
    )
    minibatch_size: Positive = knob(64, "How many records a worker trains on at a time.", common=True)
    num_epochs: Positive = knob(1, "How many times every record is trained on.", commands=TRAIN, common=True)
    max_step: Count = knob(0, "Stop after this many steps; 0 trains all epochs.", commands=TRAIN)
    log_loss_steps: Positive = knob(100, "A worker logs its loss every this many steps.", commands=TRAIN)
    nonfinite_gradients: Literal["fail", "skip"] = knob(
        "fail",
        "What becomes of a batch whose loss or gradients are not finite (NaN or infinite): the job fails and names it, "
        "or it counts as trained, moves nothing and is reported.",
        commands=TRAIN,
    )
    audit: bool = knob(
        False,
        "Count on the servers how often each record was trained, and fail at the end unless each was as often as it "
        "should be.",
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
        0, "How many records there are to train on, where a program of your own reads them.", commands=TRAIN
    )
    validation_records: Count = knob(
        0, "How many records there are to evaluate on, where a program of your own reads them.", commands=TRAIN
    )
    need_tf_config: bool = knob(
        False,
        "Whether the program gets a TF_CONFIG variable that names all replicas, as a TensorFlow Estimator needs.",
        commands=TRAIN,
        later="TF_CONFIG for programs of your own",
    )
    num_evaluators: Count = knob(
        0,
        "How many evaluators run beside the workers of a TensorFlow Estimator.",
        aliases=("num_evaluator",),
        later="evaluators as replicas of their own",
        remedy="Leave it out: the workers evaluate when --evaluation_steps is given.",
    )

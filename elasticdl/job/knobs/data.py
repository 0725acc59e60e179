"""Knobs of the data and its shards."""

from __future__ import annotations

from typing import ClassVar, Literal

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, OptionalPositive, Params, Positive, Text


class DataKnobs(KnobGroup):
    title: ClassVar[str] = "Data"

    training_data: Text = knob(
        None,
        "The folder or file with the records to train on.",
        metavar="PATH",
        aliases=("training_data_dir",),
        commands=TRAIN,
        common=True,
    )
    validation_data: Text = knob(
        None,
        "The folder or file with the records to evaluate on.",
        metavar="PATH",
        aliases=("evaluation_data_dir",),
        commands=("train", "evaluate"),
        common=True,
    )
    prediction_data: Text = knob(
        None, "The folder or file with the records to predict.", metavar="PATH", commands=("predict",), common=True
    )
    data_reader_params: Params = knob(
        {},
        "Settings of the data reader, such as the columns of a CSV file.",
        metavar='"K=V; K=V"',
    )
    num_minibatches_per_task: Positive = knob(
        8,
        "How many minibatches make a shard, the unit of work that a worker leases.",
        common=True,
    )
    records_per_task: OptionalPositive = knob(
        None, "The size of a shard in records; an older form of --num_minibatches_per_task."
    )
    shuffle: bool = knob(
        True,
        "Shuffle the records in each epoch, in an order drawn from --seed.",
        commands=TRAIN,
    )
    seed: Count = knob(0, "The seed of record order, initial values and random layers.", common=True)
    max_bad_records: Count = knob(
        0, "How many records that cannot be read, or that crash their worker, may be set aside before the job fails."
    )
    codec_type: Literal["tf_example", "bytes"] | None = knob(
        None,
        "How records were encoded, in older versions.",
        gone="feed() of the model file receives records as they are and decodes them",
    )

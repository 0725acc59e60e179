"""Knobs of the model and of the names in the model file."""

from __future__ import annotations

from typing import ClassVar

from elasticdl.job.knob import KnobGroup, knob
from elasticdl.job.values import ModelDefinition, ModelFile, Params, Symbol, Text


class ModelKnobs(KnobGroup):
    title: ClassVar[str] = "Model"

    model_zoo: Text = knob(
        ".",
        "The folder with model files: a folder of this machine or, with --image_name, of the image.",
        metavar="DIR",
        common=True,
    )
    model_def: ModelDefinition = knob(
        None,
        "The model, as folder.file.symbol below the model zoo; the symbol is a class or a function that makes it.",
        metavar="PATH.SYMBOL",
        common=True,
    )
    model_file: ModelFile = knob(
        None,
        "The path of a model file with custom_model() in it; an older form of --model_zoo and --model_def.",
        metavar="FILE",
    )
    feed: Symbol = knob(
        "feed", "The function of the model file that turns raw records into features and labels.", metavar="SYMBOL"
    )
    loss: Symbol = knob("loss", "The function of the model file that computes the loss.", metavar="SYMBOL")
    optimizer: Symbol = knob(
        "optimizer", "The function of the model file that returns the optimizer.", metavar="SYMBOL"
    )
    eval_metrics_fn: Symbol = knob(
        "eval_metrics_fn", "The function of the model file that returns the evaluation metrics.", metavar="SYMBOL"
    )
    callbacks: Symbol = knob(
        "callbacks",
        "The function of the model file that returns callbacks, such as a LearningRateScheduler.",
        metavar="SYMBOL",
    )
    custom_data_reader: Symbol = knob(
        "custom_data_reader", "The class of the model file that reads data in a format of its own.", metavar="SYMBOL"
    )
    prediction_outputs_processor: Symbol = knob(
        "PredictionOutputsProcessor",
        "The class of the model file that receives the predictions.",
        metavar="SYMBOL",
        commands=("predict",),
        later="prediction",
    )
    aux_params: Params = knob(
        {},
        "Keyword arguments of custom_model; with disable_relaunch=true failed workers are not replaced.",
        metavar='"K=V; K=V"',
    )

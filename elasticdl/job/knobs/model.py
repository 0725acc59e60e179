"""Knobs of the model and of the names in the model file."""

from __future__ import annotations

from typing import Any, ClassVar

from elasticdl.job.knob import KnobGroup, knob
from elasticdl.job.values import ModelDefinition, ModelFile, Params, Symbol, Text


def _symbol(name: str, does: str, what: str = "function") -> Any:
    return knob(name, f"The {what} of the model file that {does}.", metavar="SYMBOL")


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
    feed: Symbol = _symbol("feed", "turns raw records into features and labels")
    loss: Symbol = _symbol("loss", "computes the loss")
    optimizer: Symbol = _symbol("optimizer", "returns the optimizer")
    eval_metrics_fn: Symbol = _symbol("eval_metrics_fn", "returns the evaluation metrics")
    callbacks: Symbol = _symbol("callbacks", "returns callbacks, such as a LearningRateScheduler")
    custom_data_reader: Symbol = _symbol("custom_data_reader", "reads data in a format of its own", "class")
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

"""What every use of a Keras 3 model needs: to seed it, build it, call it and read its variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays, FloatArray, map_arrays, narrowed, refuse_text, to_numpy
from elasticdl.frameworks.keras.metrics import measure
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.rows import ZeroLookup, answered_by


def seed_everything(seed: int) -> None:
    """Make names and initial values of the next model a function of the seed."""
    keras.utils.clear_session()  # automatic layer names start from one again
    keras.utils.set_random_seed(seed % 2**32)
    # ElasticDL trims tracebacks; Keras would also replace exceptions, even those of a row source.
    keras.config.disable_traceback_filtering()


class KerasModel:
    """How a Keras model is called, wherever its values are."""

    def __init__(self, model: Any, code: ModelFile) -> None:
        self._model, self._code = model, code
        declared = model.inputs if isinstance(model, keras.src.models.functional.Functional) else []
        self._narrow_inputs = [i.name for i in declared if i.dtype == "int32"]
        # A model whose call takes no `training` decides itself, as in the fit method of Keras.
        takes_training = getattr(model, "_call_has_training_arg", True)
        self._when_training = {"training": True} if takes_training else {}
        self._when_predicting = {"training": False} if takes_training else {}

    def new_metrics(self) -> MetricsAccumulator:
        with self._code.running(f"calling {self._code.request.eval_metrics_fn}"):
            return MetricsAccumulator({n: measure(m, self._code) for n, m in self._code.metrics().items()})

    def _inputs(self, features: Arrays) -> Any:
        """Features as tensors. Integers too wide for their input are an error: Keras would truncate them silently."""
        for name in self._narrow_inputs:
            given = features.get(name) if isinstance(features, dict) else features
            array = np.asarray(given) if isinstance(given, np.ndarray) else np.zeros(0, np.int32)
            if array.dtype in (np.int64, np.uint64) and array.size and not _fits(array):
                what = f"feed gives integers from {array.min()} to {array.max()} for input {name!r}, declared as int32"
                raise ModelError(self._code.path, what, 'Declare it with keras.Input(..., dtype="int64").')
        return map_arrays(as_tensor, features)

    def _loss(self, labels: Any, predictions: Any, added: Sequence[Any]) -> Any:
        """The scalar to differentiate: the user's loss and the losses of layers (regularizers, add_loss)."""
        loss = self._code.loss(labels, predictions)
        if len(loss.shape):
            loss = keras.ops.mean(loss)
        for extra in added:
            loss = loss + keras.ops.sum(extra)
        return loss


def as_tensor(array: Any) -> Any:
    """A value from `feed` as a tensor of the backend; ragged and sparse tensors of TensorFlow stay as they are."""
    if type(array).__module__.split(".")[0] == "tensorflow":
        return array
    found = narrowed(array)
    if keras.backend.backend() != "tensorflow":  # which has layers that take text
        refuse_text(found)
    return keras.ops.convert_to_tensor(found)


def _fits(array: Any) -> bool:
    limit = 2**31
    return bool(-limit <= array.min() and array.max() < limit)


def built(model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None) -> None:
    """Make the model create its variables; some models need a first batch for that."""
    if all(layer.built for layer in model._flatten_layers()):
        return
    if sample is None:
        if model.built:
            return  # layers that are not built are not used
        raise ModelError(
            code.path,
            "the model creates its variables only when it sees data",
            "Build it in custom_model: call it once on keras.Input tensors, or `model.build(input_shape)`.",
        )
    features = sample()
    keras.utils.set_random_seed(seed % 2**32)  # reading the sample may have used random numbers
    try_out(model, code, lambda: features)


def try_out(model: Any, code: ModelFile, sample: Callable[[], Arrays]) -> None:
    features = map_arrays(as_tensor, sample())
    with code.running("running the model on a first batch"), answered_by(ZeroLookup(keras.ops)):
        model(features)


def read_flat(variables: Sequence[Any]) -> FloatArray:
    """The values of these variables as one flat array."""
    parts = [to_numpy(v.value).reshape(-1) for v in variables]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def split(flat: Any, variables: Sequence[Any]) -> list[Any]:
    """Parts of a flat array in the shapes of these variables."""
    parts, start = [], 0
    for v in variables:
        parts.append(flat[start : start + size(v)].reshape(tuple(v.shape)))
        start += size(v)
    return parts


def size(variable: Any) -> int:
    return int(np.prod(variable.shape))


def check_paths(variables: Sequence[Any], code: ModelFile) -> None:
    """Raise ModelError if two variables have one path, since paths identify variables."""
    seen = set()
    for v in variables:
        if v.path in seen:
            raise ModelError(code.path, f"two variables are called {v.path!r}", "Give their layers different names.")
        seen.add(v.path)


def unknown_backend(code: ModelFile) -> ModelError:
    what = f"Keras uses the {keras.backend.backend()!r} backend, which is not supported"
    return ModelError(code.path, what, "Set KERAS_BACKEND to torch, jax or tensorflow.")

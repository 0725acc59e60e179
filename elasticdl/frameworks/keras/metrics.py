"""Keras metrics as measures whose states can be added across workers."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np

from elasticdl.frameworks.arrays import Arrays, to_numpy
from elasticdl.frameworks.metrics import MeanMeasure, Measure, State
from elasticdl.frameworks.model_file import ModelFile


def measure(metric: Any, code: ModelFile) -> Measure:
    """A measure of a `keras.metrics.Metric`, its class, or a function of labels and predictions."""
    if inspect.isclass(metric) and issubclass(metric, keras.metrics.Metric):
        metric = metric()
    if isinstance(metric, keras.metrics.Metric):
        return _MetricMeasure(metric, code)
    return MeanMeasure(metric, code)  # of numpy arrays, which keras.ops accept


class _MetricMeasure:
    """A Keras metric. Its variables are sums, so the variables of several workers are added."""

    def __init__(self, metric: Any, code: ModelFile) -> None:
        self._metric, self._code = metric, code
        metric.reset_state()
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def update(self, labels: Arrays, predictions: Arrays) -> None:
        with self._code.running(f"updating the metric {self._metric.name}"):
            self._metric.update_state(labels, predictions)
        self._shapes = np.shape(labels), np.shape(predictions)

    def state(self) -> State:
        if self._shapes is None:
            return {}
        found: State = {f"variable {i}": np.array(v) for i, v in enumerate(self._values())}
        for name, shape in zip(("labels", "predictions"), self._shapes, strict=True):
            found[name] = np.array(shape, np.int64)
        return found

    def add(self, state: State) -> None:
        shapes = tuple(int(n) for n in state["labels"]), tuple(int(n) for n in state["predictions"])
        if self._shapes is None:  # some metrics create variables on their first data: show them its shape
            self._metric.update_state(np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.float32))
            self._metric.reset_state()
            self._shapes = shapes
        for i, variable in enumerate(self._metric.variables):
            variable.assign(variable.value + keras.ops.convert_to_tensor(state[f"variable {i}"]))

    def result(self) -> float:
        return float(to_numpy(self._metric.result()).mean())

    def _values(self) -> list[Any]:
        return [to_numpy(v.value) for v in self._metric.variables]

"""Evaluation metrics that several workers compute on parts of the data, and that add up to the metric of all data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from elasticdl.frameworks.arrays import Arrays, record_count, to_numpy
from elasticdl.frameworks.model_file import ModelFile

State = dict[str, npt.NDArray[Any]]


class Measure(Protocol):
    """One metric. Its state is a set of arrays that can be added."""

    def update(self, labels: Arrays, predictions: Arrays) -> None: ...
    def state(self) -> State: ...
    def add(self, state: State) -> None: ...
    def result(self) -> float: ...


class MeanMeasure:
    """The mean over records of `function(labels, predictions)`, which returns one value per record or their mean."""

    def __init__(self, function: Callable[[Arrays, Arrays], Any], code: ModelFile) -> None:
        self._function, self._code = function, code
        self._total = np.zeros(2)  # sum of values, number of values

    def update(self, labels: Arrays, predictions: Arrays) -> None:
        with self._code.running("computing evaluation metrics"):
            values = np.asarray(to_numpy(self._function(labels, predictions)), np.float64)
        records = record_count(labels if labels is not None else predictions)
        if values.ndim == 0:
            self._total += np.array([float(values) * records, records])
        else:
            self._total += np.array([values.sum(), values.size])

    def state(self) -> State:
        return {"total": self._total.copy()}

    def add(self, state: State) -> None:
        self._total += state["total"]

    def result(self) -> float:
        return float(self._total[0] / self._total[1]) if self._total[1] else float("nan")


class MetricsAccumulator:
    """All metrics of one evaluation. Their state is sent as bytes and merged by addition."""

    def __init__(self, measures: Mapping[str, Measure]) -> None:
        self._measures = dict(measures)

    def update(self, labels: Arrays, predictions: Arrays) -> None:
        for measure in self._measures.values():
            measure.update(labels, predictions)

    def state(self) -> bytes:
        """The state so far, in safetensors format."""
        tensors = {}
        for name, measure in self._measures.items():
            for key, array in measure.state().items():
                tensors[f"{name}\n{key}"] = np.asarray(array, order="C")
        return save(tensors)

    def merge(self, states: Iterable[bytes]) -> None:
        """Add the states of other accumulators of the same metrics."""
        for data in states:
            parts: dict[str, State] = {name: {} for name in self._measures}
            for key, array in load(data).items():
                name, _, part = key.partition("\n")
                if name not in parts:
                    raise ValueError(f"metrics state holds {name!r}; this model's metrics are {sorted(parts)}")
                parts[name][part] = array
            for name, state in parts.items():
                if state:
                    self._measures[name].add(state)

    def result(self) -> dict[str, float]:
        return {name: measure.result() for name, measure in self._measures.items()}

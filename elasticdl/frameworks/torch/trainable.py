"""A plain `torch.nn.Module` as a Trainable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays, FloatArray, map_arrays, to_numpy
from elasticdl.frameworks.metrics import MeanMeasure, MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import read_optimizer
from elasticdl.frameworks.rows import NoRows, TableLayer, answered_by
from elasticdl.frameworks.torch.export import export_model
from elasticdl.frameworks.torch.moving import Births, move_embeddings
from elasticdl.frameworks.torch.rows import TorchLookup
from elasticdl.frameworks.torch.tensors import FlatTensors, first_batch, is_lazy, mean_of, to_tensor
from elasticdl.frameworks.trainable import RowSource, StepResult, TableExport
from elasticdl.job.parameters import ParametersSpec, TableSpec, VariableSpec


class TorchTrainable:
    """Parameters and float buffers by their qualified names; integer buffers stay in the worker."""

    def __init__(
        self,
        model: Any,
        code: ModelFile,
        sample: Callable[[], Arrays] | None = None,
        births: Births | None = None,
    ) -> None:
        self._model, self._code = model, code
        self._device = next((t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
        self._tables = _bind_tables(model)
        if is_lazy(model):
            self._try_out(first_batch(code, sample))
        self.notes: tuple[str, ...] = ()
        if births is not None:
            self._move_embeddings(births, sample)
        trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        state = _state(model, trainable)
        for name, tensor in (trainable | state).items():
            if tensor.dtype != torch.float32:
                raise ModelError(
                    code.path,
                    f"parameter {name!r} is {tensor.dtype}; ElasticDL trains float32 parameters",
                    "Build the model in float32 (`model.float()`).",
                )
        self._trainable, self._state = FlatTensors(list(trainable.values())), FlatTensors(list(state.values()))
        optimizer, self.schedule = read_optimizer(code, list(trainable.values()))
        self.parameters = ParametersSpec(
            variables=tuple(
                [VariableSpec(name=n, shape=tuple(t.shape)) for n, t in trainable.items()]
                + [VariableSpec(name=n, shape=tuple(t.shape), trainable=False) for n, t in state.items()]
            ),
            tables=self._tables,
            optimizer=optimizer,
        )
        self._initial = self._trainable.read(), self._state.read()

    def initial(self) -> tuple[FloatArray, FloatArray]:
        return self._initial[0].copy(), self._initial[1].copy()

    def assign(self, trainable: FloatArray, state: FloatArray) -> None:
        self._trainable.write(trainable)
        self._state.write(state)

    def step(self, features: Arrays, labels: Arrays, rows: RowSource) -> StepResult:
        lookup = TorchLookup(rows, training=True)
        self._trainable.clear_gradients()
        with self._code.running("computing a training step"):
            inputs, targets = self._to_tensors(features), self._to_tensors(labels)
            self._model.train()
            with answered_by(lookup), torch.enable_grad():
                loss = mean_of(self._code.loss(targets, self._model(inputs)))
                loss.backward()
        return StepResult(loss.item(), self._trainable.read_gradients(), self._state.read(), lookup.gradients())

    def predict(self, features: Arrays, rows: RowSource) -> Arrays:
        with self._code.running("computing predictions"):
            self._model.eval()
            with answered_by(TorchLookup(rows, training=False)), torch.inference_mode():
                return map_arrays(to_numpy, self._model(self._to_tensors(features)))

    def new_metrics(self) -> MetricsAccumulator:
        return new_metrics(self._code)

    def export(self, directory: Path, rows: TableExport) -> list[str]:
        return export_model(self._model, self._tables, self._code, directory, rows)

    def _to_tensors(self, arrays: Arrays) -> Any:
        return map_arrays(lambda a: to_tensor(a).to(self._device), arrays)

    def _move_embeddings(self, births: Births, sample: Callable[[], Arrays] | None) -> None:
        def probe() -> None:
            self._tables = _bind_tables(self._model)
            if sample is not None:
                self._try_out(sample())

        threshold = self._code.request.table_threshold_bytes
        self.notes = tuple(move_embeddings(self._model, threshold, births, probe))
        self._tables = _bind_tables(self._model)

    def _try_out(self, features: Arrays) -> None:
        lookup = TorchLookup(NoRows(self._tables), training=False)
        with self._code.running("running the model on a first batch"), answered_by(lookup), torch.no_grad():
            self._model.eval()
            self._model(self._to_tensors(features))


def new_metrics(code: ModelFile) -> MetricsAccumulator:
    """An empty accumulator of the metrics of a torch model, which are functions of tensors."""

    def of_arrays(function: Callable[[Any, Any], Any]) -> Callable[[Arrays, Arrays], Any]:
        def measured(labels: Arrays, predictions: Arrays) -> Any:
            with torch.no_grad():
                return function(map_arrays(to_tensor, labels), map_arrays(to_tensor, predictions))

        return measured

    return MetricsAccumulator({name: MeanMeasure(of_arrays(f), code) for name, f in code.metrics().items()})


def _bind_tables(model: Any) -> tuple[TableSpec, ...]:
    tables = []
    for name, module in model.named_modules():
        if isinstance(module, TableLayer):
            table = module.table(name)
            module.bind(table)
            tables.append(table)
    return tuple(tables)


def _state(model: Any, trainable: dict[str, Any]) -> dict[str, Any]:
    """The other tensors of a checkpoint: float buffers that training changes, and frozen parameters."""
    kept = set(model.state_dict(keep_vars=True))  # without buffers registered with persistent=False
    named = [*model.named_parameters(), *model.named_buffers()]
    return {n: t for n, t in named if n not in trainable and n in kept and t.dtype.is_floating_point}

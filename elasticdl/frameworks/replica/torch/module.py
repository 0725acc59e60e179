"""A plain `torch.nn.Module` as a ModelReplica."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from elasticdl.frameworks.arrays import Arrays, map_arrays, to_numpy
from elasticdl.frameworks.determinism import random_state_kept, set_random_state
from elasticdl.frameworks.metrics import MetricsAccumulator
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.optimizers import make_optimizer
from elasticdl.frameworks.replica.model_replica import refuse_tables
from elasticdl.frameworks.replica.state import MODEL, OPTIMIZER, check_state
from elasticdl.frameworks.replica.tensors import values_of
from elasticdl.frameworks.replica.torch.optimizer import TorchOptimizer
from elasticdl.frameworks.rows import NoRows, TableLayer
from elasticdl.frameworks.torch.export import export_model
from elasticdl.frameworks.torch.tensors import first_batch, is_lazy, mean_of, to_tensor
from elasticdl.frameworks.torch.trainable import new_metrics


class TorchReplica:
    """Parameters and persistent buffers by their qualified names, and the user's optimizer."""

    def __init__(
        self, model: Any, code: ModelFile, seed: int, sample: Callable[[], Arrays] | None, device: str | None
    ) -> None:
        self._model, self._code = model, code
        refuse_tables((name for name, module in model.named_modules() if isinstance(module, TableLayer)), code.path)
        self.device = torch.device(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
        if is_lazy(model):
            self._materialise(seed, sample)
        model.to(self.device)
        self.notes = tuple(_notes(model))
        self.values, kept = values_of(code.path, model)
        self.gradient_size, self.buffer_size = self.values.gradient_size, self.values.buffer_size
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._named = {f"{MODEL}{name}": tensor for name, tensor in kept.items()}
        self._optimizer = TorchOptimizer(code, trainable, *make_optimizer(code, list(trainable.values())))

    def part(self, features: Arrays, labels: Arrays, seed: int, room: int = 0) -> tuple[float, torch.Tensor]:
        if not self._model.training:
            self._model.train()
        set_random_state(seed)
        with self.values.passing():
            with self._code.running("computing a training step"), torch.enable_grad():
                inputs, targets = self._to_tensors(features), self._to_tensors(labels)
                loss = mean_of(self._code.loss(targets, self._model(inputs)))
                loss.backward()
            vector = self.values.vector(room)
        return loss.item(), vector

    def apply(self, mean: torch.Tensor, step: int, epoch: int, rate_scale: float = 1.0) -> None:
        self._optimizer.step(self.values.gradients(mean), step, epoch, rate_scale)
        self.values.move_buffers(mean)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self._named.items()} | self._optimizer.state()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        of_optimizer = {name: tensor for name, tensor in state.items() if name.startswith(OPTIMIZER)}
        of_model = {name: tensor for name, tensor in state.items() if name not in of_optimizer}
        check_state(self._code.path, self._named, of_model)
        self._optimizer.check(of_optimizer)
        with torch.no_grad():
            for name, tensor in self._named.items():
                tensor.copy_(of_model[name])
        self.values.commit()
        self._optimizer.load(of_optimizer)

    def predict(self, features: Arrays) -> Arrays:
        with self._code.running("computing predictions"), random_state_kept(), self.values.passing():
            self._model.eval()
            with torch.inference_mode():
                return map_arrays(to_numpy, self._model(self._to_tensors(features)))

    def new_metrics(self) -> MetricsAccumulator:
        return new_metrics(self._code)

    def export(self, directory: Path) -> list[str]:
        return export_model(self._model, (), self._code, directory, NoRows(()))

    def _to_tensors(self, arrays: Arrays) -> Any:
        return map_arrays(lambda a: (a if isinstance(a, torch.Tensor) else to_tensor(a)).to(self.device), arrays)

    def _materialise(self, seed: int, sample: Callable[[], Arrays] | None) -> None:
        """Run a first batch, from which lazy modules learn their shapes."""
        features = first_batch(self._code, sample)
        set_random_state(seed)  # reading the sample may have used random numbers
        with self._code.running("running the model on a first batch"), torch.no_grad():
            self._model.eval()
            self._model(map_arrays(to_tensor, features))


def _notes(model: Any) -> list[str]:
    found = []
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            found.append(f"{type(module).__name__} {name!r}: its sparse gradients are summed as dense ones")
    wide = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype == torch.float64]
    if wide:
        found.append(f"Parameter {wide[0]!r} is float64: gradients are summed in float32")
    return found

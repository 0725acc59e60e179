"""A torch model's tensors as flat arrays, and arrays of `feed` as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.arrays import Arrays, FloatArray, refuse_text
from elasticdl.frameworks.model_file import ModelFile


class FlatTensors:
    """A fixed list of float32 tensors, read and written as one flat array."""

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors
        self._shapes = [tuple(t.shape) for t in tensors]
        self._sizes = [t.numel() for t in tensors]
        self.size = sum(self._sizes)

    def _views(self, flat: Any) -> list[Any]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def read(self) -> FloatArray:
        """A flat copy of the values."""
        return self._collect([t.detach() for t in self._tensors])

    def read_gradients(self) -> FloatArray:
        """A flat copy of the gradients; zero for a tensor without a gradient."""
        return self._collect([t.grad for t in self._tensors])

    def clear_gradients(self) -> None:
        for tensor in self._tensors:
            tensor.grad = None

    def _collect(self, values: list[Any]) -> FloatArray:
        flat = torch.empty(self.size, dtype=torch.float32)
        if self.size:
            for view, value in zip(self._views(flat), values, strict=True):
                if value is None:
                    view.zero_()
                else:
                    view.copy_(value.to_dense() if value.is_sparse else value)
        collected: FloatArray = flat.numpy()
        return collected

    def write(self, flat: FloatArray) -> None:
        """Copy flat values into the tensors."""
        if flat.shape != (self.size,):
            raise ValueError(f"{flat.shape} values for {self.size} parameters")
        if not self.size:
            return
        source = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
        with torch.no_grad():
            torch._foreach_copy_(self._tensors, self._views(source))


def to_tensor(array: Any) -> Any:
    """A numpy array as a tensor; float64 becomes float32."""
    array = np.asarray(array)
    refuse_text(array)
    tensor = torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy())
    return tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor


def mean_of(loss: Any) -> Any:
    """The loss to differentiate: a scalar, or the mean of values per record."""
    return loss if loss.ndim == 0 else loss.mean()


def is_lazy(model: Any) -> bool:
    """Whether modules need a first batch to know their shapes."""
    tensors = [*model.parameters(), *model.buffers()]
    return any(isinstance(t, torch.nn.parameter.UninitializedTensorMixin) for t in tensors)


def first_batch(code: ModelFile, sample: Callable[[], Arrays] | None) -> Arrays:
    """The features of a first batch for lazy modules."""
    if sample is None:
        what = "the model has lazy modules, which need data to know their shapes"
        raise ModelError(code.path, what, "Give these modules their input sizes.")
    return sample()

"""Numpy arrays between a model and the rest: their types, and how nested ones are converted."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
IdArray: TypeAlias = npt.NDArray[np.int64]
# A numpy array, or a dict, list or tuple of them: what `feed` returns and what a model predicts.
Arrays: TypeAlias = Any


def map_arrays(convert: Any, arrays: Arrays) -> Arrays:
    """`convert` applied to each array of a dict, list or tuple of arrays."""
    if isinstance(arrays, dict):
        return {key: map_arrays(convert, value) for key, value in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(map_arrays(convert, value) for value in arrays)
    return None if arrays is None else convert(arrays)


def record_count(arrays: Arrays) -> int:
    """The number of records in a batch of arrays."""
    while isinstance(arrays, (dict, list, tuple)):
        arrays = next(iter(arrays.values())) if isinstance(arrays, dict) else arrays[0]
    return len(arrays)


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """A tensor of any framework as a numpy array."""
    detach = getattr(value, "detach", None)  # torch's; its tensors may be on a device and part of a graph
    return np.asarray(detach().cpu().numpy() if detach else value)


def refuse_text(array: npt.NDArray[Any]) -> None:
    """Raise TypeError for text: models compute with numbers."""
    if array.dtype.kind in "USO":
        raise TypeError(f"feed returned text ({array.dtype}); convert it to numbers in feed, with a hash or a lookup")


def narrowed(array: Any) -> npt.NDArray[Any]:
    """The array as models take it: numpy creates float64 by default, models compute in float32."""
    found: npt.NDArray[Any] = np.asarray(array)
    return found.astype(np.float32) if found.dtype == np.float64 else found

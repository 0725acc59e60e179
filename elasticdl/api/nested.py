"""State dictionaries of torch objects as tensors by name, and back: the form for new workers and checkpoints.

Tensors keep their identity; all else of a state dictionary (numbers, strings, lists) becomes JSON in one more tensor.
There is no pickle: an object that JSON cannot represent is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

REST = "json"  # the name of the tensor that holds everything else

Tensors = dict[str, torch.Tensor]


def flatten(prefix: str, value: Any) -> Tensors:
    """`prefix/path/to/tensor` for every tensor inside, and `prefix/json` for the rest."""
    found: Tensors = {}
    rest = json.dumps(_encode(value, prefix, found), separators=(",", ":"))
    found[f"{prefix}/{REST}"] = torch.frombuffer(bytearray(rest.encode()), dtype=torch.uint8)
    return found


def unflatten(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value that `flatten` was called with."""
    rest = bytes(tensors[f"{prefix}/{REST}"].cpu().numpy())
    return _decode(json.loads(rest), tensors)


def _encode(value: Any, path: str, found: Tensors) -> Any:
    if isinstance(value, torch.Tensor):
        found[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, Mapping):
        pairs = [[_key(key, path), _encode(inner, f"{path}/{key}", found)] for key, inner in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(inner, f"{path}/{place}", found) for place, inner in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{path} is {type(value).__name__}, which cannot be sent to other workers: use tensors and numbers")


def _key(key: Any, path: str) -> Any:
    if key is None or isinstance(key, (bool, int, str)):
        return key
    raise TypeError(f"{path} has {key!r} as a key, which cannot be sent to other workers: use strings and integers")


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: _decode(v, tensors) for key, v in inner}
    items = [_decode(v, tensors) for v in inner]
    return items if kind == "list" else tuple(items)

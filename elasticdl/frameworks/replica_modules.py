"""What of a torch module is trained, what a pass may move and what must stand still; and what cannot be shared."""

from __future__ import annotations

from typing import Any

import torch

from elasticdl.errors import ModelError
from elasticdl.frameworks.replica_dtypes import refuse_unknown
from elasticdl.frameworks.replica_tensors import Buffer, Values


def values_of(path: str, model: Any) -> tuple[Values, dict[str, Any]]:
    """The tensors of a module as passes see them, and by name those that belong to its state.

    `path` is the model's name in messages. A module that workers cannot train as one is a ModelError.
    """
    parameters = dict(model.named_parameters())
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    _check(path, model, trainable)
    buffers, fleeting = _buffers(model)
    kept = parameters | {b.name: b.tensor for b in buffers}
    refuse_unknown(path, kept)
    still = {name: p for name, p in parameters.items() if not p.requires_grad} | fleeting
    return Values(path, trainable, buffers, still), kept


def _buffers(model: Any) -> tuple[list[Buffer], dict[str, Any]]:
    """Those that belong to the model's state, and those registered with persistent=False."""
    kept = set(model.state_dict(keep_vars=True))
    buffers, fleeting, seen = [], {}, set()
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if name in kept:
                # A scripted module's are reached in place alone.
                buffers.append(Buffer(name, tensor, module._buffers if type(module._buffers) is dict else {}, key))
            else:
                fleeting[name] = tensor
    return buffers, fleeting


def _check(path: str, model: Any, trainable: dict[str, Any]) -> None:
    for name, tensor in trainable.items():
        if not tensor.dtype.is_floating_point:
            remedy = "Keep real and imaginary parts as two parameters."
            raise ModelError(path, f"parameter {name!r} is {tensor.dtype}; gradients are added as floats", remedy)
    own = [n for n, m in model.named_modules() if type(m).get_extra_state is not torch.nn.Module.get_extra_state]
    if own:
        what = f"module {own[0]!r} has an extra state that is no tensor, which cannot be handed to other workers"
        raise ModelError(path, what, "Keep it in buffers.")

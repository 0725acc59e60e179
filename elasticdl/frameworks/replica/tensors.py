"""The tensors of a model on torch: committed values, which each pass starts from, and the flat vector of a part.

`values_of` finds in a torch module what is trained, what a pass may change and what it must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from elasticdl.errors import ModelError
from elasticdl.frameworks.replica.state import refuse_unknown


@dataclass
class Buffer:
    """A tensor that passes change. A module may also replace it by another tensor, which is then `holder[key]`."""

    name: str
    tensor: Any
    holder: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    def now(self) -> Any:
        return self.holder[self.key] if self.holder else self.tensor


class Values:
    """Trainable parameters, buffers, and tensors that a pass must not change."""

    def __init__(
        self, path: str, trainable: Mapping[str, Any], buffers: Sequence[Buffer], still: Mapping[str, Any]
    ) -> None:
        self._path = path
        self.trainable = list(trainable.values())
        self._widths = {t.dtype for t in self.trainable}
        self._still = {**trainable, **still}
        kinds: dict[torch.dtype, list[Buffer]] = {}
        for buffer in buffers:
            kinds.setdefault(_exact(buffer.tensor.dtype), []).append(buffer)
        self._kinds = [_Kind(path, dtype, kinds[dtype]) for dtype in sorted(kinds, key=str)]
        self._contiguous = all(t.is_contiguous() for t in self.trainable)
        self._zeros: dict[int, Any] = {}
        # If set, it gets the gradients; vectors then consist of moves alone.
        self.receive: Callable[[list[Any]], None] | None = None
        self.gradient_size = sum(t.numel() for t in self.trainable)
        self.buffer_size = sum(kind.size for kind in self._kinds)
        first = next(iter([*self.trainable, *(b.tensor for b in buffers)]), None)
        self.device: torch.device = torch.device("cpu") if first is None else first.device

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Run a pass that may change buffers; afterwards they are as committed. Call `vector` inside."""
        versions = [t._version for t in self._still.values()]
        for tensor in self.trainable:
            tensor.grad = None
        try:
            yield
            if versions != [t._version for t in self._still.values()]:
                self._refuse_moved(versions)
        finally:
            for kind in self._kinds:
                kind.restore()
            for tensor in self.trainable:
                tensor.grad = None

    def vector(self, room: int = 0) -> Any:
        """[gradients | moves of the buffers | room for more] after a pass: a new float32 tensor."""
        if self.receive is not None:
            self.receive([t.grad for t in self.trainable])
            parts = []
        else:
            parts = [self._gradient(i, t.grad) for i, t in enumerate(self.trainable)]
        if parts and self._widths - {torch.float32}:
            if len(self._widths) > 1:
                parts = [gradient.float() for gradient in parts]
            parts = [_flatten_dense_tensors(parts).float()]  # all at once: one by one takes ten times as long
        parts = [part.reshape(-1) for part in (*parts, *(kind.moves() for kind in self._kinds))]
        size = sum(part.numel() for part in parts)
        found = torch.empty(size + room, dtype=torch.float32, device=self.device)
        if parts:
            torch.cat(parts, out=found[:size])
        return found

    def gradients(self, mean: Any) -> list[Any]:
        """The mean gradient in the shapes of the parameters."""
        if not self.trainable:
            return []
        flat = mean[: self.gradient_size]
        if len(self._widths) == 1:
            flat = flat.to(*self._widths)
        found = _unflatten_dense_tensors(flat, self.trainable)
        if len(self._widths) == 1 and self._contiguous:
            return list(found)
        return [torch.empty_like(t).copy_(g) for t, g in zip(self.trainable, found, strict=True)]

    def move_buffers(self, mean: Any) -> None:
        """Commit the mean of the buffers' moves."""
        start = self.gradient_size
        for kind in self._kinds:
            kind.move(mean[start : start + kind.size])
            start += kind.size

    def commit(self) -> None:
        """Commit the present values of the buffers."""
        for kind in self._kinds:
            kind.commit()

    def _gradient(self, number: int, gradient: Any) -> Any:
        if gradient is None:
            if number not in self._zeros:
                self._zeros[number] = torch.zeros_like(self.trainable[number], requires_grad=False)
            return self._zeros[number]
        if gradient.layout is not torch.strided:
            gradient = gradient.coalesce().to_dense()
        return gradient

    def _refuse_moved(self, versions: list[int]) -> None:
        pairs = zip(self._still.items(), versions, strict=True)
        name = next(name for (name, tensor), version in pairs if tensor._version != version)
        raise ModelError(
            self._path,
            f"the forward pass changes {name!r} in place, so the result would depend on which worker computes it",
            "Register it as a persistent buffer. If it is the weight of an Embedding, remove max_norm.",
        )


class _Kind:
    """Buffers whose moves are exact in one type: statistics in float32 or float64, counters in int64.

    Complex buffers move in both parts.
    """

    def __init__(self, path: str, dtype: torch.dtype, buffers: list[Buffer]) -> None:
        self._path, self._dtype, self._buffers = path, dtype, buffers
        self._tensors = [b.tensor for b in buffers]
        self._at_once = not any(
            t.is_conj() or t.is_neg() for t in self._tensors
        )  # torch does not support those in a list
        self.size = sum(t.numel() for t in self._tensors) * (2 if dtype.is_complex else 1)
        self.commit()

    def commit(self) -> None:
        self._committed = self._flat(self._tensors)
        self._views = self._like(self._committed)

    def moves(self) -> Any:
        now = [b.now() for b in self._buffers]
        for buffer, found in zip(self._buffers, now, strict=True):
            if found is None or found.shape != buffer.tensor.shape:
                shape = None if found is None else list(found.shape)
                what = f"buffer {buffer.name!r} of shape {list(buffer.tensor.shape)} becomes {shape} in a forward pass"
                raise ModelError(self._path, what, "Keep its shape, or register it with persistent=False.")
            if not torch.can_cast(found.dtype, self._dtype):
                what = f"buffer {buffer.name!r} of {buffer.tensor.dtype} becomes {found.dtype} in a forward pass"
                raise ModelError(self._path, what, "Keep its type.")
        flat, committed = _real(self._flat([t.detach() for t in now])), _real(self._committed)
        # Not only the difference: masks contain infinities.
        return torch.where(flat == committed, 0, flat - committed).float()

    def restore(self) -> None:
        # Always: batch normalization changes its statistics but not their version number.
        for buffer in self._buffers:
            if buffer.holder:
                buffer.holder[buffer.key] = buffer.tensor
        self._write()

    def move(self, mean: Any) -> None:
        exact = mean.to(torch.float64)
        if self._dtype.is_complex:
            exact = torch.view_as_complex(exact.view(-1, 2))
        elif not self._dtype.is_floating_point:
            exact = exact.round()
        exact = exact.to(self._dtype)
        # Values that do not move keep their bits: -0.0 + 0.0 is 0.0.
        self._committed.copy_(torch.where(exact == 0, self._committed, self._committed + exact))
        self._write()
        self.commit()  # as the tensors store them, with perhaps fewer bits

    def _write(self) -> None:
        with torch.no_grad():
            if self._at_once:
                torch._foreach_copy_(self._tensors, self._views)
            else:
                for tensor, committed in zip(self._tensors, self._views, strict=True):
                    tensor.copy_(committed)

    def _flat(self, tensors: list[Any]) -> Any:
        return torch.cat([t.detach().to(self._dtype).reshape(-1) for t in tensors])

    def _like(self, flat: Any) -> list[Any]:
        sizes = [t.numel() for t in self._tensors]
        return [part.view(t.shape) for part, t in zip(flat.split(sizes), self._tensors, strict=True)]


def _real(flat: Any) -> Any:
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _exact(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return dtype
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float64 if dtype == torch.float64 else torch.float32


def values_of(path: str, model: Any) -> tuple[Values, dict[str, Any]]:
    """The tensors of a module, and those that belong to its state, by name.

    `path` is the model's name in messages. A module that workers cannot train together is a ModelError.
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
    """Buffers that belong to the model's state, and those registered with persistent=False."""
    kept = set(model.state_dict(keep_vars=True))
    buffers, fleeting, seen = [], {}, set()
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if name in kept:
                # Buffers of a scripted module can only be changed in place.
                buffers.append(Buffer(name, tensor, module._buffers if type(module._buffers) is dict else {}, key))
            else:
                fleeting[name] = tensor
    return buffers, fleeting


def _check(path: str, model: Any, trainable: dict[str, Any]) -> None:
    for name, tensor in trainable.items():
        if not tensor.dtype.is_floating_point:
            remedy = "Use two parameters, for the real and the imaginary part."
            raise ModelError(path, f"parameter {name!r} is {tensor.dtype}; gradients are summed as floats", remedy)
    own = [n for n, m in model.named_modules() if type(m).get_extra_state is not torch.nn.Module.get_extra_state]
    if own:
        what = f"module {own[0]!r} has extra state that is not a tensor and cannot be sent to other workers"
        raise ModelError(path, what, "Store it in buffers.")

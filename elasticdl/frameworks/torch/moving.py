"""Plain `torch.nn.Embedding` and `EmbeddingBag` move to the parameter servers, with their initializers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl.frameworks.moving import Candidate, gone, move_all
from elasticdl.frameworks.rows import TableLayer
from elasticdl.frameworks.torch.bags import look_up
from elasticdl.job.parameters import InitializerSpec, TableSpec

_PLAIN = (nn.Embedding, nn.EmbeddingBag)


@dataclass
class Birth:
    """How the values in one storage were created, as far as is known."""

    initializer: InitializerSpec | None = None
    zeroed: list[tuple[int, int]] = field(default_factory=list)  # (first value, count) set to zero afterwards


class Births(TorchDispatchMode):  # type: ignore[misc]
    """Records which initializer fills which tensor while a model is built.

    It watches the operations themselves, so it does not matter how the user's code calls them: by the layer's
    constructor, torch.nn.init or methods of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, Birth] = {}

    def of(self, tensor: Any) -> Birth:
        return self._found.get(_storage(tensor), Birth())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        schema = function._schema
        written = [a for a in zip(schema.arguments, args, strict=False) if a[0].alias_info and a[0].alias_info.is_write]
        for argument in schema.arguments:
            if argument.name in kwargs and argument.alias_info and argument.alias_info.is_write:
                written.append((argument, kwargs[argument.name]))
        for _, value in written:
            for tensor in _tensors(value):
                self._write(schema.name, tensor, args, kwargs)
        if not written:
            given = {_storage(t) for t in _tensors([*args, *kwargs.values()])}
            source = self._found.get(_storage(args[0])) if schema.name == "aten::_to_copy" else None
            for tensor in _tensors(out):
                if _storage(tensor) not in given:  # new memory, perhaps where another tensor was
                    self._found[_storage(tensor)] = source or Birth()
        return out

    def _write(self, operation: str, tensor: Any, args: Any, kwargs: Any) -> None:
        storage = _storage(tensor)
        spec = _initializer(operation, args, kwargs)
        if spec is not None and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self._found[storage] = Birth(spec)
        elif spec == InitializerSpec(kind="constant", a=0.0) and tensor.is_contiguous():
            self._found.setdefault(storage, Birth()).zeroed.append((tensor.storage_offset(), tensor.numel()))
        else:
            self._found[storage] = Birth()


def _initializer(operation: str, args: Any, kwargs: Any) -> InitializerSpec | None:
    def argument(place: int, name: str, default: float) -> float:
        return float(args[place] if len(args) > place else kwargs.get(name, default))

    if operation == "aten::uniform_":
        return InitializerSpec(kind="uniform", a=argument(1, "from", 0.0), b=argument(2, "to", 1.0))
    if operation == "aten::normal_":
        return InitializerSpec(kind="normal", a=argument(1, "mean", 0.0), b=argument(2, "std", 1.0))
    if operation == "aten::zero_":
        return InitializerSpec(kind="constant", a=0.0)
    if operation == "aten::fill_":
        return InitializerSpec(kind="constant", a=argument(1, "value", 0.0))
    return None


def _tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        if values.layout == torch.strided:
            yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata) if isinstance(tensor, torch.Tensor) else 0


def move_embeddings(model: Any, threshold_bytes: int, births: Births, probe: Callable[[], Any] | None) -> list[str]:
    """Move the embeddings of at least this size; returns notes for the user."""
    return move_all(_candidates(model, threshold_bytes, births), probe)


def _candidates(model: Any, threshold_bytes: int, births: Births) -> Iterable[Candidate]:
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for name, module in model.named_modules():
        if not isinstance(module, _PLAIN) or isinstance(module, TableLayer):
            continue
        weight = module._parameters.get("weight")
        if weight is None or weight.numel() * 4 < threshold_bytes:
            continue
        birth = births.of(weight)
        hindrance = _hindrance(module, weight, birth, shared=uses[id(weight)] > 1)
        yield Candidate(name, tuple(weight.shape), _Move(module, birth), hindrance)


def _hindrance(module: Any, weight: Any, birth: Birth, shared: bool) -> str | None:
    if type(module) not in _PLAIN:
        return f"{type(module).__name__} is a subclass, which may compute something else"
    if shared:
        return "its weights are shared with another layer"
    if not weight.requires_grad:
        return "it is frozen"
    if weight.dtype != torch.float32:
        return f"its weights are {weight.dtype}"
    for option in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, option):
            return f"it has {option}={getattr(module, option)}, which servers do not support"
    if getattr(module, "mode", "") == "max":
        return "it has mode='max', which servers do not support"
    if birth.initializer is None:
        return "its values do not come from an initializer that servers support (uniform, normal or constant)"
    padding, dim = module.padding_idx, weight.shape[1]
    expected = [] if padding is None else [(padding * dim, dim)]
    if isinstance(module, nn.Embedding) and birth.zeroed[-1:] != expected:
        return "the row of its padding_idx is not zero" if expected else "some of its values were set to zero"
    if any(zeroed not in expected for zeroed in birth.zeroed):
        return "some of its values were set to zero"
    return None


@dataclass(frozen=True)
class _Move:
    module: Any
    birth: Birth

    def __call__(self) -> Any:
        module, kind = self.module, type(self.module)
        module.__class__ = MovedEmbeddingBag if kind is nn.EmbeddingBag else MovedEmbedding
        module._initializer = self.birth.initializer
        module._weight = module._parameters.pop("weight")
        module._plain_class, module.used_directly = kind, False
        return module


class _Moved(TableLayer):
    """What moved layers have in common, in addition to their original class."""

    _weight: Any
    _initializer: InitializerSpec
    _plain_class: Any
    _table: TableSpec
    used_directly: bool
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    @property
    def weight(self) -> Any:
        """User code may read it while the model runs on a first batch."""
        self.used_directly = True
        if self._weight is None:
            raise gone(self._table.name)
        return self._weight

    def table(self, name: str) -> TableSpec:
        return self.described(
            name=name, dim=self.embedding_dim, initializer=self._initializer, input_dim=self.num_embeddings
        )

    def bind(self, table: TableSpec) -> None:
        self._table = table

    @property
    def zero_row(self) -> int | None:
        return self.padding_idx

    def settle(self) -> None:
        self._weight = None

    def move_back(self) -> None:
        weight, self._weight = self._weight, None
        self.__class__ = self._plain_class
        self.register_parameter("weight", weight)  # type: ignore[attr-defined]

    def plain_code(self) -> None:
        """None: the user's code already creates the plain layer."""


class MovedEmbedding(_Moved, nn.Embedding):  # type: ignore[misc]
    """A `torch.nn.Embedding` whose rows are on the parameter servers."""

    def forward(self, input: Any) -> Any:
        return look_up(self._table, input, padding=self.padding_idx)


class MovedEmbeddingBag(_Moved, nn.EmbeddingBag):  # type: ignore[misc]
    """A `torch.nn.EmbeddingBag` whose rows are on the parameter servers."""

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        return look_up(
            self._table,
            input,
            offsets=offsets,
            weights=per_sample_weights,
            combiner=self.mode,
            padding=self.padding_idx,
            last_offset=self.include_last_offset,
        )

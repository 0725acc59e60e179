"""The user's model file: find it, import it, check its symbols and build its model."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticdl.errors import ModelError, Problem, UsageError
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.tracebacks import user_code
from elasticdl.job.names import PS
from elasticdl.job.strategy import strategy_of

Parameter = str | int | float | bool


@dataclass(frozen=True)
class ModelRequest:
    """Which model file, and the names of its symbols. The fields are the flags of the same names."""

    model_zoo: str
    model_def: str
    feed: str = "feed"
    loss: str = "loss"
    optimizer: str = "optimizer"
    eval_metrics_fn: str = "eval_metrics_fn"
    callbacks: str = "callbacks"
    custom_data_reader: str = "custom_data_reader"
    prediction_outputs_processor: str = "PredictionOutputsProcessor"
    params: Mapping[str, Parameter] = field(default_factory=dict)  # offered to custom_model by name (--aux_params)
    table_threshold_bytes: int = 0  # plain embeddings of at least this size move to the servers; 0: none

    @classmethod
    def of(cls, job: Any) -> ModelRequest:
        """From any object with fields of these names; `aux_params` ("k=v; k=v" or a mapping) become `params`."""
        values = {f.name: getattr(job, f.name) for f in fields(cls) if f.name != "params" and hasattr(job, f.name)}
        given = getattr(job, "aux_params", None) or {}
        params = (
            parse_params(given)
            if isinstance(given, str)
            else {k: _parse_value(v) if isinstance(v, str) else v for k, v in given.items()}
        )
        if hasattr(job, "distribution_strategy") and PS not in strategy_of(job).always:
            values.pop("table_threshold_bytes", None)  # there are no servers
        return cls(**{k: v for k, v in values.items() if v is not None}, params=params)


def parse_params(text: str) -> dict[str, Parameter]:
    """`"layers=2; rate=0.5; wide=true"` as values; what is neither a number nor a boolean stays text."""
    found: dict[str, Parameter] = {}
    for entry in filter(None, (e.strip() for e in text.replace(",", ";").split(";"))):
        key, _, value = (part.strip() for part in entry.partition("="))
        found[key] = _parse_value(value)
    return found


def _parse_value(text: str) -> Parameter:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Location:
    """Where a model definition is: the file, its module name, the symbol that builds the model."""

    file: Path
    module: str
    symbol: str


def locate(request: ModelRequest) -> Location:
    """Find the model file without importing it; a UsageError lists the nearest names.

    `a.b.custom_model` is the symbol `custom_model` of DIR/a/b.py. If that file is missing and there is exactly one
    `b.py` under DIR, that one is used: `b.b.custom_model`, as older command lines have it, finds DIR/a/b.py too.
    """
    zoo = Path(request.model_zoo)
    if not zoo.is_dir():
        raise UsageError(
            [Problem("--model_zoo", request.model_zoo, "no such directory", "Give the path of the model zoo.")]
        )
    *modules, symbol = request.model_def.split(".")
    if not modules or not all(part.isidentifier() for part in (*modules, symbol)):
        remedy = "Write it as folder.file.function, like mnist.mnist_functional_api.custom_model."
        raise UsageError([Problem("--model_def", request.model_def, "not a dotted name", remedy)])
    exact = zoo.joinpath(*modules).with_suffix(".py")
    if exact.is_file():
        return Location(exact, ".".join(modules), symbol)
    everywhere = sorted(
        p for p in zoo.rglob("*.py") if not any(part.startswith(".") for part in p.relative_to(zoo).parts)
    )
    same_name = [p for p in everywhere if p.stem == modules[-1]]
    if len(same_name) == 1:
        return Location(same_name[0], _dotted(same_name[0], zoo), symbol)
    known = [_dotted(p, zoo) for p in (same_name or everywhere) if p.stem != "__init__"]
    nearest = difflib.get_close_matches(".".join(modules), known, n=3, cutoff=0.4) or known[:3]
    remedy = (
        f"Nearest: {', '.join(f'{name}.{symbol}' for name in nearest)}."
        if nearest
        else "The model zoo has no .py file."
    )
    raise UsageError([Problem("--model_def", request.model_def, f"no file {exact}", remedy)])


def _dotted(path: Path, zoo: Path) -> str:
    return ".".join(path.relative_to(zoo).with_suffix("").parts)


class ModelFile:
    """An imported model file. `running` wraps calls into it, so that errors carry the user's traceback."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.location = locate(request)
        self.path = str(self.location.file)
        self._zoo = Path(request.model_zoo).resolve()
        # Keras reads this when it is imported first, which the user's file may do.
        os.environ.setdefault("KERAS_BACKEND", "torch")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if str(self._zoo) not in sys.path:
            sys.path.insert(0, str(self._zoo))
        with self.running("importing it"):
            self._module = _import_file(self.location.module, self.location.file)
        self.custom_model = self._function(self.location.symbol, "--model_def", 0)
        self.loss = self._function(request.loss, "--loss", 2)
        self.optimizer = self._function(request.optimizer, "--optimizer", 0, 1)
        self._feed = self._function(request.feed, "--feed", 3)
        self._metrics = self._optional(request.eval_metrics_fn, "eval_metrics_fn", "--eval_metrics_fn")
        self.custom_data_reader = self._optional(
            request.custom_data_reader, "custom_data_reader", "--custom_data_reader"
        )
        self.prediction_outputs_processor = self._optional(
            request.prediction_outputs_processor, "PredictionOutputsProcessor", "--prediction_outputs_processor"
        )
        self._callbacks = self._optional(request.callbacks, "callbacks", "--callbacks")

    def running(self, doing: str) -> AbstractContextManager[None]:
        """Exceptions of the user's code inside become ModelErrors."""
        return user_code(self.path, [self._zoo], doing)

    def taken(self) -> dict[str, Parameter]:
        """The parameters that `custom_model` takes."""
        accepted = inspect.signature(self.custom_model).parameters.values()
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted)
        names = {p.name for p in accepted}
        return {k: v for k, v in self.request.params.items() if takes_any or k in names}

    def making(self) -> tuple[str, str]:
        """Two lines of code that build the model again: an import and a call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.taken().items())
        return f"from {self.location.module} import {self.location.symbol}", f"{self.location.symbol}({arguments})"

    def build(self) -> Any:
        """The Keras or torch model that `custom_model` returns for the parameters that it takes."""
        with self.running(f"calling {self.location.symbol}"):
            model = self.custom_model(**self.taken())
        torch = sys.modules.get("torch")
        if is_keras_model(model) or (torch is not None and isinstance(model, torch.nn.Module)):
            return model
        raise ModelError(
            self.path,
            f"{self.location.symbol} returned {type(model).__name__}, neither a Keras model nor a torch.nn.Module",
            "Return keras.Model(...) or a torch.nn.Module.",
        )

    def feed(self, records: list[Any], mode: str, metadata: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """Features and labels of these records; labels are None in prediction mode."""
        with self.running(f"calling {self.request.feed}"):
            fed = self._feed(records, mode, metadata)
        if mode == "prediction":
            return fed, None
        if not (isinstance(fed, tuple) and len(fed) == 2):
            got = f"a tuple of {len(fed)}" if isinstance(fed, tuple) else type(fed).__name__
            raise ModelError(
                self.path, f"{self.request.feed} returned {got} in {mode} mode", "Return (features, labels)."
            )
        return fed

    def metrics(self) -> dict[str, Any]:
        """What `eval_metrics_fn` returns: functions or Keras metrics by name; empty without that function."""
        if self._metrics is None:
            return {}
        with self.running(f"calling {self.request.eval_metrics_fn}"):
            found = self._metrics()
        if not isinstance(found, Mapping) or not all(isinstance(k, str) and callable(v) for k, v in found.items()):
            raise ModelError(
                self.path,
                f"{self.request.eval_metrics_fn} did not return a dict of metrics",
                'Return {"name": function(labels, predictions) or a keras.metrics.Metric}.',
            )
        return dict(found)

    def callbacks(self) -> list[Any]:
        """What `callbacks` returns; empty without that function."""
        if self._callbacks is None:
            return []
        with self.running(f"calling {self.request.callbacks}"):
            found = self._callbacks()
        if not isinstance(found, (list, tuple, type(None))):
            what = f"{self.request.callbacks} returned {type(found).__name__}, not a list of callbacks"
            raise ModelError(self.path, what, "Return a list.")
        return list(found or ())

    def reference(self) -> dict[str, Any]:
        """What an exported model records about its code."""
        loaded = {n: sys.modules.get(n) for n in ("torch", "keras", "jax", "tensorflow", "numpy")}
        return {
            "module": self.location.module,
            "symbol": self.location.symbol,
            "params": dict(self.request.params),
            "sha256": hashlib.sha256(self.location.file.read_bytes()).hexdigest(),
            "versions": {n: str(getattr(m, "__version__", "")) for n, m in loaded.items() if m is not None},
        }

    def _optional(self, name: str, default: str, flag: str) -> Any:
        """The symbol, or None if the user neither named nor defined it."""
        if name == default and not hasattr(self._module, name):
            return None
        return self._symbol(name, flag)

    def _function(self, name: str, flag: str, *arguments: int) -> Callable[..., Any]:
        """The symbol as a function that takes one of these numbers of arguments."""
        found: Callable[..., Any] = self._symbol(name, flag)
        if not callable(found):
            raise ModelError(
                self.path, f"{name} is {type(found).__name__}, not a function", f"Define {_SIGNATURES[flag]}."
            )
        signature = inspect.signature(found)
        for count in arguments:
            try:
                signature.bind(*[None] * count)
            except TypeError:
                continue
            return found
        raise ModelError(self.path, f"{name}{signature} has the wrong arguments", f"Define {_SIGNATURES[flag]}.")

    def _symbol(self, name: str, flag: str) -> Any:
        module, path = self._module, self.path
        *parts, symbol = name.split(".")
        if parts:
            module = self._other_module(parts, flag, name)
            path = str(module.__file__)
        if not hasattr(module, symbol):
            names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            near = difflib.get_close_matches(symbol, names, n=1)
            hint = f" (it defines {near[0]!r}; use {flag} to name it)" if near else ""
            raise ModelError(path, f"it does not define {symbol!r}{hint}", f"Define {_SIGNATURES.get(flag, symbol)}.")
        return getattr(module, symbol)

    def _other_module(self, parts: list[str], flag: str, name: str) -> ModuleType:
        """`module.symbol`: a file beside the model file, in the zoo, or an installed module."""
        for folder in (self.location.file.parent, Path(self.request.model_zoo)):
            file = folder.joinpath(*parts).with_suffix(".py")
            if file.is_file():
                with self.running(f"importing {file} for {flag}"):
                    return _import_file(_dotted(file.resolve(), self._zoo), file)
        try:
            found = importlib.util.find_spec(".".join(parts))
        except ModuleNotFoundError:
            found = None
        if found is None:
            what = f"module {'.'.join(parts)!r} is not beside the model file, not in the model zoo and not installed"
            raise UsageError([Problem(flag, name, what, "Use module.symbol, or a symbol of the model file.")])
        with self.running(f"importing {'.'.join(parts)} for {flag}"):
            return importlib.import_module(".".join(parts))


_SIGNATURES = {
    "--model_def": "custom_model() that returns a Keras model or a torch.nn.Module",
    "--loss": "loss(labels, predictions)",
    "--optimizer": "optimizer(), or optimizer(parameters) for torch",
    "--feed": "feed(records, mode, metadata) that returns (features, labels)",
    "--eval_metrics_fn": "eval_metrics_fn() that returns a dict of metrics",
}


def _import_file(name: str, file: Path) -> ModuleType:
    """Import exactly this file under its dotted name, even if another module has that name."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)

"""Which strategies there are: each value of --distribution_strategy, and the folder that holds what it means.

A folder has three modules, each imported only where it is needed:

| module | object | protocol | imported by |
|---|---|---|---|
| `request` | `STRATEGY` | `job.strategy.Strategy` | everything that reads a job's description; it must be cheap |
| `master` | `SIDE` | `master.side.Side` | the master; no framework |
| `worker` | `WORKER` | `worker.trainer.Trainer` | workers, and the check of the model before a job starts |
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, Protocol

FOLDERS = {
    "ParameterServerStrategy": "elasticdl.strategies.parameter_servers",
    "AllreduceStrategy": "elasticdl.strategies.allreduce",
    "Local": "elasticdl.strategies.parameter_servers",
    "CustomStrategy": "elasticdl.strategies.own_programs",
}


class Named(Protocol):
    """A job's description, which this module cannot import."""

    @property
    def distribution_strategy(self) -> str: ...


def load(spec: Named, module: Literal["request", "master", "worker"], name: str) -> Any:
    """An object of a module of the folder of this job's strategy."""
    return getattr(importlib.import_module(f"{FOLDERS[spec.distribution_strategy]}.{module}"), name)

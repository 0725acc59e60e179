"""Which strategies there are: each value of --distribution_strategy, and the folder that holds what it means.

A folder has three modules, each imported only where it is needed:

| module | object | protocol | imported by |
|---|---|---|---|
| `request` | `STRATEGY` | `job.strategy.Strategy` | everything that reads a job's description; it must be cheap |
| `master` | `SIDE` | `master.side.Side` | the master; no framework |
| `worker` | `WORKER` | `worker.trainer.Trainer` | workers, and the check of the model before a job starts |
"""

from __future__ import annotations

FOLDERS = {
    "ParameterServerStrategy": "elasticdl.strategies.parameter_servers",
    "AllreduceStrategy": "elasticdl.strategies.allreduce",
    "Local": "elasticdl.strategies.parameter_servers",
    "CustomStrategy": "elasticdl.strategies.own_programs",
}

"""The audit: a table beside the model's own in which every record counts how often it was trained.

The same pushes move it as move the model, not the counters that decide which push is applied: gradient 1 for each
record, SGD with rate 1, so that a row ends at minus the count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elasticdl.core.plan import Plan
from elasticdl.errors import ModelError
from elasticdl.job.parameters import InitializerSpec, OptimizerSpec, ParametersSpec, TableSpec
from elasticdl.job.spec import JobSpec
from elasticdl.ps.client import Client

TABLE = TableSpec(
    name="elasticdl.audit",
    dim=1,
    initializer=InitializerSpec(kind="constant", a=0.0),
    optimizer=OptimizerSpec(kind="sgd", learning_rate=1.0),
    summed=True,
)
NAMED = 5  # how many wrong records the message lists
AT_ONCE = 1 << 16


def added(spec: ParametersSpec) -> ParametersSpec:
    """The model's parameters and the audit's table."""
    return spec.model_copy(update={"tables": (*spec.tables, TABLE)})


def rows(numbers: npt.NDArray[np.int64]) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """What to push for a batch of these records."""
    return {TABLE.name: (numbers, np.ones((len(numbers), 1), np.float32))}


def verdict(client: Client, spec: JobSpec, records: int, set_aside: Sequence[int] = ()) -> str:
    """Compare the table with the plan; a sentence when all counts are right, else ModelError."""
    plan = Plan.of(spec, records)
    whole, rest = divmod(plan.total_batches, plan.batches_per_epoch)
    most = whole + (1 if rest else 0)  # max_step may end the job inside an epoch
    wrong: list[tuple[int, float]] = []
    trained = total = 0
    for start in range(0, records, AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, records))
        times = -client.rows(TABLE.name, ids, create=False).reshape(-1)
        total += int(times.sum())
        trained += int((times > 0).sum())
        least = np.where(np.isin(ids, set_aside), 0, whole)  # until it was found out, such a record was trained
        off = ids[(times < least) | (times > most)]
        wrong += [(int(i), float(times[i - start])) for i in off[: NAMED - len(wrong)]]
    if wrong or (not set_aside and total != plan.total_records):
        named = ", ".join(f"record {i} {t:g} times" for i, t in wrong)
        raise ModelError("audit", f"{total} of {plan.total_records} records were trained; wrong are: {named or 'none'}")
    aside = f", {len(set_aside)} set aside" if set_aside else ""
    if rest:
        return f"{total} records trained, none more than {most} time{'s' if most > 1 else ''}{aside}"
    return f"{trained} records, each trained exactly {whole} time{'s' if whole > 1 else ''}{aside}"

"""Whether what a step gives is made of finite numbers; what is not must not reach the model."""

from __future__ import annotations

import math

import numpy as np

from elasticdl.frameworks.arrays import FloatArray
from elasticdl.frameworks.trainable import StepResult
from elasticdl.job.parameters import ParametersSpec, VariableSpec

NAMED = 3


def trouble(result: StepResult, spec: ParametersSpec) -> str:
    """What is not finite, by name; empty when everything is."""
    found = [] if math.isfinite(result.loss) else [f"the loss ({result.loss:g})"]
    for trainable, values, what in ((True, result.gradients, "gradient"), (False, result.state, "new value")):
        if not np.isfinite(values).all():
            names = _names([v for v in spec.variables if v.trainable is trainable], values)
            found += [f"the {what} of {name}" for name in names]
    found += [f"the gradients of table {t}" for t, (_, grads) in result.rows.items() if not np.isfinite(grads).all()]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _names(variables: list[VariableSpec], values: FloatArray) -> list[str]:
    bounds = np.cumsum([0, *(v.size for v in variables)])
    parts = zip(variables, bounds, bounds[1:], strict=False)
    return [v.name for v, start, stop in parts if not np.isfinite(values[start:stop]).all()]

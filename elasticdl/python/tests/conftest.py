"""`pytest elasticdl/python/tests` runs the tests, which lie in tests/ now; with K8S_TESTS=False without a cluster.

Whole long jobs and Docker builds have make targets of their own, as they do in `make test`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[2] / "tests"
WITHOUT_CLUSTER = "not long and not docker and not kubernetes"
WITH_CLUSTER = "not long and not docker"


def pytest_configure(config: pytest.Config) -> None:
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if asked == [HERE]:
        config.args[:] = [str(TESTS)]
    without = os.environ.get("K8S_TESTS", "True").lower() in ("false", "0", "no")
    config.option.markexpr = WITHOUT_CLUSTER if without else WITH_CLUSTER

"""The third strategy in the table, and a stage for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl.job import strategies
from elasticdl.job.spec import knobs
from tests.strategies.stages import STAGES, StrategyStage
from tests.wire.conftest import run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def third_strategy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    knobs()  # read once in a process: with the choices that users have
    monkeypatch.setitem(strategies.FOLDERS, "Counting", "tests.strategies.counting")
    yield


@pytest.fixture(params=STAGES, ids=lambda stage: stage.strategy)
def kind(request: pytest.FixtureRequest) -> type[StrategyStage]:
    found: type[StrategyStage] = request.param
    return found

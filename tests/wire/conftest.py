"""Running coroutines in tests of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


@pytest.fixture
def run() -> Callable[..., None]:
    """Run one coroutine in a fresh event loop, and fail if it takes longer than the deadline."""

    def run_it(story: Coroutine[Any, Any, None], deadline_seconds: float = 20) -> None:
        async def with_deadline() -> None:
            async with asyncio.timeout(deadline_seconds):
                await story

        asyncio.run(with_deadline())

    return run_it

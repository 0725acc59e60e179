"""Fixtures for tests with real members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collective.relay import Relay, relaying


@pytest.fixture
def relay() -> Iterator[Relay]:
    with relaying() as relay:
        yield relay

"""What every test of the servers finds as it should be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl.ps import _native


@pytest.fixture(autouse=True)
def best_isa_afterwards() -> Iterator[None]:
    yield
    _native.set_isa("best")

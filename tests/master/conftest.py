"""Running coroutines in tests of the master."""

from tests.wire.conftest import run

__all__ = ["run"]

"""Where workers of one process wait for each other, so that their steps overlap for certain."""

from __future__ import annotations

import threading

BARRIER = threading.Barrier(3, timeout=20)

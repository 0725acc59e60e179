"""A training process keeps the memory it frees."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from elasticdl.frameworks.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bytearray(80_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
first = faults()
kept = keep_freed_memory()
faults()
print(int(kept), first, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_large_blocks_are_used_again_instead_of_mapped_anew() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=120)
    kept, before, after = map(int, printed.stdout.split())
    if kept:
        assert before > 1000 > after

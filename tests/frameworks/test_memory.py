"""A training process keeps the memory it frees."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, threading
from elasticdl.frameworks.memory import have_at_hand, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bytearray(80_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def faults_of_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(faults()))
    thread.start()
    thread.join()
    return found[0]
"""


def ran(lines: str) -> list[int]:
    """What a program prints that may count its page faults."""
    command = [sys.executable, "-c", PROGRAM + lines]
    return [int(word) for word in subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_large_blocks_are_used_again_instead_of_mapped_anew() -> None:
    kept, before, after = ran(
        "faults(); first = faults(); kept = keep_freed_memory(); faults(); print(int(kept), first, faults())"
    )
    if kept:
        assert before > 1000 > after


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_memory_that_is_at_hand_costs_no_faults_in_any_thread() -> None:
    kept, here, there = ran(
        "kept = keep_freed_memory(); have_at_hand(100_000_000); print(int(kept), faults(), faults_of_a_thread())"
    )
    if kept:
        assert here < 1000 and there < 1000

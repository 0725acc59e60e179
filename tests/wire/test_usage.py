"""The usage that a process reports."""

from __future__ import annotations

import subprocess
import sys
import time

from elasticdl.wire.usage import Meter

WORK = 0.5  # seconds of processor time
CHILD = f"""
import time
taken = b"x" * (64 << 20)
print("ready", flush=True)
input()
began = time.process_time()
while time.process_time() < began + {WORK}: pass
print("done", flush=True)
input()
"""


def test_a_process_counts_with_its_children() -> None:
    meter = Meter()
    alone = meter.read()
    assert 5 << 20 < alone.memory_bytes < 8 << 30
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        time.sleep(0.5)  # readings that follow at once are the same
        meter.read()
        began = time.monotonic()
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        both = meter.read()
        lasted = time.monotonic() - began
        child.kill()
    assert WORK - 0.1 < both.cpu * lasted < WORK + 1.0
    assert both.memory_bytes > alone.memory_bytes + (60 << 20)


def test_readings_that_follow_at_once_are_the_same() -> None:
    meter = Meter()
    first = meter.read()
    assert meter.read() is first

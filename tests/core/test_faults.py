"""Fault points: of several processes that pass one at the same time, only one dies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY = "worker.after_commit@*:1"
PROGRAM = """
from elasticdl import faults
faults.arm("elasticdl-j-worker-0")
print("armed", flush=True)
faults.point("worker.after_commit")
print("alive", flush=True)
"""
LIMIT_SECONDS, MOMENT_SECONDS = 30.0, 0.3


def test_a_replica_lives_on_when_another_is_just_writing_that_it_dies_of_the_same_entry(tmp_path: Path) -> None:
    log = tmp_path / "faults"
    env = {**os.environ, "ELASTICDL_FAULTS": ENTRY, "ELASTICDL_FAULT_LOG": str(log)}
    with log.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        child = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None and child.stdout.readline() == "armed\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(MOMENT_SECONDS)
            other.write(ENTRY + "\n")
            other.flush()
            fcntl.flock(other, fcntl.LOCK_UN)
            said, _ = child.communicate(timeout=LIMIT_SECONDS)
        finally:
            child.kill()
            child.wait(LIMIT_SECONDS)
    assert (child.returncode, said) == (0, "alive\n")
    assert log.read_text() == ENTRY + "\n", "the entry is written once"

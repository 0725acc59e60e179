"""How the end of a process is interpreted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from elasticdl.cluster.exits import Circumstances, OutOfMemoryKills, classify, signal_name
from elasticdl.cluster.protocol import EXIT_OUT_OF_MEMORY

CODE_1 = 1 << 8


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 GiB for an array with shape (1073741824,)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
        "  what():  std::bad_alloc",
    ],
)
def test_a_log_that_ends_with_a_failed_allocation_means_out_of_memory(line: str) -> None:
    exit = classify(CODE_1, Circumstances(("Traceback (most recent call last):", line), 1 << 30, 900 << 20))
    assert exit.oom
    assert (exit.code, exit.signal) == (1, None)
    assert (
        exit.reason == f"out of memory: its log ends with {line.strip()!r} (limit 1024 MiB, at most 900 MiB resident)"
    )


@pytest.mark.parametrize(
    "line", ["ValueError: no MemoryError here", "x = MemoryError", "I caught a MemoryError and went on", ""]
)
def test_a_log_that_merely_mentions_memory_does_not(line: str) -> None:
    assert classify(CODE_1, Circumstances((line,))).reason == "exit code 1"


def test_a_failed_allocation_long_before_the_end_does_not_count() -> None:
    assert not classify(CODE_1, Circumstances(("MemoryError", *["more"] * 10))).oom


def test_success_is_never_out_of_memory() -> None:
    assert classify(0, Circumstances(("MemoryError",), kernel_killed_for_memory=True)).reason == "exit code 0"


def test_sigkill_is_out_of_memory_only_when_the_kernel_counted_one() -> None:
    assert classify(signal.SIGKILL, Circumstances(("MemoryError",))).reason == "killed by SIGKILL"
    by_kernel = classify(signal.SIGKILL, Circumstances(kernel_killed_for_memory=True))
    assert by_kernel.oom
    assert by_kernel.reason == "out of memory: killed by SIGKILL, and the kernel reported an out-of-memory kill"


def test_an_abort_after_a_failed_allocation_is_out_of_memory_and_a_segmentation_fault_is_not() -> None:
    known = Circumstances(("terminate called after throwing an instance of 'std::bad_alloc'",))
    assert classify(signal.SIGABRT, known).oom
    assert not classify(signal.SIGSEGV, known).oom


def test_the_agreed_exit_code_is_out_of_memory_and_a_shells_137_is_not() -> None:
    assert classify(EXIT_OUT_OF_MEMORY << 8, Circumstances()).oom
    assert not classify(137 << 8, Circumstances()).oom


def test_signals_without_a_name_are_numbered() -> None:
    assert signal_name(signal.SIGBUS) == "SIGBUS"
    assert signal_name(int(signal.SIGRTMIN) + 5) == f"signal {int(signal.SIGRTMIN) + 5}"


def test_each_kill_that_the_kernel_counts_is_attributed_once(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 3\noom_group_kill 0\n")
    kills = OutOfMemoryKills([tmp_path / "missing", events])
    assert not kills.take_one()  # those before the job are not its own
    events.write_text("max 9\noom 5\noom_kill 5\n")
    assert [kills.take_one() for _ in range(3)] == [True, True, False]


def test_a_system_without_a_count_attributes_nothing(tmp_path: Path) -> None:
    (tmp_path / "no-count").write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert not OutOfMemoryKills([tmp_path / "no-count"]).take_one()


def test_this_systems_own_count_can_be_read() -> None:
    assert not OutOfMemoryKills().take_one()

"""What tells workers apart that would not compute the same bits."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="part of the fingerprint")

from elasticdl.frameworks.fingerprint import difference, fingerprint  # noqa: E402


def test_it_is_the_same_for_the_same_process_and_says_what_bits_depend_on() -> None:
    found = json.loads(fingerprint())
    assert fingerprint() == fingerprint()
    assert found["libraries"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()


def test_another_number_of_threads_is_another_fingerprint() -> None:
    before, threads = fingerprint(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert difference(fingerprint(), before) == f"threads: {threads + 1}, not {threads}"
    finally:
        torch.set_num_threads(threads)
    assert difference(fingerprint(), before) == ""

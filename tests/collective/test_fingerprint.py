"""The fingerprint differs between workers that would not compute the same bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="part of the fingerprint")

from elasticdl.collective.fingerprint import fingerprint  # noqa: E402

CPU = torch.device("cpu")


def test_it_is_the_same_for_the_same_process_and_names_what_bits_depend_on() -> None:
    found = fingerprint(CPU).split(", ")
    assert fingerprint(CPU).split(", ") == found
    assert f"torch {torch.__version__}" in found
    assert f"CPU {torch.backends.cpu.get_cpu_capability()}" in found
    assert found[-1].split()[0] == str(torch.get_num_threads())


def test_another_number_of_threads_is_another_fingerprint() -> None:
    before, threads = fingerprint(CPU), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        other = fingerprint(CPU)
        assert set(other.split(", ")) - set(before.split(", ")) == {f"{threads + 1} threads"}
    finally:
        torch.set_num_threads(threads)
    assert fingerprint(CPU) == before

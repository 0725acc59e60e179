"""The memory that a row store uses, and its error when there is no more."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_resident_bytes_of_a_million_rows_stay_within_half_again_of_their_payload() -> None:
    program = """
        import resource, numpy as np
        from elasticdl.ps import _native
        from tests.ps.stores import OPTIMIZERS, native_store
        out = np.zeros((100_000, 16), np.float32)
        store = native_store(16, OPTIMIZERS["keras adagrad"])
        store.pull(np.arange(10), out[:10])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for start in range(0, 1_000_000, 100_000):
            store.pull(np.arange(start, start + 100_000), out)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(store.nbytes() / 128e6, grown / 128e6)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    ).stdout
    told, real = map(float, said.split())
    assert told <= 1.5
    assert real <= 1.6  # what the kernel counts, with the batch's own arrays


def test_an_out_of_memory_error_has_the_number_of_rows_and_bytes() -> None:
    program = """
        import resource, numpy as np
        from tests.ps.stores import OPTIMIZERS, native_store
        store = native_store(16, OPTIMIZERS["keras adagrad"])
        out = np.zeros((100_000, 16), np.float32)
        store.pull(np.arange(100_000), out)
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (80 << 20), resource.RLIM_INFINITY))
        start, kept = 0, None
        try:
            for start in range(100_000, 3_000_000, 100_000):
                kept = len(store)
                store.push(np.arange(start, start + 100_000), out, 0.1, 1)
        except MemoryError as error:
            assert len(store) >= kept
            store.peek(np.arange(100_000), out)
            print(error)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    ).stdout
    assert "out of memory in a row store of " in said
    assert " rows of 128 bytes, " in said
    assert "the system refused " in said

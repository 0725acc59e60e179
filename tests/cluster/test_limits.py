"""The limits of a replica, and what happens when it exceeds them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.cluster.process import environment_of
from elasticdl.cluster.protocol import ReplicaRequest
from elasticdl.cluster.supervisor import Supervisor

pytestmark = pytest.mark.processes

Run = Callable[..., None]
MIB = 1 << 20


def python(script: str, memory_limit_bytes: int | None = None, cpu_limit: float | None = 1) -> ReplicaRequest:
    return ReplicaRequest("w-0", "worker", 0, (sys.executable, "-c", script), {}, cpu_limit, memory_limit_bytes)


TRAIN = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
conv = keras.layers.Conv2D(32, 3, activation="relu")
model = keras.Sequential([keras.Input((28, 28, 1)), conv, keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.zeros((128, 28, 28, 1), "float32"), np.zeros(128, "int64"), batch_size=64, verbose=0)
print("trained")
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused")
"""


def test_a_conv_net_trains_within_a_gibibyte_and_cannot_take_another(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.launch(python(TRAIN, memory_limit_bytes=1024 * MIB))
            exit = await supervisor.wait("w-0")
            assert exit.last_lines[-2:] == ("trained", "refused")
            assert exit.code == 0

    run(story(), deadline_seconds=120)


@pytest.mark.parametrize(
    "script",
    ["bytearray(1 << 30)", "import numpy; numpy.ones(1 << 27)", "import torch; torch.ones(1 << 28)"],
    ids=["python", "numpy", "torch"],
)
def test_a_replica_that_takes_more_than_its_limit_ends_as_out_of_memory(run: Run, tmp_path: Path, script: str) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.launch(python(script, memory_limit_bytes=700 * MIB))
            exit = await supervisor.wait("w-0")
            assert exit.oom
            assert exit.reason.startswith("out of memory: its log ends with ")
            assert "(limit 700 MiB, at most " in exit.reason

    run(story(), deadline_seconds=60)


def test_without_a_limit_there_is_none(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with Supervisor(tmp_path) as supervisor:
            script = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA))"
            await supervisor.launch(python(script))
            assert (await supervisor.wait("w-0")).last_lines == (str(resource.getrlimit(resource.RLIMIT_DATA)),)

    run(story())


@pytest.mark.parametrize(("cpu_limit", "threads"), [(0.2, "1"), (1, "1"), (1.5, "2"), (4, "4")])
def test_a_cpu_limit_sets_the_number_of_threads_over_the_launchers_own(cpu_limit: float, threads: str) -> None:
    env = environment_of(python("", cpu_limit=cpu_limit), {"OMP_NUM_THREADS": "64"})
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"]) == (threads,) * 3


def test_a_replica_that_names_its_threads_gets_them_whatever_its_cpu_limit() -> None:
    request = ReplicaRequest("w-0", "worker", 0, ("true",), {"OMP_NUM_THREADS": "3"}, cpu_limit=1)
    assert environment_of(request, {})["OMP_NUM_THREADS"] == "3"


def test_without_a_cpu_limit_the_launchers_number_of_threads_stays() -> None:
    assert environment_of(python("", cpu_limit=None), {"OMP_NUM_THREADS": "64"})["OMP_NUM_THREADS"] == "64"

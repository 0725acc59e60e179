"""A synchronous job of real processes, killed with real signals: it ends with the bits of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.modes.whole import write_records
from tests.processes.harness import RunningJob, start

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
RECORDS, EPOCHS = 400, 4
VERSIONS = 4 * 17  # 50 batches of 8 an epoch, in rounds of three


def begin(tmp: Path, name: str, data: Path, workers: int, *flags: str) -> RunningJob:
    return start(
        tmp, name, f"--model_zoo={ROOT / 'modes'}", "--model_def=line_torch.custom_model", f"--training_data={data}",
        "--optimizer=adam", "--aux_params=normalized=true", f"--num_epochs={EPOCHS}", "--minibatch_size=8",
        "--grads_to_wait=3", f"--num_workers={workers}", "--num_ps_pods=2", f"--output={tmp / name}-model",
        "--audit=true", "--envs=OMP_NUM_THREADS=1,MKL_NUM_THREADS=1,OPENBLAS_NUM_THREADS=1", *flags,
    )  # fmt: skip


def weights(tmp: Path, name: str) -> dict[str, np.ndarray]:
    found = load_file(tmp / f"{name}-model" / "model.safetensors")
    del found["norm.num_batches_tracked"]  # an integer: how many batches the worker that exported has computed
    rows = load_file(tmp / f"{name}-model" / "words.safetensors")
    order = np.argsort(rows["ids"])
    return {**found, "ids": rows["ids"][order], "rows": rows["rows"][order]}


def test_kills_of_workers_and_a_server_change_not_one_bit(tmp_path: Path) -> None:
    data = write_records(tmp_path / "data", RECORDS)
    calm = begin(tmp_path, "calm", data, 1)
    code, result = calm.finish()
    assert code == 0, calm.story()
    status = result["status"]
    assert isinstance(status, dict) and int(status["version"]) == VERSIONS
    assert status["mode"] == "synchronous (a step averages 3 batches)"
    job = begin(tmp_path, "killed", data, 2, "--checkpoint_steps=5")
    job.wait_until(lambda s: s.version >= 8 and job.kill_training_worker(s))
    job.wait_until(lambda s: s.version >= 25 and job.kill("elasticdl-killed-ps-1"))
    job.wait_until(lambda s: s.version >= 40 and s.timeline == 2 and job.kill_training_worker(s))
    code, result = job.finish()
    assert code == 0, job.story()
    status = result["status"]
    assert isinstance(status, dict)
    assert status["audit"] == f"{RECORDS} records, each trained exactly {EPOCHS} times"
    assert int(status["version"]) == VERSIONS and int(status["timeline"]) == 2
    expected, found = weights(tmp_path, "calm"), weights(tmp_path, "killed")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)

"""Each mode as whole jobs: their weights, and the requests to their servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import UsageError
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.wire.frames import Pull, Rows
from tests.modes.whole import Outcome, WholeJob, whole_job, write_records

HERE = Path(__file__).parent
TORCH, KERAS, TOGETHER = HERE / "line_torch.py", HERE / "line_keras.py", HERE / "together.py"
RECORDS = 100  # 13 batches of 8: three rounds of four, and one of a single batch of four records
OPTIMIZERS = ("optimizer", "momentum", "adagrad", "adam")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("data"), RECORDS)


# Synchronous.


def synchronous(tmp: Path, model: Path, data: Path, workers: int, **more: Any) -> Outcome:
    out = whole_job(
        tmp, model, data, num_workers=workers, grads_to_wait=4, use_async=False, audit=True, num_epochs=2, **more
    )
    assert out.status.phase == "succeeded", out.status.reason
    assert out.status.audit == f"{RECORDS} records, each trained exactly 2 times"
    assert (out.status.version, out.status.version_total) == (8, 8)
    del out.tables["elasticdl.audit"]
    return out


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_synchronous_workers_equal_one_with_the_fourfold_batch(tmp_path: Path, data: Path, optimizer: str) -> None:
    four = synchronous(tmp_path, TORCH, data, 4, optimizer=optimizer)
    one = whole_job(
        tmp_path, TORCH, data, optimizer=optimizer, minibatch_size=32, num_minibatches_per_task=1, num_epochs=2
    )
    assert one.status.version == 8 and four.tables["words.weight" if "words.weight" in one.tables else "words"]
    four.same(one, rtol=2e-5, atol=2e-6)
    small = whole_job(tmp_path, TORCH, data, optimizer=optimizer, num_epochs=2)
    assert not np.allclose(small.dense, one.dense, rtol=1e-3), "the mode makes no difference here"


@pytest.mark.parametrize("optimizer", ["optimizer", "adagrad", "adam"])
def test_synchronous_workers_equal_one_with_the_fourfold_batch_in_keras(
    tmp_path: Path, data: Path, optimizer: str
) -> None:
    four = synchronous(tmp_path, KERAS, data, 3, optimizer=optimizer)
    one = whole_job(
        tmp_path, KERAS, data, optimizer=optimizer, minibatch_size=32, num_minibatches_per_task=1, num_epochs=2
    )
    four.same(one, rtol=2e-5, atol=2e-6)


def test_the_number_of_workers_and_servers_changes_not_one_bit(tmp_path: Path, data: Path) -> None:
    knobs = {"optimizer": "adam", "aux_params": {"normalized": "true"}}
    first = synchronous(tmp_path, TORCH, data, 1, **knobs)
    assert np.abs(first.state).sum() > 0, "there are no statistics to compare"
    synchronous(tmp_path, TORCH, data, 2, **knobs).same(first)
    synchronous(tmp_path, TORCH, data, 3, num_ps_pods=1, **knobs).same(first)


def at_versions(*kills: tuple[int, str]) -> Callable[[WholeJob], list[str]]:
    """Kill a replica of a role when the job has reached a version; of workers one that holds a lease."""
    left = list(kills)

    def chosen(job: WholeJob) -> list[str]:
        if not left or job.master.machine.shards.version < left[0][0]:
            return []
        held = [s.worker for s in job.master.machine.shards.leased.values()]
        living = [r.name for r in job.master.machine.replicas.joined(left[0][1])]
        found = [n for n in living if n in held or "-ps-" in n]
        return [left.pop(0) and found[0]] if found else []

    return chosen


def test_killed_workers_change_not_one_bit(tmp_path: Path, data: Path) -> None:
    calm = synchronous(tmp_path, TORCH, data, 2, optimizer="adagrad")
    kill = at_versions((1, "worker"), (3, "worker"), (6, "worker"))
    killed = synchronous(tmp_path, TORCH, data, 2, optimizer="adagrad", kill=kill)
    assert killed.status.losses == 3
    killed.same(calm)


def test_a_killed_server_changes_not_one_bit(tmp_path: Path, data: Path) -> None:
    calm = synchronous(tmp_path, TORCH, data, 2, optimizer="adam")
    killed = synchronous(
        tmp_path, TORCH, data, 2, optimizer="adam", checkpoint_steps=2, kill=at_versions((3, "ps"), (6, "ps"))
    )
    assert killed.status.timeline == 3, "no rollback"
    killed.same(calm)


def first_of(checkpoints: Path) -> str:
    """The earliest checkpoint: later ones may not have been ready in time, since such a job takes a moment only."""
    return str(min(checkpoints.glob("version-*"), key=lambda p: int(p.name.removeprefix("version-"))))


def test_a_new_job_that_begins_at_a_checkpoint_ends_with_the_same_bits(tmp_path: Path, data: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    knobs = {"optimizer": "adam", "aux_params": {"normalized": "true"}}
    whole = synchronous(tmp_path, TORCH, data, 2, checkpoint_dir=str(checkpoints), checkpoint_steps=1, **knobs)
    for servers in (2, 3):
        begin = first_of(checkpoints)
        synchronous(tmp_path, TORCH, data, 3, checkpoint_dir_for_init=begin, num_ps_pods=servers, **knobs).same(whole)


def test_a_checkpoint_belongs_to_its_mode(tmp_path: Path, data: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    synchronous(tmp_path, TORCH, data, 1, checkpoint_dir=str(checkpoints), checkpoint_steps=1)
    begin = {"audit": True, "num_epochs": 2, "checkpoint_dir_for_init": first_of(checkpoints)}
    with pytest.raises(UsageError, match="made with synchronous training with --grads_to_wait=4"):
        whole_job(tmp_path, TORCH, data, **begin)


def test_a_tolerance_lets_workers_run_ahead_and_every_round_is_still_whole(tmp_path: Path, data: Path) -> None:
    out = synchronous(tmp_path, TORCH, data, 3, sync_version_tolerance=2)
    assert "computed at most 2 versions before it" in out.status.mode


# Asynchronous.


@pytest.mark.parametrize("modulated", [False, True])
def test_gradients_that_are_old_move_the_model_less(tmp_path: Path, modulated: bool) -> None:
    """Three workers pull the same version, twice each; the last to push is two versions old."""
    data = write_records(tmp_path / "data", 6)
    out = whole_job(
        tmp_path, TOGETHER, data, num_workers=3, num_ps_pods=1, minibatch_size=1, num_minibatches_per_task=1,
        lr_staleness_modulation=modulated,
    )  # fmt: skip
    moved = -float(out.dense[0])
    if modulated:
        assert 3.0 < moved <= 5.5, "six steps, and at least one of them at half the rate"
    else:
        assert moved == 6.0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_copy_that_the_worker_moves_itself_is_the_model(tmp_path: Path, data: Path, optimizer: str) -> None:
    """One worker, so no other moves the model: pulling it less often must not make any difference."""
    knobs: dict[str, Any] = {"optimizer": optimizer, "num_epochs": 2, "aux_params": {"normalized": "true"}}
    every = whole_job(tmp_path, TORCH, data, **knobs)
    seldom = whole_job(tmp_path, TORCH, data, get_model_steps=5, **knobs)
    seldom.same(every)
    steps, servers, afterwards = 26, 2, 2
    assert every.requests[Pull] == steps * servers + afterwards
    assert seldom.requests[Pull] == -(-steps // 5) * servers + afterwards
    assert seldom.requests[Rows] == every.requests[Rows], "rows are pulled for every step"


def test_workers_that_pull_seldom_still_learn(tmp_path: Path, data: Path) -> None:
    out = whole_job(tmp_path, TORCH, data, num_workers=3, get_model_steps=4, num_epochs=20, optimizer="adagrad")
    assert mean_loss(out, data) < 0.1 * mean_loss(None, data)


def mean_loss(out: Outcome | None, data: Path) -> float:
    """Of the trained model over all records; of the one that a job begins with, without an outcome."""
    code = ModelFile(ModelRequest(str(HERE), "line_torch.custom_model"))
    model = load_trainable(code, 3, None)
    tables = out.tables if out is not None else {}
    if out is not None:
        model.assign(out.dense, out.state)

    class Rows:
        def rows(self, table: str, ids: Any) -> Any:
            found = tables.get(table, {})
            return np.array([found.get(int(i), [0.0] * 3) for i in ids], np.float32)

    features, labels = code.feed([int(i).to_bytes(8, "little") for i in range(RECORDS)], "training", {})
    return float(np.mean((model.predict(features, Rows()) - labels) ** 2))


# Gradients that are not finite.


def test_a_batch_that_is_not_finite_fails_the_job_by_name(tmp_path: Path, data: Path) -> None:
    out = whole_job(tmp_path, TORCH, data, feed="poisoned", shuffle=False)
    assert out.status.phase == "failed"
    assert out.status.reason.startswith("non-finite values: the loss (nan), the gradient of")
    assert "in batch 1 of train/0/1 (records 40 to 47 of records.recordio)" in out.status.reason
    assert "--nonfinite_gradients=skip" in out.status.reason


def test_a_skipped_batch_moves_nothing_and_is_counted(tmp_path: Path) -> None:
    """The last batch is not finite: the model is as it was before it, momentum or not."""
    data = write_records(tmp_path / "data", 48)
    knobs: dict[str, Any] = {"optimizer": "adam", "shuffle": False, "num_minibatches_per_task": 3}
    out = whole_job(tmp_path, TORCH, data, feed="poisoned", nonfinite_gradients="skip", audit=True, **knobs)
    assert (out.status.phase, out.status.skipped_batches, out.status.version) == ("succeeded", 1, 6)
    assert out.status.audit == "48 records, each trained exactly 1 time"
    assert any("non-finite gradients" in d.text for d in out.status.decisions)
    del out.tables["elasticdl.audit"]
    out.same(whole_job(tmp_path, TORCH, data, max_step=5, **knobs))


def test_a_skipped_batch_weighs_nothing_in_its_round(tmp_path: Path) -> None:
    data, without = write_records(tmp_path / "data", 48), write_records(tmp_path / "without", 40)
    knobs: dict[str, Any] = {"optimizer": "adagrad", "shuffle": False}
    out = whole_job(
        tmp_path, TORCH, data, feed="poisoned", nonfinite_gradients="skip", grads_to_wait=3, num_workers=2,
        use_async=False, **knobs,
    )  # fmt: skip
    assert (out.status.version, out.status.skipped_batches) == (2, 1)
    out.same(whole_job(tmp_path, TORCH, without, minibatch_size=24, **knobs), rtol=2e-5, atol=2e-6)

"""The elastic loop in one process: parts, accounting, evaluation, errors of a wrong use."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import elasticdl.api as elasticdl
from elasticdl.api.elastic import Elastic
from elasticdl.api.job import JoinedJob, OwnLoop, loop_terms
from elasticdl.api.torch_model import TorchModel
from elasticdl.collective.control import Alone
from elasticdl.collective.session import WorldSession
from elasticdl.core.steps import StepPlan
from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.errors import ElasticDLError, JobFailed, UsageError
from elasticdl.job import names
from elasticdl.job.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]


def loop(model: torch.nn.Module, records: int = 20, **knobs: object) -> Elastic:
    """Four workers were asked for, whose minibatches are a part each; there is one."""
    job = elasticdl.join(minibatch_size=2, num_workers=4, virtual_workers=4, **knobs)
    return job.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), records=records)


def test_parts_are_the_records_of_every_epoch_once_and_steps_are_whole() -> None:
    model = torch.nn.Linear(1, 1)
    elastic = loop(model, num_epochs=2, audit=True)
    seen: list[list[int]] = [[], []]
    commits = 0
    for part in elastic.parts():
        seen[part.epoch] += part.records.tolist()
        loss = model(torch.ones(len(part), 1)).mean()
        loss.backward()
        commits += elastic.step(loss)
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(20)) and seen[0] != seen[1]
    assert commits == elastic.committed_steps == 6 and elastic.records_trained == 40 and elastic.finished
    assert torch.equal(elastic.state()["audit/witness"], torch.full((20,), 2.0))


def test_the_step_is_the_step_of_plain_torch_on_the_whole_batch() -> None:
    torch.manual_seed(0)
    model, data = torch.nn.Linear(3, 1), torch.randn(20, 3)
    plain = torch.nn.Linear(3, 1)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    batch: list[int] = []
    elastic = loop(model)
    for part in elastic.parts():
        batch += part.records.tolist()
        loss = model(data[part.records]).square().mean()
        loss.backward()
        if elastic.step(loss):
            optimizer.zero_grad()
            plain(data[batch]).square().mean().backward()
            optimizer.step()
            batch.clear()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_step_complete_after_the_grace_is_not_committed_and_ends_a_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, now = torch.nn.Linear(1, 1), [0.0]
    spec = JobSpec.model_validate({"minibatch_size": 20, "virtual_workers": 1})
    session = WorldSession("alone", "one", 30.0)
    control = Alone(session, lambda: now[0])
    trained = TorchModel(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None, None)
    terms = loop_terms(spec, StepPlan.of(spec, 20))
    elastic = OwnLoop(trained, terms, control, lambda epoch, start, stop: np.arange(start, stop))
    session.disconnected(now[0])
    with pytest.raises(SystemExit) as end:
        for part in elastic.parts():
            loss = model(torch.ones(len(part), 1)).mean()
            loss.backward()
            now[0] = 31.0
            elastic.step(loss)
    assert end.value.code == 143 and "the master was away for 30 s" in caplog.text
    assert elastic.committed_steps == 0


def test_a_part_without_a_call_of_step_is_an_error() -> None:
    elastic = loop(torch.nn.Linear(1, 1))
    with pytest.raises(ElasticDLError, match=r"elastic.step\(loss\) was not called"):
        for _ in elastic.parts():
            pass
    with pytest.raises(ElasticDLError, match="there is none"):
        elastic.step(0.0)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_pass_that_changes_what_it_must_not_ends_the_job(deterministic: bool) -> None:
    """It would fail on any other worker, too."""
    model = torch.nn.Linear(1, 1)
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    elastic = loop(model, deterministic=deterministic)
    with pytest.raises(JobFailed, match="Linear: the forward pass changes 'seen' in place"):
        for part in elastic.parts():
            model.seen += 1
            loss = model(torch.ones(len(part), 1)).mean()
            loss.backward()
            elastic.step(loss)
    assert elastic.committed_steps == 0


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_part_may_be_skipped_and_the_next_one_starts_from_what_was_committed(deterministic: bool) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(1, affine=False), torch.nn.Linear(1, 1))
    elastic = loop(model, records=16, num_epochs=1, deterministic=deterministic)
    statistics = committed = model[0].running_mean.item()
    bias = model[1].bias.item()
    for part in elastic.parts():
        assert model[0].running_mean.item() == committed
        loss = model(torch.full((len(part), 1), 2.0)).mean()
        if part.virtual == 3:
            done = elastic.step(None)
        else:
            loss.backward()
            done = elastic.step(loss)
        if done:  # three parts of four moved the mean by a tenth of the way to 2, the fourth by nothing
            committed = model[0].running_mean.item()
            statistics += 0.1 * (2.0 - statistics) * 0.75
            assert committed == pytest.approx(statistics)
    assert elastic.committed_steps == 2
    assert model[1].bias.item() == pytest.approx(bias - 2 * 0.1 * 0.75)


def test_a_part_skipped_after_its_gradients_are_used_is_an_error_and_not_a_wrong_sum() -> None:
    model = torch.nn.Linear(1, 1)
    elastic = loop(model, deterministic=False)
    with pytest.raises(ElasticDLError, match=r"step\(None\) was called after backward"):
        for part in elastic.parts():
            loss = model(torch.ones(len(part), 1)).mean()
            loss.backward()
            elastic.step(None if part.virtual == 2 else loss)
    assert elastic.committed_steps == 0


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_step_with_non_finite_gradients_fails_or_is_skipped(policy: str) -> None:
    model = torch.nn.Linear(1, 1)
    elastic = loop(model, num_epochs=1, nonfinite_gradients=policy)
    before = model.weight.detach().clone()

    def train() -> None:
        for part in elastic.parts():
            bad = math.nan if part.step == 0 and part.virtual == 2 else 0.0
            loss = (model(torch.ones(len(part), 1)) * bad).mean()
            loss.backward()
            elastic.step(loss)

    if policy == "fail":
        with pytest.raises(JobFailed, match="non-finite loss in step 0"):
            train()
    else:
        train()
        assert elastic.committed_steps == 3 and elastic.skipped_steps == 1
    assert torch.equal(model.weight, before)


def test_a_skipped_step_of_a_finite_loss_names_what_is_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(1, 1)
    elastic = loop(model, num_epochs=1, nonfinite_gradients="skip")
    for part in elastic.parts():
        loss = torch.sqrt(0.0 * model.weight).sum()
        loss.backward()
        elastic.step(loss)
        assert len(part) and loss == 0.0
    skipped = [text for text in caplog.messages if text.startswith("Skipped")]
    assert skipped == [f"Skipped step {step}: non-finite gradients or buffers" for step in range(3)]


def test_a_callback_may_be_none() -> None:
    model = torch.nn.Linear(1, 1)
    job = elasticdl.join(num_epochs=1, minibatch_size=8, virtual_workers=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elastic = job.elastic(
        model, optimizer, records=32, committed=None, evaluated=None, evaluate=lambda records: {"size": len(records)},
        validation_records=8,
    )  # fmt: skip
    for part in elastic.parts():
        loss = model(torch.ones(len(part), 1)).mean()
        loss.backward()
        elastic.step(loss)
    assert elastic.committed_steps > 0


def test_evaluation_is_the_mean_over_all_validation_records_at_the_steps_asked_for() -> None:
    model = torch.nn.Linear(1, 1)
    job = elasticdl.join(minibatch_size=8, virtual_workers=4, evaluation_steps=2)
    found: dict[int, dict[str, float]] = {}
    elastic = job.elastic(
        model, torch.optim.SGD(model.parameters(), lr=0.1), records=20,
        evaluate=lambda numbers: {"mean": float(np.mean(numbers))}, validation_records=1001,
        evaluated=lambda step, metrics: found.update({step: dict(metrics)}),
    )  # fmt: skip
    for part in elastic.parts():
        loss = model(torch.ones(len(part), 1)).mean()
        loss.backward()
        elastic.step(loss)
    assert found == {2: {"mean": 500.0}, 3: {"mean": 500.0}}


def test_a_run_goes_on_from_a_checkpoint_and_ends_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    def train(model: torch.nn.Module, stop_at: int | None, restore: Path | None = None) -> dict[str, torch.Tensor]:
        job = elasticdl.join(minibatch_size=8, virtual_workers=4, num_epochs=2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        elastic = job.elastic(model, optimizer, records=20, restore=restore)
        for part in elastic.parts():
            loss = model(torch.ones(len(part), 1) * torch.as_tensor(part.records)[:, None]).square().mean()
            loss.backward()
            if elastic.step(loss) and elastic.committed_steps == stop_at:
                elastic.save(tmp_path / "checkpoint")
                break
        return {name: t.clone() for name, t in elastic.state().items()}

    torch.manual_seed(0)
    first, again = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    again.load_state_dict(first.state_dict())
    whole = train(first, None)
    train(again, 4)
    resumed = train(torch.nn.Linear(1, 1), None, tmp_path / "checkpoint")
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[n], resumed[n]) for n in whole)


def test_without_a_data_set_the_number_of_records_is_required() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match="the number of records is unknown"):
        elasticdl.join().elastic(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_program_that_cannot_evaluate_is_refused_in_a_job_with_validation_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(names.ENV_REPLICA, "elasticdl-j-worker-0")
    spec = JobSpec.model_validate({"num_workers": 1, "validation_records": 10})
    counted = Dataset("", "records", (DataFile("records", 0, 10),)).to_json()
    job, model = JoinedJob(spec, "elasticdl-j-worker-0", {"evaluation": counted}), torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match=r"cannot evaluate.*evaluate=.*or drop --validation_records"):
        job.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), records=20)


def test_the_example_of_the_zoo_runs_alone() -> None:
    run = subprocess.run(
        [sys.executable, "model_zoo/own_loop/rings.py"], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *_, last, counted = run.stdout.splitlines()
    assert float(last.split()[-1].rstrip("}")) > 0.97
    assert counted == "375 steps, 24000 records"

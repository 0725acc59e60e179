"""The elastic loop where the batch follows the number of workers, in one process: one worker of several asked for."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch

import elasticdl.api as elasticdl
from elasticdl.api.elastic import POSITION, Elastic
from elasticdl.api.world import World
from elasticdl.errors import JobFailed

DATA = torch.arange(60.0).reshape(20, 3) / 30 - 1


def loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: object = None, **more: object) -> Elastic:
    """20 records, 8 of a step for each worker; 4 workers were asked for, and there is one."""
    restore = more.pop("restore", None)
    knobs = {"minibatch_size": 8, "num_workers": 4, "batch_policy": "per_worker", "num_epochs": 2, **more}
    return elasticdl.join(**knobs).elastic(model, optimizer, records=20, scheduler=scheduler, restore=restore)


def train(elastic: Elastic, model: torch.nn.Module, stop_at: int = 0) -> list[list[int]]:
    batches = []
    for part in elastic.parts():
        batches.append(part.records.tolist())
        loss = model(DATA[part.records]).square().mean()
        loss.backward()
        elastic.step(loss)
        if elastic.committed_steps == stop_at:
            break
    return batches


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_the_step_is_that_of_plain_torch_with_the_scaled_rate(
    kind: type[torch.optim.Optimizer], rule: str, scale: float
) -> None:
    torch.manual_seed(0)
    model, plain = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    plain.load_state_dict(model.state_dict())
    mine, theirs = kind(model.parameters(), lr=0.1), kind(plain.parameters(), lr=0.1 * scale)
    ours = torch.optim.lr_scheduler.StepLR(mine, 2, 0.5)
    elastic = loop(model, mine, ours, lr_scaling=rule)
    batches = train(elastic, model)
    schedule = torch.optim.lr_scheduler.StepLR(theirs, 2, 0.5)
    for batch in batches:
        theirs.zero_grad()
        plain(DATA[batch]).square().mean().backward()
        theirs.step()
        schedule.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert mine.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3), "the rate that is kept has no scale"


def test_parts_are_whole_shares_and_an_epoch_ends_with_what_is_left() -> None:
    model = torch.nn.Linear(3, 1)
    elastic = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), audit=True)
    batches = train(elastic, model)
    assert [len(batch) for batch in batches] == [8, 8, 4, 8, 8, 4]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == list(range(20))
    assert elastic.records_trained == 40 and elastic.committed_steps == 6 and elastic.finished
    assert int(elastic.state()[POSITION]) == 40
    assert torch.equal(elastic.state()["audit/witness"], torch.full((20,), 2.0))


def test_a_limit_of_steps_ends_it() -> None:
    model = torch.nn.Linear(3, 1)
    elastic = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_step=4)
    train(elastic, model)
    assert elastic.finished and (elastic.committed_steps, elastic.records_trained) == (4, 28)


def test_a_checkpoint_says_how_many_records_are_trained_and_another_policy_cannot_read_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    elastic = loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = train(elastic, model, stop_at=2)
    elastic.save(tmp_path / "following")
    again = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), num_workers=1, restore=tmp_path / "following")
    after = train(again, model)
    assert [len(batch) for batch in after] == [4, 8, 8, 4], "it goes on in the middle of the epoch"
    assert sorted(chain(*before, after[0])) == list(range(20))

    fixed = loop(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batch_policy="fixed", restore=tmp_path / "following"
    )
    with pytest.raises(JobFailed, match="it was saved with --batch_policy=per_worker"):
        train(fixed, model)
    other = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batch_policy="fixed")
    train(other, model, stop_at=1)
    other.save(tmp_path / "fixed")
    following = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), restore=tmp_path / "fixed")
    with pytest.raises(JobFailed, match="it was saved with --batch_policy=fixed"):
        train(following, model)


def test_a_program_alone_reports_a_damaged_checkpoint(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    elastic = loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(elastic, model, stop_at=1)
    elastic.save(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    again = loop(model, torch.optim.SGD(model.parameters(), lr=0.1), restore=tmp_path / "checkpoint")
    with pytest.raises(JobFailed, match=r"model\.safetensors"):
        train(again, model)


def test_each_member_computes_one_part_and_more_members_than_parts_share_an_evaluation() -> None:
    for size in (1, 2, 3, 5, 7, 12):
        worlds = [World(None, tuple("abcdefghijkl"[:size]), rank, size, ()) for rank in range(size)]  # type: ignore[arg-type]
        assert [world.run for world in worlds] == [(rank, rank + 1) for rank in range(size)]
        covered = [part for world in worlds for part in range(*world.share(4))]
        assert covered == [0, 1, 2, 3], "in the order of the ranks, also where some have none"

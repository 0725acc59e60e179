"""What newcomers and checkpoints get: the whole state by name, without pickle, checked when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elasticdl.api import audit, state_files
from elasticdl.api.nested import flatten, unflatten
from elasticdl.api.saving import Saver
from elasticdl.api.torch_model import TorchModel
from elasticdl.errors import DataError, ModelError, UsageError
from elasticdl.frameworks.replica.state import DTYPES

# State dictionaries.


def test_a_state_dictionary_comes_back_as_it_was() -> None:
    held = {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2)}}, "groups": [{"lr": 0.1, "betas": (0.9, 1)}]}
    flat = flatten("optimizer", held)
    assert flat["optimizer/state/0/m"] is not None and set(flat) == {
        "optimizer/state/0/step", "optimizer/state/0/m", "optimizer/json"
    }  # fmt: skip
    back = unflatten("optimizer", flat)
    assert back["groups"] == [{"lr": 0.1, "betas": (0.9, 1)}] and list(back["state"]) == [0]
    assert torch.equal(back["state"][0]["m"], torch.ones(2))


def test_objects_that_cannot_be_sent_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="more/thing/inner is object, which cannot be sent"):
        flatten("more/thing", {"inner": object()})
    with pytest.raises(TypeError, match="as a key"):
        flatten("more/thing", {(1, 2): 3})


# A model of the user's own.


def build(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train_a_step(trained: TorchModel, model: torch.nn.Module, step: int) -> torch.Tensor:
    trained.begin(seed=step)
    model(torch.randn(6, 3)).square().mean().backward()
    vector = trained.contribute(1)
    trained.apply(vector.clone(), step, 0)
    return vector


def test_a_part_leaves_nothing_behind_but_its_vector() -> None:
    model, optimizer, _ = build(0)
    trained = TorchModel(model, optimizer)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    vectors = []
    for _ in range(2):
        trained.begin(seed=5)
        model(torch.randn(6, 3)).square().mean().backward()
        vectors.append(trained.contribute(3))
    assert torch.equal(*vectors), "the second part does not see the first, random numbers included"
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_batch_norm_statistics_and_counters_move_with_the_step() -> None:
    model, optimizer, _ = build(0)
    trained = TorchModel(model, optimizer)
    plain, _, _ = build(0)
    torch.manual_seed(0)
    plain(torch.randn(6, 3))
    train_a_step(trained, model, 0)
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert int(model[1].num_batches_tracked) == 1


def test_a_new_worker_receives_model_optimizer_scheduler_and_more() -> None:
    model, optimizer, scheduler = build(0)
    average, extra = torch.nn.Linear(1, 1), torch.zeros(2)
    trained = TorchModel(model, optimizer, scheduler, more={"average": average, "extra": extra})
    for step in range(3):
        train_a_step(trained, model, step)
    extra += 7
    others, their_optimizer, their_scheduler = build(1)
    their_average, their_extra = torch.nn.Linear(1, 1), torch.zeros(2)
    newcomer = TorchModel(
        others, their_optimizer, their_scheduler, more={"average": their_average, "extra": their_extra}
    )
    newcomer.load({name: t.clone() for name, t in trained.state().items()})
    assert torch.equal(their_extra, extra) and torch.equal(their_average.weight, average.weight)
    assert their_scheduler.last_epoch == 3 and their_optimizer.param_groups[0]["lr"] == 0.05
    for step in range(3, 6):
        assert torch.equal(train_a_step(trained, model, step), train_a_step(newcomer, others, step))
    same = zip(trained.state().items(), newcomer.state().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in same)


def test_mean_gradients_can_be_clipped_before_the_optimizer_takes_them() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trained = TorchModel(
        model, optimizer, before_update=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    )
    start = float(model.weight.detach())
    trained.apply(torch.tensor([10.0]), 0, 0)
    assert start - float(model.weight.detach()) == pytest.approx(0.5)


def test_a_model_without_anything_to_train_is_refused() -> None:
    model = torch.nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(UsageError, match="none of its parameters requires gradients"):
        TorchModel(model, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0))


class Counting(torch.nn.Linear):
    """A model of the user's own that leaves something behind."""

    def __init__(self, kept: torch.Tensor | None = None) -> None:
        super().__init__(3, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        if kept is not None:
            self.register_buffer("kept", kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(x)


class Extra(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return {"seen": 3}


def own(model: torch.nn.Module, **more: Any) -> TorchModel:
    return TorchModel(model, torch.optim.SGD(model.parameters(), lr=0.1), **more)


def test_a_pass_that_changes_a_buffer_outside_of_the_state_is_refused() -> None:
    model = Counting()
    trained = own(model)
    trained.begin(seed=1)
    model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ModelError, match="Counting: the forward pass changes 'seen' in place"):
        trained.contribute(1)


def test_state_that_cannot_be_sent_is_refused_at_the_start() -> None:
    with pytest.raises(ModelError, match="Extra: module '' has extra state that is not a tensor"):
        own(Extra(3, 1))
    with pytest.raises(ModelError, match=r"parameter 'weight' is torch\.complex64; gradients are summed as floats"):
        own(torch.nn.Linear(3, 1, dtype=torch.complex64))
    with pytest.raises(ModelError, match=r"'kept' is torch\.complex128.*\n.*complex64"):
        own(Counting(torch.zeros(2, dtype=torch.complex128)))
    with pytest.raises(ModelError, match=r"'more/table' is torch\.complex128"):
        own(torch.nn.Linear(3, 1), more={"table": torch.zeros(2, dtype=torch.complex128)})


# Files.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_that_a_state_may_hold_comes_back_from_disk(dtype: torch.dtype, tmp_path: Path) -> None:
    held = torch.arange(6.0).to(dtype)
    held = torch.complex(held.real, held.real + 1).conj() if dtype.is_complex else held
    state_files.write(tmp_path, state_files.snapshot({"model/t": held}), 1, 1)
    found = state_files.read(tmp_path)[0]["model/t"]
    expected = held.resolve_conj()
    assert found.dtype == dtype and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_a_type_that_files_cannot_hold_is_named(tmp_path: Path) -> None:
    state = {"model/t": torch.zeros(2, dtype=torch.complex128)}
    with pytest.raises(DataError, match=r"t is torch\.complex128, which files cannot hold"):
        state_files.write(tmp_path, state_files.snapshot(state), 1, 1)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {
        "model/weight": torch.randn(3, 4), "model/count": torch.tensor(7), "model/half": torch.randn(3).bfloat16(),
        "optimizer/SGD/weight/momentum": torch.randn(3, 4), "audit/witness": torch.ones(5),
        "model/none": torch.empty(0),
    }  # fmt: skip


def test_a_state_on_disk_comes_back_and_plain_torch_reads_the_model(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    part = state_files.write(tmp_path / "s", state_files.snapshot(state), 12, 3)
    assert part["step"] == 12 and {f["name"] for f in part["files"]} == {
        "model.safetensors", "optimizer.safetensors", "audit.safetensors", "state.json"
    }  # fmt: skip
    found, step = state_files.read(tmp_path / "s", 12)
    assert step == 12 and found.keys() == state.keys()
    assert all(torch.equal(found[name], t) and found[name].dtype == t.dtype for name, t in state.items())
    plain = load_file(tmp_path / "s" / "model.safetensors")
    assert torch.equal(plain["weight"], state["model/weight"]) and int(plain["count"]) == 7


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda d: (d / "model.safetensors").unlink(), "cannot be read"),
        (lambda d: (d / "model.safetensors").open("ab").write(b"x"), "bytes, not"),
        (lambda d: flip(d / "optimizer.safetensors"), "its checksum is wrong"),
        (lambda d: (d / "state.json").unlink(), "state.json is missing"),
        (lambda d: (d / "state.json").write_text("{"), "cannot be read"),
        (lambda d: (d / "state.json").write_text('{"format": "x/9", "step": 1, "files": []}'), "unknown format"),
    ],
)
def test_a_damaged_state_is_named_and_not_used(
    harm: Any, message: str, tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    state_files.write(tmp_path, state_files.snapshot(state), 1, 1)
    harm(tmp_path)
    with pytest.raises(DataError, match=message):
        state_files.read(tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_a_state_of_another_step_is_not_used(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    state_files.write(tmp_path, state_files.snapshot(state), 1, 1)
    with pytest.raises(DataError, match="its step is 1, not 2"):
        state_files.read(tmp_path, 2)


def test_a_checkpoint_holds_the_state_of_its_moment_and_a_full_disk_is_reported(tmp_path: Path) -> None:
    answers: list[tuple[int, str, str]] = []
    saver = Saver(lambda cut, part, error="": answers.append((cut, part, error)))
    weights = torch.zeros(1000)
    saver.save(1, tmp_path / "one", {"model/w": weights}, 5, 1, 0)
    weights += 1  # training goes on
    (tmp_path / "file").write_text("")
    saver.save(2, tmp_path / "file" / "below", {"model/w": weights}, 6, 1, 0)
    saver.finish()
    (first, second) = answers
    assert json.loads(first[1])["step"] == 5 and first[2] == ""
    assert second[0] == 2 and "Not a directory" in second[2]
    assert torch.equal(state_files.read(tmp_path / "one")[0]["model/w"], torch.zeros(1000))


# The audit.


def test_the_audit_names_records_that_were_trained_too_often_or_never() -> None:
    assert audit.verdict(torch.full((6,), 2.0), 12) == "6 records, each trained exactly 2 times"
    assert audit.verdict(torch.tensor([1.0, 1, 1, 1, 0, 0]), 4) == "4 records trained, none more than 1 time"
    wrong = torch.tensor([2.0, 2, 3, 2, 1, 2])
    with pytest.raises(ModelError, match=r"12 of 12 .* record 2 3 times, record 4 1 times"):
        audit.verdict(wrong, 12)


def test_the_audit_counts_records_that_are_lost_although_others_were_set_aside() -> None:
    """In the middle of an epoch each record may lack one time: only the sum shows that too many do."""
    verdict = audit.verdict(torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0]), 4, [7])
    assert verdict == "3 records trained, none more than 1 time, 1 set aside"
    assert audit.verdict(torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 1]), 4, [7]).startswith("4 records trained")
    for wrong in ([1.0, 1, 0, 0, 0, 0, 0, 0], [1.0, 1, 0, 0, 0, 0, 0, 1], [1.0, 1, 1, 1, 1, 0, 0, 0]):
        with pytest.raises(ModelError, match=r"of 4 records were trained; wrong are: none"):
            audit.verdict(torch.tensor(wrong), 4, [7])

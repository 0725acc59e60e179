"""Replicas of torch models: any optimizer and scheduler, and what is refused since bits would depend on the worker."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch models")

from elasticdl.core.steps import part_seed  # noqa: E402
from elasticdl.errors import ModelError  # noqa: E402
from elasticdl.frameworks.loading import load_replica  # noqa: E402
from elasticdl.frameworks.model_file import ModelRequest  # noqa: E402
from elasticdl.frameworks.replica.model_replica import ModelReplica  # noqa: E402
from elasticdl.frameworks.replica.torch.module import TorchReplica  # noqa: E402
from tests.frameworks.replicas import MODELS, batch, digest, make, train  # noqa: E402

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import *
from elasticdl.callbacks import LearningRateScheduler

def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)

def feed(records, mode, metadata):
    return records

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)

def custom_model():
    return nn.Linear(2, 1)
"""
PAIR = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([[1.0], [0.0]], np.float32)


def written(zoo: Path, text: str, **request: Any) -> ModelReplica:
    """The replica of a file of its own: one that was imported is not read again."""
    name = f"net{sum(1 for _ in zoo.glob('net*.py'))}"
    (zoo / f"{name}.py").write_text(HEAD + text)
    return load_replica(ModelRequest(str(zoo), f"{name}.custom_model", **request), 1, device="cpu")


def wrong(zoo: Path, text: str) -> str:
    with pytest.raises(ModelError) as caught:
        written(zoo, text)
    assert str(zoo / "net") in str(caught.value)
    return str(caught.value)


def test_with_one_virtual_worker_it_is_a_plain_training_loop_bit_for_bit() -> None:
    replica = make("torch", optimizer="adamw")
    from replicas_torch import adamw, loss

    assert isinstance(replica, TorchReplica)
    model = copy.deepcopy(replica._model)
    optimizer = adamw(list(model.parameters()))
    model.train()
    for step in range(8):
        features, labels = batch(step, 0)
        found, vector = replica.part(features, labels, part_seed(0, step, 0))
        replica.apply(vector, step, 0)
        torch.manual_seed(part_seed(0, step, 0))
        expected = loss(torch.from_numpy(labels), model(torch.from_numpy(features)))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # as for those that a part does not reach
        expected.backward()
        optimizer.step()
        assert found == expected.item()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), replica.state()[f"model/{name}"]), name
    # Statistics are committed as a sum of moves, which rounds once more.
    torch.testing.assert_close(model.norm.running_var, replica.state()["model/norm.running_var"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("optimizer", ["grouped", "by_epoch", "cosine"])
def test_a_newcomer_takes_up_a_torch_scheduler_where_the_others_are(optimizer: str) -> None:
    replica = make("torch", optimizer=optimizer)
    train(replica, 0, 12)
    state = {name: t.clone() for name, t in replica.state().items()}
    train(replica, 12, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a scheduler that moves before its optimizer
        newcomer = make("torch", optimizer=optimizer)
        newcomer.load(state)
        train(newcomer, 12, 16)
    assert digest(newcomer.state()) == digest(replica.state())
    replica.load(state)  # and back, as after a restore from a checkpoint
    train(replica, 12, 16)
    assert digest(newcomer.state()) == digest(replica.state())


def test_parameter_groups_keep_rates_of_their_own() -> None:
    replica = make("torch", optimizer="grouped")
    assert isinstance(replica, TorchReplica)
    groups = replica._optimizer._optimizer.param_groups
    train(replica, 0, 4)
    rates = [group["lr"] for group in groups]
    assert rates[0] == pytest.approx(5 * rates[1]) and rates[0] > 0.02
    assert groups[0]["betas"][0] < 0.95  # the scheduler cycles the momentum too


def test_numbers_that_an_optimizer_keeps_are_part_of_the_state() -> None:
    replica = make("torch", optimizer="counting")
    train(replica, 0, 3)
    state = replica.state()
    assert state["optimizer/Counting/first.weight/count(int)"].item() == 3
    assert state["optimizer/Counting/groups/0/taken(int)"].item() == 3


def test_a_parameter_that_no_part_reaches_contributes_zeros() -> None:
    replica = make("torch")
    assert isinstance(replica, TorchReplica)
    names = [name for name, _ in replica._model.named_parameters()]
    sizes = [p.numel() for p in replica._model.parameters()]
    _, vector = replica.part(*batch(0, 0), seed=1)
    parts = dict(zip(names, vector[: replica.gradient_size].split(sizes), strict=True))
    assert float(parts["unused.weight"].abs().max()) == 0 < float(parts["first.weight"].abs().max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_parameters_of_other_widths_travel_as_float32(zoo: Path, dtype: str) -> None:
    text = f"""
class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x.to(torch.{dtype})).float()

def custom_model():
    return Net(nn.Linear(2, 4), nn.Linear(4, 1)).to(torch.{dtype})
"""
    replica = written(zoo, text)
    _, vector = replica.part(*PAIR, seed=1)
    assert vector.dtype == torch.float32 and len(vector) == 17
    before = replica.state()["model/0.weight"].clone()
    replica.apply(vector, 0, 0)
    assert before.dtype == getattr(torch, dtype)
    assert not torch.equal(before, replica.state()["model/0.weight"])


def test_sparse_gradients_are_added_as_dense_ones(zoo: Path) -> None:
    text = """
class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words = nn.Embedding(9, 3, sparse=sparse)
    def forward(self, ids):
        return self.words(ids).sum((1, 2), keepdim=True)[:, :, 0]

def custom_model(sparse: bool = True):
    return Words(sparse)
"""
    ids, labels = np.array([[1, 2, 2], [4, 1, 8]]), np.ones((2, 1), np.float32)
    sparse, dense = written(zoo, text), written(zoo, text, params={"sparse": False})
    assert sparse.notes == ("Embedding 'words': its sparse gradients are summed as dense ones",) and dense.notes == ()
    vectors = [replica.part(ids, labels, 1)[1] for replica in (sparse, dense)]
    assert torch.equal(vectors[0], vectors[1]) and int((vectors[0] != 0).sum()) == 12
    with pytest.raises(ModelError, match=r"SparseAdam supports only sparse gradients.*\n.*torch\.optim\.Adam"):
        written(zoo, text + "\ndef optimizer(parameters): return torch.optim.SparseAdam(parameters)\n")


def test_lazy_modules_are_made_from_a_sample_and_equal_everywhere(zoo: Path) -> None:
    text = "\ndef custom_model(): return nn.LazyLinear(1)\n"
    assert "lazy modules" in wrong(zoo, text)
    states = []
    for _ in range(2):
        torch.rand(3)
        code = ModelRequest(str(zoo), "net0.custom_model")
        states.append(load_replica(code, 1, lambda: PAIR[0] + np.random.rand(), device="cpu").state())
    assert digest(states[0]) == digest(states[1])


def test_what_a_pass_changes_in_place_is_refused_by_name(zoo: Path) -> None:
    text = """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("total", torch.zeros(1), persistent=False)
    def forward(self, x):
        self.total += 1
        return super().forward(x)

def custom_model():
    return Net()
"""
    with pytest.raises(ModelError, match="changes 'total' in place"):
        written(zoo, text).part(*PAIR, seed=1)
    text = (
        "\ndef custom_model(): return nn.Sequential(nn.Embedding(9, 3, max_norm=0.1), nn.Flatten(), nn.Linear(6, 1))\n"
    )
    with pytest.raises(ModelError, match=r"changes '0\.weight' in place.*\n.*max_norm"):
        written(zoo, text).part(np.array([[1, 2]]), np.ones((1, 1), np.float32), seed=1)


def test_optimizers_that_cannot_take_the_steps_are_refused(zoo: Path) -> None:
    optimizer = "\ndef optimizer(parameters): return {}\n".format
    assert "LBFGS evaluates the model several times" in wrong(zoo, optimizer("torch.optim.LBFGS(parameters)"))
    assert "only some of the model's" in wrong(zoo, optimizer("torch.optim.SGD(parameters[:1], lr=1)"))
    strangers = "torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], lr=1)"
    assert "not trainable parameters of the model" in wrong(zoo, optimizer(strangers))
    assert "returned str for a torch model" in wrong(zoo, "\ndef optimizer(): return 'sgd'\n")
    plateau = "\ndef optimizer(p):\n    o = torch.optim.SGD(p, lr=1)\n    return o, ReduceLROnPlateau(o), 'step'\n"
    assert "depends on a metric" in wrong(zoo, plateau)
    stepped = "\ndef optimizer(p):\n    o = torch.optim.SGD(p, lr=1)\n    return o, StepLR(o, 2), 'step'\n"
    callback = "\ndef callbacks(): return [LearningRateScheduler(lambda step: 0.1)]\n"
    assert "all set the learning rate" in wrong(zoo, stepped + callback)
    groups = "torch.optim.SGD([{'params': [parameters[0]], 'lr': 2.0}, {'params': parameters[1:]}], lr=1)"
    assert "parameter groups have different ones" in wrong(zoo, optimizer(groups) + callback)


def test_an_extra_state_of_a_module_is_refused(zoo: Path) -> None:
    text = "\nclass Net(nn.Linear):\n    def get_extra_state(self): return {}\n\ndef custom_model(): return Net(2, 1)\n"
    assert "extra state" in wrong(zoo, text)


ROTARY = """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("table", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("turned", torch.polar(torch.ones(2), torch.arange(2.0)).conj())
        self.register_buffer("drift", torch.zeros(1, dtype=torch.complex64))
        self.register_buffer("one", torch.ones(1))
        self.register_buffer("large", torch.tensor([2**64 - 3], dtype=torch.uint64))
        self.register_buffer("wide", torch.tensor([2**32 - 1], dtype=torch.uint32))
        self.register_buffer("on", torch.tensor([True, False]))
        self.register_buffer("tiny", torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn))
    def forward(self, x):
        self.drift += 0.25 + 0.5j
        return super().forward(x) + (self.table * self.turned[1]).real.sum() * 0

def custom_model():
    return Net()
"""


def test_buffers_of_every_type_stay_what_they_are_and_complex_ones_move_in_both_parts(zoo: Path) -> None:
    replica = written(zoo, ROTARY)
    before = {name: t.clone() for name, t in replica.state().items()}
    _, vector = replica.part(*PAIR, seed=1)
    assert digest(replica.state()) == digest(before)
    for step in range(2):
        replica.apply(vector.clone(), step, 0)
    state = replica.state()
    assert state["model/drift"].tolist() == [0.5 + 1j]
    still = [name for name in state if name not in ("model/weight", "model/bias", "model/drift")]
    assert len(still) >= 7
    assert digest({n: state[n] for n in still}) == digest({n: before[n] for n in still})
    assert state["model/large"].tolist() == [2**64 - 3] and state["model/turned"].is_conj()
    newcomer = written(zoo, ROTARY)
    newcomer.load({name: t.resolve_conj() for name, t in state.items()})
    assert digest(newcomer.state()) == digest(state)


def test_a_model_with_buffers_of_every_type_is_exported(zoo: Path, tmp_path: Path) -> None:
    replica = written(zoo, ROTARY)
    replica.export(tmp_path)
    from safetensors.torch import load_file

    held, state = load_file(tmp_path / "model.safetensors"), replica.state()
    for name in ("table", "turned", "large", "wide", "on"):
        assert torch.equal(held[name], state[f"model/{name}"].resolve_conj()), name
    assert torch.equal(held["tiny"].to(torch.float8_e4m3fn).view(torch.uint8), state["model/tiny"].view(torch.uint8))


def test_a_buffer_that_changes_its_type_in_a_pass_is_refused(zoo: Path) -> None:
    text = """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
    def forward(self, x):
        self.seen = self.seen + 0.5
        return super().forward(x)

def custom_model():
    return Net()
"""
    with pytest.raises(ModelError, match=r"buffer 'seen' of torch\.int64 becomes torch\.float32 in a forward pass"):
        written(zoo, text).part(*PAIR, seed=1)


def test_a_type_that_no_file_holds_is_refused_at_the_start(zoo: Path) -> None:
    text = ROTARY.replace("dtype=torch.complex64", "dtype=torch.complex128")
    said = wrong(zoo, text)
    assert "'drift' is torch.complex128, which cannot be sent to other workers or saved" in said
    assert "Use complex64" in said


def test_a_state_of_another_optimizer_is_named() -> None:
    replica = make("torch", optimizer="adam")
    train(replica, 0, 1)
    with pytest.raises(ModelError, match="it is for the optimizer Adam, but the model file uses SGD"):
        make("torch").load(replica.state())


def test_deterministic_algorithms_are_on_unless_told_otherwise() -> None:
    torch.use_deterministic_algorithms(False)
    request = ModelRequest(str(MODELS), "replicas_torch.custom_model")
    load_replica(request, 1, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    load_replica(request, 1)
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_parts_and_states_give_the_same_bits() -> None:
    request = ModelRequest(str(MODELS), "replicas_torch.custom_model", optimizer="adamw")
    replicas = [load_replica(request, 5) for _ in range(2)]
    assert replicas[0].device == torch.device("cuda:0")
    train(replicas[0], 0, 5)
    replicas[1].load({name: t.cpu() for name, t in replicas[0].state().items()})
    for replica, order in zip(replicas, [(0, 1, 2, 3), (3, 1, 0, 2)], strict=True):
        train(replica, 5, 15, order)
        assert replica.part(*batch(0, 0), seed=1)[1].device.type == "cuda"
    assert digest(replicas[0].state()) == digest(replicas[1].state())

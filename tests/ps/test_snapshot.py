"""Checkpoints of servers: any number of them writes, any other number reads; complete or invisible."""

from __future__ import annotations

import errno
import json
import os
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from elasticdl.errors import DataError
from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps import snapshot
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.service import Service
from elasticdl.wire import control_pb2 as pb
from tests.ps.servers import SEED, TOKEN, Servers, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS

ADAM = model(OPTIMIZERS["keras adam"], large=True)


def write_manifest(directory: Path, files: dict[str, str], version: int = 4, **more: Any) -> None:
    manifest: dict[str, Any] = {
        "version": version, "files": files, "open": {"train/0/0": [version, 100]}, "next": [0, 1], "done": {},
        "committed": {"train/0/0": version}, "bad_records": [], "training_data": "x", "minibatch_size": 1,
        "max_step": 0, "num_minibatches_per_task": 100, "seed": SEED, "shuffle": True,
    }  # fmt: skip
    snapshot.write_durably(directory / snapshot.MANIFEST, json.dumps(manifest | more).encode())


def save(servers: Servers, trainer: Trainer, where: Path) -> Path:
    """A cut of all servers on disk, as the master makes it."""
    servers.direct(hold=pb.Hold(cut=1, at=0))
    servers.hear("held")
    servers.direct(freeze=pb.Freeze(cut=1, purpose="save", directory=str(where)))
    frozen = servers.hear("frozen")
    assert not any(f.error for f in frozen.values()), frozen
    directory = where / f"version-{trainer.truth.version}"
    write_manifest(directory, {f"ps-{i}": f.detail for i, f in frozen.items()}, trainer.truth.version)
    servers.direct(release=pb.Release(cut=1))
    return directory


@pytest.fixture(scope="module", params=[1, 2, 3, 12])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer]:
    """A checkpoint written by this many servers, and what it should hold."""
    with serving(request.param) as servers, training(servers, ADAM) as trainer:
        servers.open()
        for _ in range(4):
            trainer.step()
        return save(servers, trainer, tmp_path_factory.mktemp(f"by-{request.param}")), trainer


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
def test_any_number_of_servers_takes_up_what_any_other_number_wrote(saved: tuple[Path, Trainer], readers: int) -> None:
    directory, trainer = saved
    with serving(readers, init_from=directory) as servers, training(servers, ADAM, seed=99) as heir:
        heir.truth = trainer.truth
        heir.check()
        slots = [np.zeros_like(trainer.truth.weights) for _ in trainer.truth.slots]
        for service in servers.services:
            assert service.parameters is not None
            mine = service.parameters.trainable_index
            for whole, part in zip(slots, service.parameters.slots.reshape(2, -1), strict=True):
                whole[mine] = part
        for got, expected in zip(slots, trainer.truth.slots, strict=True):
            np.testing.assert_array_equal(got, expected)
        for number, table in enumerate(trainer.truth.tables.values()):
            stores = [s.parameters.tables[number] for s in servers.services if s.parameters is not None]
            exported = [store.export_rows(0, len(store)) for store in stores]
            rows = {i: r for ids, some in exported for i, r in zip(ids.tolist(), some, strict=True)}
            assert rows.keys() == table.rows.keys()
            assert all((rows[i] == table.rows[i]).all() for i in rows), "slots of rows are kept too"


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    with serving(3) as servers, training(servers, ADAM) as trainer:
        servers.open()
        for _ in range(4):
            trainer.step()
        directory = save(servers, trainer, tmp_path)
        with serving(2, init_from=directory) as heirs, training(heirs, ADAM, seed=5) as heir:
            heirs.open(attempt=2)
            heir.truth, heir.next = trainer.truth, dict(trainer.next)
            for _ in range(3):
                heir.step(attempt=2)
            heir.check()


def test_the_file_is_plain_safetensors_and_aligned(tmp_path: Path) -> None:
    parameters = Parameters(ADAM, 0, 1, SEED)
    parameters.rows(0, np.arange(7))
    name = snapshot.save_part(parameters, tmp_path)
    raw = (tmp_path / name).read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    assert header_bytes % 8 == 0
    found = load_file(tmp_path / name)
    assert set(found) == {"weights", "slots", "state", *(f"table.{n}.{x}" for n in (0, 1) for x in ("ids", "rows"))}
    np.testing.assert_array_equal(np.sort(found["table.0.ids"]), np.arange(7))
    assert found["table.1.rows"].shape == (0, 15)
    header = json.loads(raw[8 : 8 + header_bytes])
    assert all(v["data_offsets"][0] % (8 if v["dtype"] == "I64" else 4) == 0 for k, v in header.items() if k[0] != "_")
    assert not list(tmp_path.glob("*.partial"))


def test_saving_and_restoring_a_table_takes_little_memory_besides(tmp_path: Path) -> None:
    spec = ParametersSpec(variables=(), tables=(TableSpec(name="t", dim=16),), optimizer=OPTIMIZERS["keras adagrad"])
    parameters = Parameters(spec, 0, 1, SEED)
    count = 400_000
    for start in range(0, count, 50_000):
        parameters.rows(0, np.arange(start, start + 50_000))
    payload = count * 128
    tracemalloc.start()
    name = snapshot.save_part(parameters, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < payload / 2, f"{peak / 1e6:.0f} MB to save {payload / 1e6:.0f} MB"
    write_manifest(tmp_path, {"ps-0": name})
    fresh = Parameters(spec, 1, 2, SEED)
    tracemalloc.start()
    snapshot.restore(fresh, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < payload / 2, f"{peak / 1e6:.0f} MB to restore {payload / 1e6:.0f} MB"
    assert abs(len(fresh.tables[0]) - count / 2) < count / 50


def test_a_table_with_an_optimizer_of_its_own_is_taken_up_again(tmp_path: Path) -> None:
    """The audit's table moves by SGD, which has no slots, beside a model whose optimizer has two."""
    plain = model(OPTIMIZERS["keras adam"])
    own = TableSpec(name="counts", dim=1, optimizer=OptimizerSpec(kind="sgd", learning_rate=1.0))
    spec = plain.model_copy(update={"tables": (*plain.tables, own)})
    before, after = Parameters(spec, 0, 1, SEED), Parameters(spec, 0, 1, SEED)
    ids, counts = np.arange(5), len(spec.tables) - 1
    empty, state = np.zeros(len(before.weights), np.float32), np.zeros(len(before.state), np.float32)
    before.apply(1, empty, state, {counts: (ids, np.ones((5, 1), np.float32))})
    write_manifest(tmp_path, {"ps-0": snapshot.save_part(before, tmp_path)})
    snapshot.restore(after, tmp_path)
    assert np.array_equal(after.rows(counts, ids), before.rows(counts, ids))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkpoint of two servers, without a server."""
    files = {}
    for index in range(2):
        parameters = Parameters(model(OPTIMIZERS["sgd"]), index, 2, SEED)
        parameters.rows(0, np.arange(5))
        files[f"ps-{index}"] = snapshot.save_part(parameters, tmp_path)
    write_manifest(tmp_path, files)
    return tmp_path


def restore(directory: Path, spec: ParametersSpec | None = None) -> str:
    """What is wrong with this checkpoint, in the words of the error."""
    with pytest.raises(DataError) as error:
        snapshot.restore(Parameters(spec or model(OPTIMIZERS["sgd"]), 0, 1, SEED), directory)
    assert error.value.remedy == snapshot.REMEDY
    return str(error.value)


def test_a_checkpoint_without_its_manifest_does_not_exist(small: Path) -> None:
    (small / snapshot.MANIFEST).unlink()
    assert "no complete checkpoint" in restore(small) and str(small) in restore(small)
    (small / (snapshot.MANIFEST + ".partial")).write_text("{}")
    assert "no complete checkpoint" in restore(small)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"{}", b'{"version": 1, "files": ["a"]}', b'{"version": -1e9}']
)
def test_a_garbled_manifest_names_itself(small: Path, text: bytes) -> None:
    (small / snapshot.MANIFEST).write_bytes(text)
    assert restore(small).startswith(f"{small / snapshot.MANIFEST}: the manifest cannot be read")
    with pytest.raises(DataError):
        Service(0, 1, SEED, TOKEN, print, init_from=small)


def test_a_truncated_missing_or_foreign_part_names_its_file(small: Path) -> None:
    part = small / "ps-1-of-2.safetensors"
    whole = part.read_bytes()
    for text in (b"", whole[:7], whole[:100], whole[:-1], whole[: len(whole) // 2], b"\xff" * 64):
        part.write_bytes(text)
        assert restore(small).startswith(f"{part}: this part of the checkpoint cannot be read"), text
    part.unlink()
    assert restore(small).startswith(f"{part}: this part of the checkpoint cannot be read")
    part.write_bytes((small / "ps-0-of-2.safetensors").read_bytes())
    assert "it is part 0 of 2" in restore(small)
    part.write_bytes(whole)
    write_manifest(small, {"ps-0": "ps-0-of-2.safetensors"})
    assert "it is part 0 of 2, and the manifest names 1 files" in restore(small)


def test_a_part_that_is_being_written_is_not_seen(small: Path) -> None:
    before = (small / "ps-0-of-2.safetensors").read_bytes()
    (small / "ps-0-of-2.safetensors.partial").write_bytes(before[:50])
    snapshot.restore(Parameters(model(OPTIMIZERS["sgd"]), 0, 1, SEED), small)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variables": (VariableSpec(name="v0", shape=(3, 5)),)}, "variables changed since: mean, v0"),
        ({"tables": (TableSpec(name="t0", dim=3), TableSpec(name="t1", dim=5))}, "tables changed since: t0"),
        ({"tables": (TableSpec(name="t1", dim=5), TableSpec(name="t0", dim=2))}, "tables changed since: their order"),
        ({"optimizer": OPTIMIZERS["keras adam"]}, "the optimizer was sgd and is adam now"),
        ({"optimizer": OPTIMIZERS["keras momentum"]}, "the optimizer was sgd and is sgd with keras momentum now"),
    ],
)
def test_a_changed_model_is_refused_by_name(small: Path, changes: dict[str, Any], words: str) -> None:
    assert words in restore(small, model(OPTIMIZERS["sgd"]).model_copy(update=changes))


def test_the_learning_rate_may_change(small: Path) -> None:
    faster = OptimizerSpec(kind="sgd", learning_rate=3.0)
    snapshot.restore(Parameters(model(faster), 0, 1, SEED), small)


def test_a_directory_that_cannot_be_written_is_reported_and_the_server_lives(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with serving(2) as servers, training(servers, model(OPTIMIZERS["sgd"])) as trainer:
        servers.open()
        trainer.step()
        servers.direct(freeze=pb.Freeze(cut=1, purpose="save", directory=str(tmp_path / "file")))
        for frozen in servers.hear("frozen").values():
            assert frozen.error == f"{tmp_path / 'file'}: {os.strerror(errno.ENOTDIR)}"
            assert not frozen.detail
        trainer.step()
        trainer.check()


def test_a_full_disk_is_reported_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: the write fails half way with an error of its own."""
    with serving(1) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            servers.direct(freeze=pb.Freeze(cut=1, purpose="save", directory=str(tmp_path)))
            frozen = servers.hear("frozen")[0]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.strerror(errno.EFBIG) in frozen.error
        assert not list(tmp_path.rglob("*.safetensors"))
        save(servers, trainer, tmp_path)
        trainer.step()
        trainer.check()

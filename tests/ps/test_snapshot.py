"""Checkpoints of servers: any number of them writes, any other number reads; complete or invisible."""

from __future__ import annotations

import json
import resource
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from elasticdl.errors import DataError
from elasticdl.files import MANIFEST, REMEDY, File, checksum, verify, write_durably
from elasticdl.job.parameters import OptimizerSpec, ParametersSpec, TableSpec, VariableSpec
from elasticdl.ps import snapshot
from elasticdl.ps.parameters import Parameters
from elasticdl.wire import control_pb2 as pb
from tests.ps import parts
from tests.ps.servers import SEED, Servers, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS

ADAM = model(OPTIMIZERS["keras adam"], large=True)


def write_manifest(directory: Path, files: dict[str, list[File]], version: int = 4, **more: Any) -> None:
    manifest: dict[str, Any] = {
        "cut": 1, "version": version, "files": files, "open": {"train/0/0": [version, 100]}, "next": [0, 1],
        "done": {}, "bad_records": [], "training_data": "x", "minibatch_size": 1, "max_step": 0,
        "num_minibatches_per_task": 100, "seed": SEED, "shuffle": True,
    }  # fmt: skip
    write_durably(directory / MANIFEST, json.dumps(manifest | more).encode())


def freeze(servers: Servers, where: Path, cut: int = 1) -> dict[int, pb.Wrote]:
    """All servers hold, freeze, write and go on; what they wrote."""
    servers.direct(hold=pb.Hold(cut=cut, at=0))
    servers.hear("held")
    servers.direct(freeze=pb.Freeze(cut=cut, purpose="save", directory=str(where)))
    wrote: dict[int, pb.Wrote] = servers.hear("wrote")
    servers.direct(release=pb.Release(cut=cut))
    return wrote


def save(servers: Servers, trainer: Trainer, where: Path, cut: int = 1) -> Path:
    """A cut of all servers on disk, as the master makes it."""
    partial, directory = where / f"j.cut-{cut}.partial", where / f"version-{trainer.truth.version}"
    wrote = freeze(servers, partial, cut)
    assert not any(w.error for w in wrote.values()), wrote
    files = {f"ps-{i}": json.loads(w.part) for i, w in wrote.items()}
    write_manifest(partial, files, trainer.truth.version)
    partial.rename(directory)
    servers.direct(settle=pb.Settle(cut=cut, published=True, directory=str(directory)))
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


def test_the_next_checkpoint_builds_on_the_last_one_also_over_a_restart(tmp_path: Path) -> None:
    with serving(2) as servers, training(servers, ADAM) as trainer:
        servers.open()
        for _ in range(20):
            trainer.step(ids=300, universe=5000)
        first = save(servers, trainer, tmp_path, 1)
        trainer.step(ids=3)
        second = save(servers, trainer, tmp_path, 2)
        manifest = snapshot.read_manifest(second)
        assert [len(f) for f in manifest["files"].values()] == [2, 2]
        with serving(2, init_from=second) as heirs, training(heirs, ADAM, seed=5) as heir:
            heirs.open(attempt=2)
            heir.truth, heir.next = trainer.truth, dict(trainer.next)
            heir.step(attempt=2, ids=3)
            third = save(heirs, heir, tmp_path, 3)
            files = snapshot.read_manifest(third)["files"]
            assert [len(f) for f in files.values()] == [3, 3], "what was read is not written again"
            shutil.rmtree(first)
            shutil.rmtree(second)
            with serving(1, init_from=third) as last, training(last, ADAM, seed=6) as one:
                one.truth = heir.truth
                one.check()


def test_a_server_that_wrote_the_checkpoint_and_moved_no_further_need_not_read_it(tmp_path: Path) -> None:
    with serving(2) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        directory = save(servers, trainer, tmp_path)
        for part in directory.glob("ps-0-*"):
            part.write_bytes(b"")
        assert servers.begin(directory, 2) == {}
        trainer.client.move(servers.addresses, 2)
        trainer.client.declare(trainer.truth.weights, trainer.truth.state)
        trainer.check()


def test_a_server_that_was_resized_and_goes_back_at_once_builds_on_no_part_of_another_number(tmp_path: Path) -> None:
    """Else its next part would hold, and remove, rows that are others' now."""
    with serving(1) as servers, training(servers, ADAM) as trainer:
        servers.open()
        for _ in range(20):
            trainer.step(ids=300, universe=5000)
        directory = save(servers, trainer, tmp_path)
        for timeline in (2, 3):
            version = trainer.truth.version
            servers.direct(restore=pb.Restore(timeline=timeline, directory=str(directory), version=version, servers=2))
            assert servers.hear("restored")[0].error == ""
        wrote = freeze(servers, tmp_path / "next", 2)[0]
        assert [file["name"] for file in json.loads(wrote.part)] == ["ps-0-of-2.0.safetensors"]


def test_a_rollback_forgets_everything_since_and_pushes_of_the_old_timeline(tmp_path: Path) -> None:
    with serving(2) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        directory = save(servers, trainer, tmp_path)
        before = trainer.truth.weights.copy()
        trainer.step()
        assert servers.begin(directory, 2) == {}
        trainer.client.move(servers.addresses, 2)
        trainer.client.declare(before, trainer.truth.state)
        weights, _, version = trainer.client.pull()
        assert version == 1
        np.testing.assert_array_equal(weights, before)


def test_a_damaged_checkpoint_is_answered_with_the_name_of_the_file_and_the_server_lives(tmp_path: Path) -> None:
    with serving(2) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        good = save(servers, trainer, tmp_path)
        trainer.step()
        bad = save(servers, trainer, tmp_path, 2)
        trainer.step()
        part = next(bad.glob("ps-1-of-2.*"))
        whole = part.read_bytes()
        part.unlink()  # it may be a link: the one before must stay good
        part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert servers.begin(bad, 2) == {1: f"{part}: this part of the checkpoint is damaged: its checksum is wrong"}
        assert servers.begin(good, 3) == {}, "each reads only its own part, and the one before is good"
        trainer.client.move(servers.addresses, 3)
        trainer.client.declare(trainer.truth.weights, trainer.truth.state)
        assert trainer.client.pull()[2] == 1


def test_with_as_many_servers_as_wrote_it_each_reads_its_own_part_and_else_all_of_them() -> None:
    def part(index: int, servers: int) -> list[File]:
        return [{"name": f"ps-{index}-of-{servers}.{n}.safetensors", "bytes": 1, "crc32c": 1} for n in range(2)]

    manifest: Any = {"files": {f"ps-{i}": part(i, 12) for i in range(12)}}
    assert snapshot.needed(manifest, 1, 12) == [part(1, 12)], "and not 10 or 11, whose names begin alike"
    assert snapshot.needed(manifest, 1, 11) == [part(i, 12) for i in range(12)]
    assert snapshot.needed({"files": {"ps-0": part(0, 1)}}, 0, 2) == [part(0, 1)]  # type: ignore[typeddict-item]


def test_the_file_is_plain_safetensors_and_aligned(tmp_path: Path) -> None:
    parameters = Parameters(ADAM, 0, 1, SEED)
    parameters.rows(0, np.arange(7))
    (file,) = parts.save(parameters, tmp_path).files
    raw = (tmp_path / file["name"]).read_bytes()
    assert file["bytes"] == len(raw) and file["crc32c"] == checksum(tmp_path / file["name"])
    header_bytes = int.from_bytes(raw[:8], "little")
    assert header_bytes % 8 == 0
    found = load_file(tmp_path / file["name"])
    removed = {f"table.{n}.removed" for n in (0, 1)}
    assert set(found) == {"weights", "slots", "state", *removed, "table.0.ids.0", "table.0.rows.0"}
    np.testing.assert_array_equal(np.sort(found["table.0.ids.0"]), np.arange(7))
    assert found["table.0.rows.0"].shape == (7, 6)
    assert not list(tmp_path.glob("*.partial"))


def test_saving_and_restoring_a_table_takes_little_memory_besides(tmp_path: Path) -> None:
    spec = ParametersSpec(variables=(), tables=(TableSpec(name="t", dim=16),), optimizer=OPTIMIZERS["keras adagrad"])
    parameters = Parameters(spec, 0, 1, SEED)
    count = 400_000
    for start in range(0, count, 50_000):
        parameters.rows(0, np.arange(start, start + 50_000))
    payload = count * 128
    tracemalloc.start()
    chain = parts.save(parameters, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < payload, f"{peak / 1e6:.0f} MB to save {payload / 1e6:.0f} MB: pieces pile up"
    fresh = Parameters(spec, 1, 2, SEED)
    tracemalloc.start()
    snapshot.restore(fresh, tmp_path, [chain.files])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < payload / 2, f"{peak / 1e6:.0f} MB to restore {payload / 1e6:.0f} MB"
    assert abs(len(fresh.tables[0]) - count / 2) < count / 50


def test_a_table_with_an_optimizer_of_its_own_is_taken_up_again(tmp_path: Path) -> None:
    """The audit's table moves by SGD, which has no slots, beside a model whose optimizer has two."""
    plain = model(OPTIMIZERS["keras adam"])
    own = TableSpec(name="counts", dim=1, optimizer=OptimizerSpec(kind="sgd", learning_rate=1.0))
    spec = plain.model_copy(update={"tables": (*plain.tables, own)})
    before = Parameters(spec, 0, 1, SEED)
    ids, counts = np.arange(5), len(spec.tables) - 1
    empty, state = np.zeros(len(before.weights), np.float32), np.zeros(len(before.state), np.float32)
    before.apply(1, empty, state, {counts: (ids, np.ones((5, 1), np.float32))})
    after = parts.read(before, tmp_path, parts.save(before, tmp_path).files)
    assert np.array_equal(after.rows(counts, ids), before.rows(counts, ids))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkpoint of two servers, without a server."""
    files = {}
    for index in range(2):
        parameters = Parameters(model(OPTIMIZERS["sgd"]), index, 2, SEED)
        parameters.rows(0, np.arange(5))
        files[f"ps-{index}"] = parts.save(parameters, tmp_path).files
    write_manifest(tmp_path, files)
    return tmp_path


def use(directory: Path, spec: ParametersSpec | None = None) -> None:
    """Check and read all of a checkpoint, as a server does."""
    needed = snapshot.needed(snapshot.read_manifest(directory), 0, 1)
    verify(directory, [f for p in needed for f in p])
    snapshot.restore(Parameters(spec or model(OPTIMIZERS["sgd"]), 0, 1, SEED), directory, needed)


def trouble(directory: Path, spec: ParametersSpec | None = None) -> str:
    """What is wrong with this checkpoint, in the words of the error."""
    with pytest.raises(DataError) as error:
        use(directory, spec)
    assert error.value.remedy == REMEDY
    return str(error.value)


def test_a_checkpoint_without_its_manifest_does_not_exist(small: Path) -> None:
    (small / MANIFEST).unlink()
    assert "no complete checkpoint" in trouble(small) and str(small) in trouble(small)
    (small / (MANIFEST + ".partial")).write_text("{}")
    assert "no complete checkpoint" in trouble(small)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"{}", b'{"version": 1, "files": ["a"]}', b'{"version": -1e9}']
)
def test_a_garbled_manifest_names_itself(small: Path, text: bytes) -> None:
    (small / MANIFEST).write_bytes(text)
    assert trouble(small).startswith(f"{small / MANIFEST}: the manifest cannot be read")


def test_a_part_that_is_not_what_was_written_names_its_file(small: Path) -> None:
    part = small / "ps-1-of-2.0.safetensors"
    whole = part.read_bytes()
    for text in (b"", whole[:7], whole[:100], whole[:-1], whole[: len(whole) // 2], whole + b"x"):
        part.write_bytes(text)
        assert trouble(small).startswith(
            f"{part}: this part of the checkpoint has {len(text)} bytes, not {len(whole)}"
        ), text
    for place in (0, 8, len(whole) // 2, len(whole) - 1):
        part.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        assert trouble(small).startswith(f"{part}: this part of the checkpoint is damaged: its checksum is wrong")
    part.unlink()
    assert trouble(small).startswith(f"{part}: this part of the checkpoint cannot be read (No such file or directory)")
    part.mkdir()
    assert trouble(small).startswith(f"{part}: this part of the checkpoint")


def test_a_part_that_was_never_one_names_its_file_even_where_the_checksum_is_right(small: Path) -> None:
    part = small / "ps-1-of-2.0.safetensors"
    part.write_bytes(b"\xff" * 64)
    files = dict(snapshot.read_manifest(small)["files"])
    files["ps-1"] = [{"name": part.name, "bytes": 64, "crc32c": checksum(part)}]
    write_manifest(small, files)
    assert trouble(small).startswith(f"{part}: this part of the checkpoint cannot be read")


def test_a_part_that_is_being_written_is_not_seen(small: Path) -> None:
    before = (small / "ps-0-of-2.0.safetensors").read_bytes()
    (small / "ps-0-of-2.0.safetensors.partial").write_bytes(before[:50])
    use(small)


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
    assert words in trouble(small, model(OPTIMIZERS["sgd"]).model_copy(update=changes))


def test_the_learning_rate_may_change(small: Path) -> None:
    use(small, model(OptimizerSpec(kind="sgd", learning_rate=3.0)))


def test_a_directory_that_cannot_be_written_is_reported_and_the_server_lives(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with serving(2) as servers, training(servers, model(OPTIMIZERS["sgd"])) as trainer:
        servers.open()
        trainer.step()
        for wrote in freeze(servers, tmp_path / "file" / "x").values():
            assert wrote.error == f"{tmp_path / 'file' / 'x'}: Not a directory" and not wrote.part
        trainer.step()
        trainer.check()


def test_after_a_full_disk_training_goes_on_and_the_next_checkpoint_is_whole(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: the write fails half way with an error of its own."""
    with serving(1) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            wrote = freeze(servers, tmp_path / "j.cut-1.partial")[0]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert wrote.error.endswith("File too large")
        assert not list(tmp_path.rglob("*.safetensors"))
        servers.direct(settle=pb.Settle(cut=1))
        trainer.step()
        directory = save(servers, trainer, tmp_path, 2)
        with serving(2, init_from=directory) as heirs, training(heirs, ADAM, seed=5) as heir:
            heir.truth = trainer.truth
            heir.check()


def test_a_server_that_is_asked_again_reports_its_part_again(tmp_path: Path) -> None:
    with serving(1) as servers, training(servers, model(OPTIMIZERS["sgd"])) as trainer:
        servers.open()
        trainer.step()
        wrote = freeze(servers, tmp_path / "p")[0]
        inode = next((tmp_path / "p").iterdir()).stat().st_ino
        trainer.step()
        servers.direct(freeze=pb.Freeze(cut=1, purpose="save", directory=str(tmp_path / "p")))
        assert servers.hear("wrote")[0] == wrote, "of the moment it was first asked, not of this one"
        assert next((tmp_path / "p").iterdir()).stat().st_ino == inode, "and it did not write it again"


def test_a_cut_that_comes_while_another_is_written_takes_its_place(tmp_path: Path) -> None:
    with serving(1) as servers, training(servers, ADAM) as trainer:
        servers.open()
        trainer.step()
        servers.direct(freeze=pb.Freeze(cut=1, purpose="save", directory=str(tmp_path / "1")))
        servers.direct(freeze=pb.Freeze(cut=2, purpose="save", directory=str(tmp_path / "2")))
        wrote = servers.hear("wrote")[0]
        while wrote.cut != 2:
            wrote = servers.hear("wrote")[0]
        assert not wrote.error
        trainer.step()
        trainer.check()

"""A server writes only what changed while training goes on; the files together hold everything."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from elasticdl import files
from elasticdl.job.parameters import ParametersSpec, TableSpec
from elasticdl.ps import saving
from elasticdl.ps.parameters import Parameters
from elasticdl.ps.saving import MOST_FILES, Chain
from tests.ps.parts import read, save, state, write
from tests.ps.servers import SEED, model
from tests.ps.stores import OPTIMIZERS

ADAM = model(OPTIMIZERS["keras adam"])


class Life:
    """Random training of one server's parameters."""

    def __init__(self, seed: int, spec: ParametersSpec = ADAM, index: int = 0, servers: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.parameters = Parameters(spec, index, servers, SEED)
        self.step = 0

    def train(self, ids: int = 20, universe: int = 300) -> None:
        p, r = self.parameters, self.random
        self.step += 1

        def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            return r.normal(size=shape).astype(np.float32)

        rows = {n: (r.integers(-universe, universe, ids), normal(ids, t.dim)) for n, t in enumerate(p.spec.tables)}
        p.apply(self.step, normal(len(p.weights)), normal(len(p.state)), rows)

    def pull(self) -> None:
        """Rows are born by pulls too."""
        self.parameters.rows(0, self.random.integers(10_000, 20_000, 5))

    def remove(self) -> None:
        store = self.parameters.tables[0]
        ids, _ = store.export_rows(0, len(store))
        if len(ids):
            store.remove(self.random.choice(ids, min(7, len(ids)), replace=False))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("piece", [7, 64, 1 << 16])
def test_what_is_read_back_is_what_was_there_when_it_was_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, piece: int
) -> None:
    """After many rounds of changes, removals, failures and compactions, and whatever went on meanwhile."""
    monkeypatch.setattr(saving, "EXPORT_ROWS", piece)
    life = Life(seed)
    chain, wholes, linked = Chain(), 0, 0
    for number in range(30):
        for _ in range(life.random.integers(0, 4)):
            life.train(universe=int(life.random.choice([5, 300])))
        if life.random.random() < 0.3:
            life.pull()
        if life.random.random() < 0.3:
            life.remove()
        frozen = state(life.parameters)

        def meanwhile() -> None:
            life.train(ids=5)
            life.pull()

        made = write(life.parameters, tmp_path / f"{number}", chain, number, meanwhile)
        assert not made.error
        if life.random.random() < 0.25:
            made.settle(False)  # another server could not write: what this one wrote counts for nothing
            shutil.rmtree(tmp_path / f"{number}")
            continue
        made.settle(True)
        wholes, linked = wholes + made.whole, linked + len(made.files) - 1
        chain = Chain(tmp_path / f"{number}", made.files)
        assert state(read(life.parameters, chain.directory, chain.files)) == frozen, f"round {number}"
        if number > 2:
            shutil.rmtree(tmp_path / f"{number - 2}", ignore_errors=True)  # nothing depends on an older one
    assert wholes > 1 and linked > 10, "both ways of writing were used"


def test_only_what_changed_is_written_and_the_rest_is_linked(tmp_path: Path) -> None:
    life = Life(1)
    for _ in range(30):
        life.train(ids=200, universe=5000)
    first = save(life.parameters, tmp_path / "1")
    life.parameters.rows(0, np.array([123_456]))
    second = save(life.parameters, tmp_path / "2", first)
    (old,), (linked, new) = first.files, second.files
    assert linked == old and new["name"] == "ps-0-of-1.1.safetensors"
    assert (tmp_path / "1" / old["name"]).stat().st_ino == (tmp_path / "2" / old["name"]).stat().st_ino
    assert new["bytes"] < old["bytes"] / 20
    shutil.rmtree(tmp_path / "1")
    files.verify(tmp_path / "2", second.files)
    assert state(read(life.parameters, tmp_path / "2", second.files)) == state(life.parameters)


def test_where_files_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(1)
    life.train()
    first = save(life.parameters, tmp_path / "1")
    life.parameters.rows(0, np.array([123_456]))

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    second = save(life.parameters, tmp_path / "2", first)
    files.verify(tmp_path / "2", second.files)
    assert state(read(life.parameters, tmp_path / "2", second.files)) == state(life.parameters)


def test_many_small_increments_are_compacted_to_one_file(tmp_path: Path) -> None:
    life = Life(1)
    for _ in range(30):
        life.train(ids=200, universe=5000)
    chain, lengths = Chain(), []
    for number in range(MOST_FILES + 3):
        life.parameters.rows(0, np.array([100_000 + number]))
        chain = save(life.parameters, tmp_path / f"{number}", chain)
        lengths.append(len(chain.files))
    assert lengths == [*range(1, MOST_FILES + 1), 1, 2, 3]


def test_increments_as_large_as_everything_are_written_as_everything(tmp_path: Path) -> None:
    life = Life(1)
    life.train(ids=500, universe=400)
    chain = save(life.parameters, tmp_path / "1")
    for number in range(2, 5):
        life.train(ids=3000, universe=400)  # nearly every row
        chain = save(life.parameters, tmp_path / f"{number}", chain)
        assert len(chain.files) <= 2


def test_what_a_failed_one_took_is_in_the_next_one(tmp_path: Path) -> None:
    life = Life(1)
    for _ in range(30):
        life.train(ids=200, universe=5000)
    first = save(life.parameters, tmp_path / "1")
    life.parameters.rows(0, np.arange(50_000, 50_010))
    made = write(life.parameters, tmp_path / "2", first)
    made.settle(False)
    life.parameters.rows(0, np.arange(60_000, 60_010))
    third = save(life.parameters, tmp_path / "3", first)
    assert len(third.files) == 2
    assert state(read(life.parameters, tmp_path / "3", third.files)) == state(life.parameters)


def test_one_that_is_given_up_while_it_is_written_ends_at_once_and_leaves_no_part(tmp_path: Path) -> None:
    life = Life(1)
    for _ in range(30):
        life.train(ids=200, universe=5000)
    made = saving.Saving(life.parameters, 1, 0, tmp_path / "1", Chain(), lambda: None)
    made.settle(False)  # before a single piece was handed over
    assert made.error == "canceled"
    assert not list((tmp_path / "1").glob("*.safetensors"))
    save(life.parameters, tmp_path / "2")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on file size stands in for the full disk: the write fails half way with an error of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_and_the_next_one_holds_everything(tmp_path: Path) -> None:
    life = Life(1)
    for _ in range(50):
        life.train(ids=400, universe=5000)
    with largest_file(50_000):
        made = write(life.parameters, tmp_path / "1")
    assert made.error == f"{tmp_path / '1'}: {os.strerror(errno.EFBIG)}"
    assert not list((tmp_path / "1").glob("*.safetensors")), "no part that could be taken for one"
    made.settle(False)
    chain = save(life.parameters, tmp_path / "2")
    assert state(read(life.parameters, tmp_path / "2", chain.files)) == state(life.parameters)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    made = write(Life(1).parameters, tmp_path / "file" / "1")
    assert made.error == f"{tmp_path / 'file' / '1'}: {os.strerror(errno.ENOTDIR)}"
    made.settle(False)


def test_a_chain_whose_files_are_gone_is_named_and_not_written_around(tmp_path: Path) -> None:
    life = Life(1)
    life.train(ids=200)
    first = save(life.parameters, tmp_path / "1")
    shutil.rmtree(tmp_path / "1")
    life.parameters.rows(0, np.array([1 << 40]))
    made = write(life.parameters, tmp_path / "2", first)
    assert "No such file" in made.error and str(tmp_path / "1") in made.error
    made.settle(False)


def test_no_writing_thread_is_left_behind(tmp_path: Path) -> None:
    life = Life(1)
    life.train()
    save(life.parameters, tmp_path / "1")
    assert not [t for t in threading.enumerate() if t.name.startswith("save-")]


def test_rows_that_were_never_pushed_often_enough_keep_their_counts(tmp_path: Path) -> None:
    """Admission: what a table has counted of ids without a row is part of the state."""
    spec = ParametersSpec(
        variables=(), tables=(TableSpec(name="t", dim=4, admit_after=3),), optimizer=OPTIMIZERS["keras adam"]
    )
    life = Life(1, spec)
    ids, ones = np.arange(10), np.ones((10, 4), np.float32)
    for step in (1, 2):
        life.parameters.apply(step, np.empty(0, np.float32), np.empty(0, np.float32), {0: (ids, ones)})
    assert len(life.parameters.tables[0]) == 0
    chain = save(life.parameters, tmp_path / "1")
    fresh = read(life.parameters, tmp_path / "1", chain.files)
    fresh.apply(3, np.empty(0, np.float32), np.empty(0, np.float32), {0: (ids, ones)})
    assert len(fresh.tables[0]) == 10, "the third push is the third, over the restart"

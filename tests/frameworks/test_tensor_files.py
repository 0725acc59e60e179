"""Safetensors files written piece by piece, read by the library that defines the format; and what memory that takes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from elasticdl.frameworks.tensor_files import Tensor, open_all, write, write_rows, write_sharded

REPOSITORY = Path(__file__).parents[2]
ARRAYS = {
    "odd": np.arange(3, dtype=np.float32),
    "scalar": np.array(7, np.int64),
    "none": np.zeros((0, 4), np.float32),
    "bytes": np.arange(5, dtype=np.uint8),
    "truth": np.array([True, False]),
    "half": np.array([1.5, -2], np.float16),
    "wide": np.array([[2**60, -1]], np.int64),
}


def test_every_type_and_shape_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", [Tensor.of(n, a) for n, a in ARRAYS.items()], {"made": "here"})
    for found in (load_file(tmp_path / "a.safetensors"), open_all(tmp_path, "a")):
        assert set(found) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert file.metadata() == {"made": "here"}


def test_torch_reads_ids_beside_rows_of_odd_length(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_tensors

    chunks = [(np.array([5, -7, 2**62]), np.ones((3, 3), np.float32))]
    write_rows(tmp_path, "t", 3, chunks, 1 << 20, {"table": "t"})
    found = load_tensors(tmp_path / "t.safetensors")
    assert found["ids"].tolist() == [5, -7, 2**62]
    assert torch.equal(found["rows"], torch.ones(3, 3))


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 11, 35])
def test_rows_that_come_in_chunks_of_any_size_fill_files_one_by_one(rows: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(rows)
    ids, values = draw.permutation(1000)[:rows].astype(np.int64), draw.normal(size=(rows, 3)).astype(np.float32)
    ends = [0, *sorted(draw.integers(0, rows + 1, 3)), rows]
    chunks = [(ids[a:b], values[a:b]) for a, b in itertools.pairwise(ends)]
    names = write_rows(tmp_path, "t", 3, chunks, 10 * 20, {"table": "t"})
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    found = open_all(tmp_path, "t")
    numbers = sorted(k.removeprefix("ids") for k in found if k.startswith("ids"))
    assert len(numbers) == max(1, -(-rows // 10))
    np.testing.assert_array_equal(np.concatenate([found[f"ids{n}"] for n in numbers]), ids)
    np.testing.assert_array_equal(np.concatenate([found[f"rows{n}"] for n in numbers]), values)


def test_a_tensor_whose_chunks_do_not_add_up_is_an_error(tmp_path: Path) -> None:
    short = Tensor("t", np.dtype(np.float32), (3, 2), lambda start, stop: [np.zeros((2, 2), np.float32)])
    with pytest.raises(ValueError, match="16 bytes for a shape of"):
        write(tmp_path / "t.safetensors", [short])


def test_small_tensors_share_a_file_and_none_is_larger_than_the_limit(tmp_path: Path) -> None:
    tensors = [Tensor.of(f"t{n}", np.full(10, n, np.float32)) for n in range(7)]
    names = write_sharded(tmp_path, "model", tensors, 100)
    assert [n for n in names if not n.endswith("json")] == [f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    assert {k: v[0] for k, v in open_all(tmp_path, "model").items()} == {f"t{n}": float(n) for n in range(7)}


_GROWTH = """
import resource, sys
from pathlib import Path
import numpy as np
from elasticdl.frameworks import export
from elasticdl.job.parameters import TableSpec

export.SHARD_BYTES = 64 << 20
ROWS, DIM = 4_000_000, 16  # 256 MB, and 32 MB of ids

class Rows:
    def rows(self, table, ids):
        return np.repeat(ids.astype(np.float32)[:, None], DIM, axis=1)

    def chunks(self, table):
        for start in range(0, ROWS, 1 << 16):
            ids = np.arange(start, min(start + (1 << 16), ROWS))
            yield ids, self.rows(table, ids)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

Rows().rows("", np.arange(1 << 16))
before = peak()
with export.into(Path(sys.argv[1]), "torch", {}) as target:
    target.table(TableSpec(name="open", dim=DIM), Rows())
    target.tensors({}, [export.Weights("plain", TableSpec(name="plain", dim=DIM, input_dim=ROWS), Rows())])
print(peak() - before, sum((Path(sys.argv[1]) / n).stat().st_size for n in target.names))
"""


def test_an_export_holds_no_more_than_some_chunks_of_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _GROWTH, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    growth, written = map(int, done.stdout.split())
    assert written > 540e6
    assert growth < 40e6, f"{growth:,} bytes for tables of {written:,}"
    assert len(list(tmp_path.glob("open-*.safetensors"))) == 5

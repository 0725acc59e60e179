"""Reading records on one core: our readers against the plain loop of the original library, in one run.

usage: python benchmarks/read_records.py [--out benchmarks/results/read_records.json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cramjam
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from elasticdl.data.example import decode_examples, encode_example
from elasticdl.data.files import FilesReader
from elasticdl.data.mnist import MNIST, default_cache, load
from elasticdl.data.order import EpochOrder
from elasticdl.data.ranges import RangeReader, epoch_order
from elasticdl.data.reader import open_reader
from elasticdl.data.recordio import RecordIOWriter
from elasticdl.data.tfrecord import TFRecordWriter

RANGE, STEP, REPEATS, RANGES = 512, 4096, 7, 200
HEADER = struct.Struct("<5I")


def naive(path: Path, start: int, count: int) -> Iterator[bytes]:
    """The loop of the pure-Python codec: walks the headers from the start, unpacks record by record."""
    unpack = {0: bytes, 1: lambda data: bytes(cramjam.snappy.decompress(data)), 2: gzip.decompress}
    position, end = 0, start + count
    with path.open("rb") as file:
        while header := file.read(HEADER.size):
            _, checksum, compressor, size, records = HEADER.unpack(header)
            if position + records <= start:
                file.seek(size, 1)
                position += records
                continue
            if position >= end:
                return
            data = file.read(size)
            if zlib.crc32(data) != checksum:
                raise ValueError("checksum")
            raw = unpack[compressor](data)
            at = 0
            for _ in range(records):
                (length,) = struct.unpack_from("<I", raw, at)
                at += 4
                if start <= position < end:
                    yield raw[at : at + length]
                at += length
                position += 1


def passes(works: dict[str, Callable[[], object]], records: int) -> dict[str, dict[str, float]]:
    """Records/s of whole passes, by the clock and by CPU time; in turn, so that a busy machine slows all alike."""
    clock: dict[str, list[float]] = {name: [] for name in works}
    cpu_time: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            work()
            clock[name].append(time.perf_counter() - begin)
            cpu_time[name].append(time.process_time() - cpu_begin)
    return {
        name: {
            "records_per_second_best": round(records / min(clock[name])),
            "records_per_second_median": round(records / statistics.median(clock[name])),
            "records_per_cpu_second_median": round(records / statistics.median(cpu_time[name])),
        }
        for name in works
    }


def seconds(
    work: Callable[[], object], repeats: int = REPEATS, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    found = []
    for _ in range(repeats):
        begin = clock()
        work()
        found.append(clock() - begin)
    return found


def ranges(records: int, one_range: Callable[[int], object]) -> dict[str, float]:
    """Milliseconds per range of 512 at random places."""
    starts = random.Random(1)
    found = sorted(seconds(lambda: one_range(starts.randrange(records - RANGE)), RANGES))
    return {
        "range_512_ms_median": round(statistics.median(found) * 1e3, 3),
        "range_512_ms_p95": round(found[int(RANGES * 0.95)] * 1e3, 3),
    }


def read_all(path: Path, records: int) -> None:
    reader = open_reader(str(path))
    for start in range(0, records, STEP):
        reader.read(path.name, start, min(start + STEP, records))


def files(folder: Path, images: np.ndarray) -> dict[str, Path]:
    """The same 784-byte records in each form."""
    made = {}
    raw = [image.tobytes() for image in images]
    for name, compressor, chunk_bytes in (
        ("recordio none", "none", None),
        ("recordio snappy", "snappy", None),
        ("recordio gzip", "gzip", None),
        ("recordio snappy, chunks of 1 MiB", "snappy", 1 << 20),
    ):
        path = folder / f"{len(made)}.recordio"
        sizes = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
        with RecordIOWriter(path, compressor, **sizes) as writer:
            for record in raw:
                writer.write(record)
        made[name] = path
    with TFRecordWriter(folder / "5.tfrecord") as tfrecord:
        for record in raw:
            tfrecord.write(record)
    made["tfrecord"] = folder / "5.tfrecord"
    return made


def readers(folder: Path, images: np.ndarray) -> dict[str, dict[str, float]]:
    count = len(images)
    works: dict[str, Callable[[], object]] = {}
    pieces: dict[str, Callable[[int], object]] = {}
    more: dict[str, dict[str, float]] = {}
    for name, path in files(folder, images).items():
        reader = open_reader(str(path))
        describe_ms = seconds(reader.describe, 1)[0] * 1e3
        works[name] = partial(read_all, path, count)
        pieces[name] = partial(read_range, reader, path.name)
        more[name] = {"describe_ms": round(describe_ms, 2), "bytes_on_disk": path.stat().st_size}
        if path.suffix == ".recordio":
            works[f"{name}, plain loop"] = partial(naive_range, path, 0, count)
            pieces[f"{name}, plain loop"] = partial(naive_range, path)
    whole = passes(works, count)
    return {name: {**whole[name], **ranges(count, pieces[name]), **more.get(name, {})} for name in works}


def read_range(reader: FilesReader, name: str, start: int) -> None:
    reader.read(name, start, start + RANGE)


def naive_range(path: Path, start: int, count: int = RANGE) -> None:
    list(naive(path, start, count))


def training_path(folder: Path, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What a worker does: shuffled minibatches of Examples, read and decoded."""
    path = folder / "examples.recordio"
    with RecordIOWriter(path) as writer:
        for image, label in zip(images, labels.tolist(), strict=True):
            writer.write(encode_example({"image": image, "label": label}))
    reader = open_reader(str(path))
    dataset = reader.describe()
    found: dict[str, float] = {}
    for shard in (128, 512):
        order = epoch_order(dataset, 0, seed=1, shard_records=shard, shuffle=True)

        def epoch(order: EpochOrder = order, shard: int = shard, decode: bool = False) -> None:
            ranges = RangeReader(reader, dataset, order, shard)
            for start in range(0, dataset.records - 64, 64):
                records = ranges.read(start, start + 64)
                if decode:
                    decode_examples(records)  # type: ignore[arg-type]

        found[f"shuffled_records_per_cpu_second_shard_{shard}"] = round(
            dataset.records / min(seconds(epoch, 3, time.process_time))
        )
        both = min(seconds(lambda epoch=epoch: epoch(decode=True), 3, time.process_time))  # type: ignore[misc]
        found[f"shuffled_and_decoded_records_per_cpu_second_shard_{shard}"] = round(dataset.records / both)
    return found


def example_codec(images: np.ndarray) -> dict[str, float]:
    """Decoding batches, against the protobuf library's parser (which then needs a loop in Python)."""
    from tests.data.example_oracle import example_class

    message = example_class()
    draw = np.random.default_rng(0)
    pictures = [encode_example({"image": image, "label": n % 10}) for n, image in enumerate(images[:64])]
    clicks = [
        encode_example({"label": n % 2, "dense": draw.random(13), "ids": draw.integers(0, 100_000, 26)})
        for n in range(512)
    ]

    # The protobuf side knows the names and kinds beforehand, as a hand-written feed would.
    def pictures_by_protobuf() -> tuple[np.ndarray, np.ndarray]:
        images, labels = [], []
        for record in pictures:
            features = message.FromString(record).features.feature
            images.append(np.frombuffer(features["image"].bytes_list.value[0], np.uint8))
            labels.append(features["label"].int64_list.value[0])
        return np.stack(images), np.array(labels)

    def clicks_by_protobuf() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        labels, dense, ids = [], [], []
        for record in clicks:
            features = message.FromString(record).features.feature
            labels.append(features["label"].int64_list.value[0])
            dense.append(features["dense"].float_list.value)
            ids.append(features["ids"].int64_list.value)
        return np.array(labels), np.array(dense, dtype=np.float32), np.array(ids)

    return {
        "mnist_batch_64_us": round(min(seconds(lambda: decode_examples(pictures), 200)) * 1e6, 1),
        "mnist_batch_64_protobuf_us": round(min(seconds(pictures_by_protobuf, 100)) * 1e6, 1),
        "clicks_batch_512_us": round(min(seconds(lambda: decode_examples(clicks), 50)) * 1e6, 1),
        "clicks_batch_512_protobuf_us": round(min(seconds(clicks_by_protobuf, 30)) * 1e6, 1),
    }


def billion() -> dict[str, float]:
    begin = time.process_time()
    order = EpochOrder([1_000_000] * 1000, 1, 1, block=64, window=4096)
    layout = time.process_time() - begin
    shard_ms = min(seconds(lambda: order.records(500_000_000, 500_000_512), 50)) * 1e3
    return {"layout_cpu_seconds": round(layout, 2), "512_positions_ms": round(shard_ms, 3)}


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    digits = load(MNIST, default_cache(), lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        found: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{cpu()}, one core, load average {os.getloadavg()[0]:.1f} at the start",
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "cramjam": cramjam.__version__,
                "google-crc32c": version("google-crc32c"),
                "zlib": zlib.ZLIB_RUNTIME_VERSION,
            },
            "data": f"{len(digits.train.labels)} records of 784 bytes, {digits.source}",
            "readers": readers(place, digits.train.images),
            "training_path": training_path(place, digits.train.images, digits.train.labels),
            "examples": example_codec(digits.train.images),
            "order_of_a_billion_records": billion(),
        }
    print(f"{'reader':46} {'best /s':>10} {'median /s':>10} {'per CPU s':>10} {'512 in ms':>10} {'p95':>6}")
    for name, row in found["readers"].items():
        rates = (row[f"records_per_{kind}"] for kind in ("second_best", "second_median", "cpu_second_median"))
        shown = " ".join(f"{rate:10,.0f}" for rate in rates)
        print(f"{name:46} {shown} {row['range_512_ms_median']:10.2f} {row['range_512_ms_p95']:6.2f}")
    print(
        json.dumps({key: found[key] for key in ("training_path", "examples", "order_of_a_billion_records")}, indent=2)
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cramjam
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from elasticdl.data.example import decode_examples, encode_example
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


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def measure(records: int, sequential: Callable[[], object], one_range: Callable[[int], object]) -> dict[str, float]:
    """Records/s of a whole pass (best and median), and milliseconds per range of 512 at random places."""
    passes = seconds(sequential)
    starts = random.Random(1)
    ranges = sorted(seconds(lambda: one_range(starts.randrange(records - RANGE)), RANGES))
    return {
        "records_per_second_best": round(records / min(passes)),
        "records_per_second_median": round(records / statistics.median(passes)),
        "range_512_ms_median": round(statistics.median(ranges) * 1e3, 3),
        "range_512_ms_p95": round(ranges[int(RANGES * 0.95)] * 1e3, 3),
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
    found: dict[str, dict[str, float]] = {}
    for name, path in files(folder, images).items():
        reader = open_reader(str(path))
        begin = time.perf_counter()
        reader.describe()
        describe_ms = (time.perf_counter() - begin) * 1e3
        found[name] = measure(
            count,
            lambda path=path: read_all(path, count),  # type: ignore[misc]
            lambda start, path=path, reader=reader: reader.read(path.name, start, start + RANGE),  # type: ignore[misc]
        )
        found[name]["describe_ms"] = round(describe_ms, 2)
        found[name]["bytes_on_disk"] = path.stat().st_size
        if path.suffix == ".recordio":
            found[f"{name}, plain loop"] = measure(
                count,
                lambda path=path: list(naive(path, 0, count)),  # type: ignore[misc]
                lambda start, path=path: list(naive(path, start, RANGE)),  # type: ignore[misc]
            )
    return found


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

        found[f"shuffled_records_per_second_shard_{shard}"] = round(dataset.records / min(seconds(epoch, 3)))
        both = min(seconds(lambda epoch=epoch: epoch(decode=True), 3))  # type: ignore[misc]
        found[f"shuffled_and_decoded_records_per_second_shard_{shard}"] = round(dataset.records / both)
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

    def by_protobuf(records: list[bytes]) -> dict[str, np.ndarray]:
        columns: dict[str, list[Any]] = {}
        for record in records:
            for name, feature in message.FromString(record).features.feature.items():
                kind = feature.WhichOneof("kind")
                values = getattr(feature, kind).value
                value = np.frombuffer(values[0], np.uint8) if kind == "bytes_list" else np.array(values)
                columns.setdefault(name, []).append(value)
        return {name: np.stack(values) for name, values in columns.items()}

    return {
        "mnist_batch_64_us": round(min(seconds(lambda: decode_examples(pictures), 200)) * 1e6, 1),
        "mnist_batch_64_protobuf_us": round(min(seconds(lambda: by_protobuf(pictures), 100)) * 1e6, 1),
        "clicks_batch_512_us": round(min(seconds(lambda: decode_examples(clicks), 50)) * 1e6, 1),
        "clicks_batch_512_protobuf_us": round(min(seconds(lambda: by_protobuf(clicks), 30)) * 1e6, 1),
    }


def billion() -> dict[str, float]:
    begin = time.perf_counter()
    order = EpochOrder([1_000_000] * 1000, 1, 1, block=64, window=4096)
    layout = time.perf_counter() - begin
    shard_ms = min(seconds(lambda: order.records(500_000_000, 500_000_512), 50)) * 1e3
    return {"layout_seconds": round(layout, 2), "512_positions_ms": round(shard_ms, 3)}


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
    print(f"{'reader':50} {'records/s':>12} {'512 records, ms':>16} {'p95':>8}")
    for name, row in found["readers"].items():
        rate, median, late = (
            row[key] for key in ("records_per_second_best", "range_512_ms_median", "range_512_ms_p95")
        )
        print(f"{name:50} {rate:12,.0f} {median:16.2f} {late:8.2f}")
    print(
        json.dumps({key: found[key] for key in ("training_path", "examples", "order_of_a_billion_records")}, indent=2)
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

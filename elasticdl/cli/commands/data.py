"""`elasticdl data`: convert, inspect, verify, and make the data sets of the examples."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

from elasticdl.cli.argument_types import positive
from elasticdl.errors import DataError, Problem, UsageError

# Written out here, so that `elasticdl data --help` loads neither numpy nor a compressor.
_FORMATS = ("recordio", "tfrecord", "csv", "parquet")
_COMPRESSORS = ("snappy", "none", "gzip")
_LINE_SECONDS = 2.0

Report = Callable[[int, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `elasticdl data`."""
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    _add_convert(commands.add_parser("convert", help="convert a data set to another format"))
    inspect = commands.add_parser("inspect", help="show a data set's format, files and first record")
    verify = commands.add_parser("verify", help="read every record and check every checksum")
    for command in (inspect, verify):
        command.add_argument("path", metavar="PATH", help="a directory, a file or a glob")
        command.add_argument("--data_reader_params", default="", metavar='"k=v; k=v"', help="as of `elasticdl train`")

    mnist = commands.add_parser("mnist", help="make MNIST: DST/train and DST/test as RecordIO")
    mnist.add_argument("target", metavar="DST")
    mnist.add_argument("--fashion", action="store_true", help="Fashion-MNIST instead")
    mnist.add_argument("--cache_dir", type=Path, help="where downloaded files are kept (default: ~/.cache/elasticdl)")
    mnist.add_argument("--force", action="store_true", help="replace existing files")

    criteo = commands.add_parser("criteo", help="make synthetic click data in Criteo's format: DST/train and DST/test")
    criteo.add_argument("target", metavar="DST")
    criteo.add_argument(
        "--records", type=positive, default=100_000, help="training records; a tenth as many are added for testing"
    )
    criteo.add_argument("--seed", type=int, default=0)
    criteo.add_argument("--to", choices=("csv", "recordio"), default="csv")
    criteo.add_argument("--force", action="store_true", help="replace existing files")


def _add_convert(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("source", metavar="SRC", help="a directory, a file or a glob, of any known format")
    convert.add_argument("target", metavar="DST", help="the directory to make")
    convert.add_argument("--to", choices=_FORMATS, required=True)
    convert.add_argument(
        "--records_per_file", type=positive, default=0, help="records in each file (default: one file per source file)"
    )
    convert.add_argument(
        "--compressor", choices=_COMPRESSORS, default="snappy", help="compression of RecordIO (default: snappy)"
    )
    convert.add_argument(
        "--example_columns",
        default="",
        metavar="NAME:KIND,…",
        help="columns to convert, each int, float, text or bytes (default: all, kinds taken from the first records)",
    )
    convert.add_argument(
        "--shuffle_seed", type=int, help="shuffle the records with this seed, for data that is sorted by class"
    )
    convert.add_argument(
        "--data_reader_params",
        default="",
        metavar='"k=v; k=v"',
        help="settings of the source's reader, as of `elasticdl train`",
    )
    convert.add_argument("--force", action="store_true", help="replace the data files in DST")


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns the exit code."""
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "convert": _convert,
        "inspect": _inspect,
        "verify": _verify,
        "mnist": _mnist,
        "criteo": _criteo,
    }
    return commands[args.data_command](args)


def _convert(args: argparse.Namespace) -> int:
    from elasticdl.data.convert import Conversion, convert

    how = Conversion(
        to=args.to,
        records_per_file=args.records_per_file,
        compressor=args.compressor,
        columns=args.example_columns,
        shuffle_seed=args.shuffle_seed,
        params=parse_params(args.data_reader_params),
    )
    with _progress("converting") as report:
        made = convert(args.source, Path(args.target), how, force=args.force, progress=report)
    print(f"{args.target}: {made.records:,} records in {_files(made.files)} ({made.format}), {_size(made.size_bytes)}")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from elasticdl.data.reader import open_reader

    reader = open_reader(args.path, parse_params(args.data_reader_params), flag="PATH")
    dataset = reader.describe()
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{dataset.path}: {dataset.format}", title_justify="left", show_footer=True
    )
    table.add_column("file", _files(dataset.files))
    table.add_column("records", f"{dataset.records:,}", justify="right")
    table.add_column("size", _size(dataset.size_bytes), justify="right")
    for file in dataset.files:
        table.add_row(file.name, f"{file.records:,}", _size(file.size_bytes))
    # Width matters on a terminal only; elsewhere nothing is truncated.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    print(f"fingerprint {dataset.fingerprint()}")
    for key, value in reader.metadata.items():
        print(f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    filled = [file.name for file in dataset.files if file.records]
    if filled:
        print(f"first record of {filled[0]}:")
        for line in describe_record(reader.read(filled[0], 0, 1)[0]):
            print(f"  {line}")
    reader.close()
    return 0


def describe_record(record: object) -> list[str]:
    """A record in readable lines: columns, the features of an Example, or the first bytes."""
    if isinstance(record, dict):
        return [f"{name}: {_short(value)}" for name, value in record.items()]
    if isinstance(record, tuple):
        return [f"image: {_short(record[0])}", f"class: {record[1]}"]
    if not isinstance(record, bytes):
        return [_short(record)]
    from elasticdl.data.example import decode_example

    try:
        features = decode_example(record) if record else {}
    except DataError:
        features = {}
    if not features:
        return [_short(record)]
    lines = []
    for name, value in features.items():
        shape = "x".join(map(str, value.shape)) or "scalar"
        lines.append(f"{name}: {value.dtype} {shape} {_short(value.tobytes() if value.dtype == 'uint8' else value)}")
    return lines


def _verify(args: argparse.Namespace) -> int:
    from elasticdl.data.verification import verify

    with _progress("verifying") as report:
        found = verify(args.path, parse_params(args.data_reader_params), report)
    for problem in found.problems:
        print(f"BAD {problem}", file=sys.stderr)
    records = sum(file.records for file in found.files)
    print(f"good: {_files(found.files)} with {records:,} records; bad: {_files(found.problems)}")
    return 1 if found.problems else 0


def _mnist(args: argparse.Namespace) -> int:
    from elasticdl.data.mnist import FASHION_MNIST, MNIST, write_mnist

    origin = FASHION_MNIST if args.fashion else MNIST
    source = write_mnist(Path(args.target), origin, cache=args.cache_dir, force=args.force)
    print(f"{args.target}: train and test ({source})")
    return 0


def _criteo(args: argparse.Namespace) -> int:
    from elasticdl.data.criteo import write_criteo

    with _progress("drawing") as report:
        best = write_criteo(Path(args.target), args.records, args.seed, to=args.to, force=args.force, progress=report)
    print(f"{args.target}: train and test; the best possible AUC on test is {best:.3f}")
    return 0


@contextmanager
def _progress(title: str) -> Iterator[Report]:
    """A progress bar on a terminal, a line every two seconds elsewhere; both on stderr."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            print(f"{title}: {done:,} of {total:,} records", file=sys.stderr)

    yield line


def parse_params(text: str) -> dict[str, str]:
    """`k=v; k=v` as a mapping, read as `elasticdl train` reads it."""
    from elasticdl.job.invalid import Invalid
    from elasticdl.job.values import read_pairs

    try:
        return read_pairs(text, ";")
    except Invalid as error:
        raise UsageError([Problem("--data_reader_params", text, error.what, error.remedy)]) from error


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{text[:100]}… ({len(value):,} bytes)" if isinstance(value, bytes) and len(text) > 100 else f"{text:.200}"


def _files(files: Sized) -> str:
    return f"{len(files)} file{'' if len(files) == 1 else 's'}"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"

"""The known file formats, and how a path becomes the files of one format."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl.data.csv_rows import open_csv
from elasticdl.data.files import FilesReader, unreadable
from elasticdl.data.images import IMAGE_SUFFIXES, open_images
from elasticdl.data.parquet import open_parquet
from elasticdl.data.recordio import MAGIC, RecordIOFile
from elasticdl.data.tfrecord import TFRecordFile, looks_like_tfrecord
from elasticdl.errors import DataError, Problem, UsageError

Opener = Callable[[str, Mapping[str, Path], Mapping[str, str]], FilesReader]


@dataclass(frozen=True)
class Format:
    """One format: how it opens, which parameters it takes, how its files are recognised."""

    name: str
    open: Opener
    suffixes: frozenset[str]
    params: frozenset[str] = frozenset()
    starts: Callable[[bytes], bool] = lambda head: False


FORMATS: dict[str, Format] = {
    known.name: known
    for known in (
        Format(
            "recordio",
            lambda path, files, params: FilesReader(path, "recordio", files, RecordIOFile),
            frozenset({".recordio", ".rio"}),
            starts=lambda head: head[:4] == MAGIC.to_bytes(4, "little"),
        ),
        Format("parquet", open_parquet, frozenset({".parquet", ".pq"}), starts=lambda head: head[:4] == b"PAR1"),
        Format(
            "tfrecord",
            lambda path, files, params: FilesReader(path, "tfrecord", files, TFRecordFile),
            frozenset({".tfrecord", ".tfrecords"}),
            starts=looks_like_tfrecord,
        ),
        Format(
            "csv",
            open_csv,
            frozenset({".csv", ".tsv", ".txt"}),
            params=frozenset({"delimiter", "columns", "quoting"}),
        ),
        Format("images", open_images, IMAGE_SUFFIXES),
    )
}


def list_files(path: str, flag: str) -> dict[str, Path]:
    """The data files behind a directory, a file or a glob, by name, in name order; class folders of images included."""
    if "://" in path:
        raise _wrong(flag, path, "URLs are not supported; data is read from file systems only", "Mount or copy it.")
    place = Path(path)
    try:
        if place.is_dir():
            found = sorted(entry for entry in place.iterdir() if _is_data(entry))
            root = place
        elif glob.has_magic(path) and not place.exists():
            found = sorted(Path(match) for match in glob.glob(path, recursive=True))  # noqa: PTH207 - absolute globs
            found = [match for match in found if _is_data(match) and not match.is_dir()]
            root = Path(os.path.commonpath([match.parent for match in found])) if found else place
        else:
            place.lstat()
            found, root = [place], place.parent
    except FileNotFoundError as error:
        raise _wrong(flag, path, "there is no such file or directory", "Check the path.") from error
    except OSError as error:
        raise unreadable(place, error) from error
    if not found:
        raise _wrong(flag, path, "there is no data file in it", "Put data files there, or name another directory.")
    return {entry.relative_to(root).as_posix(): entry for entry in found}


def _is_data(entry: Path) -> bool:
    return not entry.name.startswith((".", "_"))  # .part files of a writer, _SUCCESS marks of a batch job


def detect(path: str, files: Mapping[str, Path], flag: str) -> tuple[Format, dict[str, Path]]:
    """The one format that all the files have, and the files that hold it."""
    folders = {name: entry for name, entry in files.items() if entry.is_dir()}
    plain = {name: entry for name, entry in files.items() if name not in folders}
    if folders:
        if plain:
            what = f"it holds both files ({_some(list(plain))}) and folders ({_some(list(folders))})"
            raise _wrong(flag, path, what, "Name the files by a glob, or move one kind elsewhere.")
        if not any(_has_images(folder) for folder in folders.values()):
            what = f"it holds only folders ({_some(list(folders))}), and no images in them"
            raise _wrong(flag, path, what, f"Name one of them, or a glob such as '{path}/*/*.recordio'.")
        return FORMATS["images"], folders
    by_format: dict[str, list[str]] = {}
    for name, entry in plain.items():
        by_format.setdefault(_format_of(entry), []).append(name)
    unknown = by_format.pop("", [])
    if unknown:
        raise _wrong(
            flag,
            path,
            f"{_some(unknown)} {'has' if len(unknown) == 1 else 'have'} no known format ({', '.join(FORMATS)})",
            "Move other files elsewhere, or say the format: --data_reader_params='format=csv'.",
        )
    if len(by_format) > 1:
        kinds = "; ".join(f"{kind}: {_some(names)}" for kind, names in by_format.items())
        raise _wrong(flag, path, f"files of several formats are mixed ({kinds})", "Keep one format per directory.")
    (kind,) = by_format
    if kind == "images":
        raise _wrong(
            flag,
            path,
            "images lie directly in it",
            "Put them into one subfolder per class: DIR/cat/1.png, DIR/dog/2.png.",
        )
    return FORMATS[kind], plain


def _has_images(folder: Path) -> bool:
    try:
        return any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error


def _format_of(entry: Path) -> str:
    try:
        with entry.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise unreadable(entry, error) from error
    suffix = entry.suffix.lower()
    for known in FORMATS.values():
        if known.starts(head):
            return known.name
    if not head and not any(suffix in known.suffixes for known in FORMATS.values()):
        raise DataError(str(entry), "the file is empty", "Write it again, or remove it from the data directory.", 0)
    for known in FORMATS.values():
        if suffix in known.suffixes:
            return known.name
    return ""


def check_params(chosen: Format, params: Mapping[str, str]) -> None:
    """Refuses parameters that the format does not know, each with the nearest known name."""
    known = sorted(chosen.params | {"format"})
    problems = []
    for name, value in params.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"It knows: {', '.join(known)}."
            what = f"the {chosen.name} reader has no parameter {name!r}"
            problems.append(Problem("--data_reader_params", f"{name}={value}", what, remedy))
    if problems:
        raise UsageError(problems)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _wrong(flag: str, path: str, what: str, remedy: str) -> UsageError:
    return UsageError([Problem(flag, path, what, remedy)])

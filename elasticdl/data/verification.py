"""Reading a data set completely, to find every damaged file before a job starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elasticdl.data.dataset import DataFile
from elasticdl.data.files import FilesReader
from elasticdl.data.reader import NO_PARAMS, open_reader
from elasticdl.errors import DataError

_RECORDS = 4096  # checked at a time

Progress = Callable[[int, int], None]  # (records checked, records) over all files


@dataclass(frozen=True)
class Verification:
    """The result of reading a data set."""

    files: tuple[DataFile, ...]  # those without a problem
    problems: tuple[DataError, ...]  # one for each damaged file; for image folders, for each damaged image
    complete: bool = True  # False: larger than the limit, so only headers were checked


def verify(path: str, params: Mapping[str, str] = NO_PARAMS, progress: Progress | None = None) -> Verification:
    """Reads every record of every file of a path, and checks every checksum."""
    reader = open_reader(path, params)
    try:
        return examine(reader, progress=progress)
    finally:
        reader.close()


def examine(reader: FilesReader, limit_bytes: int | None = None, progress: Progress | None = None) -> Verification:
    """Checks the headers of all files, and every record unless the files are larger than the limit together."""
    described: list[DataFile] = []
    problems: list[DataError] = []
    for name in reader.names:
        try:
            described.append(reader.describe_file(name))
        except DataError as error:
            problems.append(error)
    if limit_bytes is not None and sum(file.size_bytes for file in described) > limit_bytes:
        return Verification(tuple(described), tuple(problems), complete=False)
    total, done = sum(file.records for file in described), 0
    good = []
    for file in described:
        wrong: list[DataError] = []
        for start in range(0, file.records, _RECORDS):
            end = min(start + _RECORDS, file.records)
            wrong += reader.check(file.name, start, end)
            if progress:
                progress(done + end, total)
            if wrong and reader.format != "images":
                break  # one error is enough for a file; a class folder has many files
        done += file.records
        problems += wrong
        if not wrong:
            good.append(file)
    return Verification(tuple(good), tuple(problems))

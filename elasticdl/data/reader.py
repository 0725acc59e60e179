"""How all data is read: open a path, describe it, read ranges of records from its files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.data.files import FilesReader, Record
from elasticdl.data.formats import FORMATS, check_params, detect, list_files
from elasticdl.errors import Problem, UsageError

__all__ = ["DataFile", "Dataset", "Reader", "Record", "open_reader"]

NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class Reader(Protocol):
    """Record ranges in, records out; safe to share between threads."""

    @property
    def metadata(self) -> Mapping[str, object]:
        """What `feed` may want to know, for example the column names."""
        ...

    def describe(self) -> Dataset:
        """All files with sizes and record counts; reads headers, not records."""
        ...

    def read(self, name: str, start: int, end: int) -> list[Record]:
        """Records start..end of one file, by its name in the description."""
        ...

    def close(self) -> None: ...


def open_reader(path: str, params: Mapping[str, str] = NO_PARAMS, *, flag: str = "path") -> FilesReader:
    """Opens a directory, a file or a glob, in the format params["format"] or else the one that the files have.

    Messages about the path name `flag`.
    """
    files = list_files(path, flag)
    wanted = params.get("format", "")
    if wanted and wanted not in FORMATS:
        what = f"there is no format {wanted!r}"
        raise UsageError(
            [Problem("--data_reader_params", f"format={wanted}", what, f"It is one of: {', '.join(FORMATS)}.")]
        )
    if wanted:
        chosen = FORMATS[wanted]
        folders = wanted == "images"
        files = {name: entry for name, entry in files.items() if entry.is_dir() == folders}
        if not files:
            what = f"there is no {'class folder' if folders else 'data file'} in it"
            raise UsageError([Problem(flag, path, what, "Name another directory.")])
    else:
        chosen, files = detect(path, files, flag)
    check_params(chosen, params)
    return chosen.open(path, files, params)

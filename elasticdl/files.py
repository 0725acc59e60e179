"""Files of checkpoints: complete or invisible, with checksums, named by a manifest that is written last."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from elasticdl.errors import DataError

MANIFEST = "manifest.json"
REMEDY = "Name another checkpoint, or start without --checkpoint_dir_for_init."

Checked = TypeVar("Checked")


class File(TypedDict):
    name: str
    bytes: int
    crc32c: int


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """A file that is complete or invisible: another name, fsync, rename, fsync of the directory."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as f:
        yield f
        f.flush()
        os.fsync(f.fileno())
    partial.rename(path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """After a power failure a rename is kept only if the directory was written too."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_durably(path: Path, data: bytes) -> None:
    with durable(path) as f:
        f.write(data)


def read_validated(directory: Path, adapter: TypeAdapter[Checked]) -> Checked:
    """The manifest of a checkpoint; a folder without one is no checkpoint."""
    path = directory / MANIFEST
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(str(directory), f"there is no complete checkpoint ({MANIFEST} is missing)", REMEDY) from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise DataError(str(path), f"the manifest cannot be read ({wrong})", REMEDY) from error
    except OSError as error:
        raise DataError(str(path), f"the manifest cannot be read ({error.strerror or error})", REMEDY) from error


def crc32c(crc: int, piece: npt.NDArray[np.uint8]) -> int:
    """The checksum `crc`, continued over this piece."""
    return int(google_crc32c.extend(crc, piece))


def checksum(path: Path) -> int:
    crc, piece = 0, np.empty(1 << 20, np.uint8)
    with path.open("rb", buffering=0) as f:
        while got := f.readinto(piece.data):
            crc = crc32c(crc, piece[:got])
    return crc


def verify(directory: Path, files: Iterable[File]) -> None:
    """Check sizes and checksums; raises a DataError that names the first wrong file."""
    for file in files:
        path = directory / file["name"]
        try:
            size = path.stat().st_size
            found = checksum(path) if size == file["bytes"] else None
        except OSError as error:
            what = f"this part of the checkpoint cannot be read ({error.strerror or error})"
            raise DataError(str(path), what, REMEDY) from error
        if found is None:
            raise DataError(str(path), f"this part of the checkpoint has {size} bytes, not {file['bytes']}", REMEDY)
        if found != file["crc32c"]:
            raise DataError(str(path), "this part of the checkpoint is damaged: its checksum is wrong", REMEDY)

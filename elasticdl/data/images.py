"""Image folders: one subfolder per class; a record is (the bytes of an image file, the name of its class)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from elasticdl.data.files import FilesReader, Record, RecordFile, unreadable
from elasticdl.errors import DataError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"})

_PNG = b"\x89PNG\r\n\x1a\n"
_REMEDY = "Copy the image again, or remove it."


def open_images(path: str, files: Mapping[str, Path], params: Mapping[str, str]) -> FilesReader:
    return FilesReader(path, "images", files, ClassFolder, {"class_names": sorted(files)})


class ClassFolder(RecordFile):
    """All images of one class, in name order."""

    def __init__(self, path: Path) -> None:
        self._class_name = path.name
        try:
            self._images = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES)
            sizes = [image.stat().st_size for image in self._images]
        except OSError as error:
            raise unreadable(path, error) from error
        if not self._images:
            what = f"there is no image in this class folder ({', '.join(sorted(IMAGE_SUFFIXES))})"
            raise DataError(str(path), what, "Put images there, or remove the folder.")
        if 0 in sizes:
            empty = self._images[sizes.index(0)]
            raise DataError(str(empty), "the image is empty", _REMEDY, 0)
        self.size_bytes, self.records = sum(sizes), len(sizes)

    def read(self, start: int, end: int) -> list[Record]:
        return [(_read(image), self._class_name) for image in self._images[start:end]]

    def check(self, start: int, end: int) -> list[DataError]:
        found = []
        for image in self._images[start:end]:
            try:
                _read(image)
            except DataError as error:
                found.append(error)
        return found


def _read(image: Path) -> bytes:
    try:
        data = image.read_bytes()
    except OSError as error:
        raise unreadable(image, error) from error
    problem = damage(data)
    if problem:
        what, offset = problem
        raise DataError(str(image), what, _REMEDY, offset)
    return data


def damage(data: bytes) -> tuple[str, int] | None:
    """The visible damage of an image file and its offset, without decoding it."""
    if data.startswith(_PNG):
        return _png_damage(data)
    complete = True
    if data.startswith(b"\xff\xd8"):
        complete = b"\xff\xd9" in data[-1024:]  # some cameras append a few bytes of their own
    elif data.startswith(b"GIF8"):
        complete = data.endswith(b";")
    elif data.startswith(b"BM") and len(data) >= 6:
        complete = len(data) >= int.from_bytes(data[2:6], "little")
    elif data.startswith(b"RIFF") and len(data) >= 8:
        complete = len(data) >= int.from_bytes(data[4:8], "little") + 8
    else:
        return "this is not a PNG, JPEG, GIF, BMP or WebP image", 0
    return None if complete else ("the image is truncated", len(data))


def _png_damage(data: bytes) -> tuple[str, int] | None:
    """Walks over a PNG's chunks, each with its checksum, to its end."""
    position = len(_PNG)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        after = position + 12 + length
        if after > len(data):
            break
        (checksum,) = struct.unpack_from(">I", data, after - 4)
        if zlib.crc32(data[position + 4 : after - 4]) != checksum:
            return "a checksum inside the image is wrong", position
        if kind == b"IEND":
            return None
        position = after
    return "the image is truncated", len(data)

"""The description of a data set: its files, their sizes and record counts, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file (or class folder) of a data set."""

    name: str  # relative to the data directory
    size_bytes: int
    records: int


@dataclass(frozen=True)
class Dataset:
    """The description of a data set; equal fingerprints mean equal positions of records."""

    path: str
    format: str
    files: tuple[DataFile, ...]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Digest of format, names, sizes and counts, without the path: a directory may move."""
        parts = [self.format, *([file.name, file.size_bytes, file.records] for file in self.files)]
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]

    def difference(self, other: Dataset) -> list[str]:
        """The changes from this description to the other, one line each."""
        lines = []
        if self.format != other.format:
            lines.append(f"the format was {self.format} and is now {other.format}")
        before = {file.name: file for file in self.files}
        after = {file.name: file for file in other.files}
        lines += [f"{name} vanished ({before[name].records} records)" for name in before if name not in after]
        lines += [f"{name} appeared ({after[name].records} records)" for name in after if name not in before]
        for name, old in before.items():
            new = after.get(name, old)
            if new != old:
                lines.append(
                    f"{name} changed: {old.size_bytes} bytes and {old.records} records before, "
                    f"{new.size_bytes} bytes and {new.records} records now"
                )
        if not lines and [f.name for f in self.files] != [f.name for f in other.files]:
            lines.append("the files are the same but come in another order")
        return lines

    def to_json(self) -> str:
        files = [[file.name, file.size_bytes, file.records] for file in self.files]
        return json.dumps({"path": self.path, "format": self.format, "files": files})

    @classmethod
    def from_json(cls, text: str) -> Dataset:
        fields = json.loads(text)
        files = tuple(DataFile(str(name), int(size), int(records)) for name, size, records in fields["files"])
        return cls(str(fields["path"]), str(fields["format"]), files)

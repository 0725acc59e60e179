"""Text files as windows of bytes, shared by the models of this folder: no tokenizer, any language."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CONTEXT = 64


class Windows:
    """Every file cut into windows of `context` bytes and the byte that follows each; the remainder is not used."""

    def __init__(self, path: str, context: int) -> None:
        self.context = context
        found = Path(path)
        files = sorted(p for p in found.rglob("*") if p.is_file()) if found.is_dir() else [found]
        self._files = {str(p.relative_to(found)) if found.is_dir() else p.name: p for p in files}

    def create_shards(self) -> dict[str, tuple[int, int]]:
        counts = {name: (p.stat().st_size - 1) // self.context for name, p in self._files.items()}
        return {name: (0, count) for name, count in counts.items() if count > 0}

    def read_records(self, task):
        with self._files[task.shard_name].open("rb") as f:
            f.seek(task.start * self.context)
            data = f.read((task.end - task.start) * self.context + 1)
        for start in range(0, len(data) - 1, self.context):
            yield data[start : start + self.context + 1]


def custom_data_reader(path, context=CONTEXT):
    return Windows(path, int(context))


def feed(records, mode, metadata):
    """Bytes as integers [n, context], and for each the byte that follows it."""
    windows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1).astype(np.int64)
    return windows[:, :-1] if mode == "prediction" else (windows[:, :-1], windows[:, 1:])

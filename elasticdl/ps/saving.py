"""Writing a server's part of a checkpoint while training goes on.

The thread that owns the rows passes them on in pieces, between requests; another thread writes them. It writes only
rows that changed since the last checkpoint and links older files into the new folder, so every checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl import faults
from elasticdl.files import File, crc32c, durable
from elasticdl.ps.parameters import EXPORT_ROWS, Floats, Ids, Parameters

log = logging.getLogger(__name__)

PIECES = 4  # at most between the two threads
MOST_FILES = 16  # then all rows are written again
Piece = tuple[Ids, Floats]


@dataclass
class Chain:
    """The files of this server's part of the last checkpoint, in the order they were written."""

    directory: Path = Path()
    files: list[File] = field(default_factory=list)


class Cancelled(Exception):
    """The part is no longer needed."""


class Saving:
    """One part that is being written. All methods belong to the thread that owns the parameters."""

    def __init__(
        self, parameters: Parameters, cut: int, version: int, directory: Path, chain: Chain, ring: Callable[[], None]
    ) -> None:
        """Freeze the present values. `chain` holds those that did not change; the writing thread calls `ring`."""
        self.cut, self.version, self.directory, self._ring = cut, version, directory, ring
        self._parameters = parameters
        self._views = [store.mark() for store in parameters.stores]
        self._dense = {
            "weights": parameters.weights.copy(),
            "slots": parameters.slots.copy(),
            "state": parameters.state.copy(),
        }
        changed = sum(store.changed(view) for store, view in zip(parameters.stores, self._views, strict=True))
        held = sum(len(store) for store in parameters.stores)
        # Increments as large as the whole take longer to read than a new file takes to write.
        sizes = [f["bytes"] for f in chain.files]
        bulk = sum(sizes[1:]) + sizes[0] * changed / max(1, held) if sizes else 0
        self.whole = not sizes or len(sizes) >= MOST_FILES or bulk > sizes[0]
        self._chain = Chain() if self.whole else chain
        self._counts = [
            len(store) if self.whole else store.changed(view)
            for store, view in zip(parameters.stores, self._views, strict=True)
        ]
        self._removed = [
            np.empty(0, np.int64) if self.whole else store.removed(view)
            for store, view in zip(parameters.stores, self._views, strict=True)
        ]
        self._widths = [store.export_rows(0, 0)[1].shape[1] for store in parameters.stores]
        self._exports = self._export()
        self._exported = False
        self._pieces: queue.Queue[Piece] = queue.Queue(PIECES)
        self._cancelled = threading.Event()
        self.files: list[File] = []
        self.error = ""
        self.finished = False
        self._thread = threading.Thread(target=self._run, name=f"save-{cut}", daemon=True)
        self._thread.start()

    # The owner's thread.

    def feed(self) -> bool:
        """Pass one more piece to the writer; returns whether the next one may follow at once."""
        if self._exported or self.finished or self._pieces.full():
            return False
        piece = next(self._exports, None)
        if piece is None:
            self._exported = True
            return False
        self._pieces.put_nowait(piece)
        return True

    def part(self) -> str:
        """The manifest's entry."""
        return json.dumps(self.files)

    def settle(self, published: bool) -> None:
        """End it. Unless it is part of a checkpoint, its rows count as changed again."""
        self._cancelled.set()
        self._thread.join()
        for store, view in zip(self._parameters.stores, self._views, strict=True):
            if published:
                store.release(view)
            else:
                store.unmark(view)

    def _export(self) -> Iterator[Piece]:
        for store, view in zip(self._parameters.stores, self._views, strict=True):
            start = 0
            while self.whole:
                ids, rows = store.export_rows(start, EXPORT_ROWS, view)
                if not len(ids):
                    break
                start += len(ids)
                yield ids, rows
            while not self.whole and start >= 0:
                ids, rows, start = store.export_changed(view, start, EXPORT_ROWS)
                if len(ids):
                    yield ids, rows

    # The writer's thread.

    def _run(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            files = [self._link(f) for f in self._chain.files]
            files.append(self._write(len(files)))
            faults.point("server.part_written")
            self.files = files
        except Cancelled:
            self.error = "canceled"
        except OSError as error:
            self.error = f"{error.filename or self.directory}: {error.strerror or error}"
        except Exception as error:  # the thread's border: the master would wait for the part forever
            log.exception("Saving cut %d failed", self.cut)
            self.error = f"{self.directory}: {type(error).__name__}: {error}"
        self.finished = True
        self._ring()

    def _link(self, file: File) -> File:
        """Link the file into the new folder; copy it if the file system cannot link."""
        there, here = self._chain.directory / file["name"], self.directory / file["name"]
        here.unlink(missing_ok=True)
        try:
            os.link(there, here)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK):
                raise
            shutil.copyfile(there, here)
        return file

    def _write(self, number: int) -> File:
        p = self._parameters
        name = f"ps-{p.index}-of-{p.servers}.{number}.safetensors"
        text = self._header()
        size = crc = 0
        with durable(self.directory / name) as f:

            def put(values: npt.NDArray[Any]) -> None:
                nonlocal size, crc
                flat = values.reshape(-1).view(np.uint8)
                f.write(flat.data)
                crc = crc32c(crc, flat)
                size += len(flat)

            put(np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8))
            for values in self._dense.values():
                put(values)
            for ids in self._removed:
                put(ids)
            for left in self._counts:
                while left:
                    ids, rows = self._take()
                    faults.point("server.writing")
                    put(ids)
                    put(rows)
                    left -= len(ids)
        return {"name": name, "bytes": size, "crc32c": crc}

    def _take(self) -> Piece:
        while not self._cancelled.is_set():
            with contextlib.suppress(queue.Empty):
                piece = self._pieces.get(timeout=0.5)
                self._ring()
                return piece
        raise Cancelled

    def _header(self) -> bytes:
        """A safetensors header, written by hand: the library needs all tensors in memory at once."""
        p = self._parameters
        about = {"spec": p.spec.model_dump_json(), "index": str(p.index), "servers": str(p.servers)}
        header: dict[str, Any] = {"__metadata__": about}
        end = 0

        def lay_out(name: str, dtype: str, shape: tuple[int, ...]) -> None:
            nonlocal end
            start, end = end, end + int(np.prod(shape)) * (8 if dtype == "I64" else 4)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

        for name, values in self._dense.items():
            lay_out(name, "F32", values.shape)
        for t, ids in enumerate(self._removed):
            lay_out(f"table.{t}.removed", "I64", ids.shape)
        for t, (width, count) in enumerate(zip(self._widths, self._counts, strict=True)):
            for piece, start in enumerate(range(0, count, EXPORT_ROWS)):
                rows = min(EXPORT_ROWS, count - start)
                lay_out(f"table.{t}.ids.{piece}", "I64", (rows,))
                lay_out(f"table.{t}.rows.{piece}", "F32", (rows, width))
        text = json.dumps(header).encode()
        return text + b" " * (-len(text) % 8)

"""The state of an all-reduce job on disk: safetensors files with checksums, which plain torch can read.

`model.safetensors` holds the model under its own names; `optimizer.safetensors` and others hold the rest, one file for
each group of names. `state.json` lists the files. A file is complete or invisible; the master publishes the checkpoint.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from elasticdl import faults
from elasticdl.errors import DataError
from elasticdl.files import REMEDY, File, crc32c, durable, verify
from elasticdl.frameworks.replica.state import DTYPES

FORMAT = "elasticdl-state/1"
STATE_FILE = "state.json"
PIECE_BYTES = 1 << 22

Tensors = Mapping[str, torch.Tensor]


@dataclass
class Snapshot:
    """A state at one moment. Tensors on a GPU are copied there, which is fast, and fetched later."""

    tensors: dict[str, torch.Tensor]
    taken: torch.cuda.Event | None = None

    def fetched(self) -> dict[str, torch.Tensor]:
        """The copies in main memory. The GPU goes on computing meanwhile."""
        if self.taken is None:
            return self.tensors
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_event(self.taken)
            found = {}
            for name in list(self.tensors):
                found[name] = self.tensors.pop(name).to("cpu").contiguous()
        stream.synchronize()
        return found


def snapshot(state: Tensors) -> Snapshot:
    """Copies that no later step changes."""
    on_gpu = [t for t in state.values() if t.is_cuda]
    needed = sum(t.numel() * t.element_size() for t in on_gpu)
    if on_gpu and needed < 0.9 * _free_bytes(on_gpu[0].device):
        tensors = {name: t.detach().clone() for name, t in state.items()}
        taken = torch.cuda.Event()
        taken.record()
        return Snapshot(tensors, taken)
    return Snapshot({name: t.detach().to("cpu", copy=True).contiguous() for name, t in state.items()})


def _free_bytes(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def write(directory: Path, taken: Snapshot, step: int, generation: int, records: int = 0) -> dict[str, Any]:
    """Write a snapshot; its part of the manifest. `records` is the number of records that its steps trained."""
    directory.mkdir(parents=True, exist_ok=True)
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in taken.fetched().items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    files = [_write(directory / f"{group}.safetensors", tensors) for group, tensors in groups.items()]
    about = {"format": FORMAT, "step": step, "generation": generation, "files": files}
    text = (json.dumps(about, indent=2) + "\n").encode()
    with durable(directory / STATE_FILE) as f:
        f.write(text)
    files = [*files, _file(STATE_FILE, text)]
    return {"step": step, "generation": generation, "records": records, "files": files}


def read(directory: Path, step: int | None = None) -> tuple[dict[str, torch.Tensor], int]:
    """The state in a checkpoint, and its step; DataError where it is damaged or of another step."""
    files, found = _described(directory)
    if step is not None and found != step:
        raise DataError(str(directory), f"its step is {found}, not {step}", REMEDY)
    verify(directory, files)
    state: dict[str, torch.Tensor] = {}
    for file in files:
        group = str(file["name"]).removesuffix(".safetensors")
        try:
            state |= {f"{group}/{name}": tensor for name, tensor in load_file(directory / file["name"]).items()}
        except SafetensorError as error:
            raise DataError(str(directory / file["name"]), f"it cannot be read ({error})", REMEDY) from error
    return state, found


def step_of(directory: Path) -> int:
    """The number of steps in a checkpoint."""
    return _described(directory)[1]


def _described(directory: Path) -> tuple[list[File], int]:
    path = directory / STATE_FILE
    try:
        about = json.loads(path.read_bytes())
        files, step, form = list(about["files"]), int(about["step"]), about["format"]
    except FileNotFoundError:
        what = f"there is no state of an all-reduce job ({STATE_FILE} is missing)"
        raise DataError(str(directory), what, REMEDY) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(str(path), f"it cannot be read ({type(error).__name__}: {error})", REMEDY) from error
    if form != FORMAT:
        raise DataError(str(path), f"it has an unknown format ({form})", REMEDY)
    return files, step


def _write(path: Path, tensors: Tensors) -> File:
    """Write safetensors in pieces: the library would hold the interpreter's lock, and training would wait for it."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        if tensor.dtype not in DTYPES:
            raise DataError(str(path), f"{name} is {tensor.dtype}, which files cannot hold", "Use another type.")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    crc, size = 0, 0
    with durable(path) as f:
        for piece in (
            np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8),
            *map(_bytes, dict(ordered).values()),
        ):
            for start in range(0, len(piece), PIECE_BYTES):
                part = piece[start : start + PIECE_BYTES]
                f.write(part.data)
                faults.point("worker.writing")
                crc = crc32c(crc, part)
                size += len(part)
    return {"name": path.name, "bytes": size, "crc32c": crc}


def _bytes(tensor: torch.Tensor) -> Any:
    if not tensor.numel():
        return np.empty(0, np.uint8)
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy()


def _file(name: str, text: bytes) -> File:
    return {"name": name, "bytes": len(text), "crc32c": crc32c(0, np.frombuffer(text, np.uint8))}

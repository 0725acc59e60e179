"""What must be right before a job starts: its port, its folders, the checkpoint it starts from."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

from elasticdl.errors import DataError, Problem
from elasticdl.job.spec import JobSpec

EXPORT_FORMAT = "elasticdl-export/"
HOST = "127.0.0.1"


def reserve_port(port: int) -> tuple[socket.socket | None, list[Problem]]:
    """A socket that keeps a port for the master, whichever process is the master; 0: one that the system chooses.

    It is bound and never listens. The master shares the port (SO_REUSEPORT), so that no other process can take it while
    one master is dead and the next one starts.
    """
    try:
        if port:
            # A master of another job would share its port with us: the test is made without sharing.
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as test:
                test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do no harm
                test.bind((HOST, port))
        kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((HOST, port))
    except OSError as error:
        what = f"this port cannot be used: {error.strerror}"
        return None, [Problem("--master_port", str(port), what, "Choose another one, or 0 to let the system choose.")]
    return kept, []


def check_output(spec: JobSpec) -> tuple[list[Problem], list[str]]:
    """Whether the model can be written to its directory, and what is there already."""
    if not spec.output:
        return [], []
    path = Path(spec.output)
    if path.is_dir() and any(entry.name != ".partial" for entry in path.iterdir()):
        if _is_export(path):
            return [], [f"--output={spec.output} holds an exported model, which the new one will replace."]
        what = "this directory holds files that are not an exported model"
        return [Problem("--output", spec.output, what, "Choose a new directory, or an empty one.")], []
    return _writable("--output", spec.output, path), []


def check_checkpoint_dir(spec: JobSpec) -> list[Problem]:
    """Whether checkpoints can be written to their directory."""
    if not spec.checkpoint_dir:
        return []
    return _writable("--checkpoint_dir", spec.checkpoint_dir, Path(spec.checkpoint_dir))


def claim_checkpoint_dir(spec: JobSpec, held: contextlib.ExitStack) -> list[Problem]:
    """Lock the checkpoint folder for as long as the job runs: two jobs would overwrite each other's checkpoints."""
    path = Path(str(spec.checkpoint_dir))
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = held.enter_context((path / ".job").open("a+"))
    except OSError as error:
        what = f"cannot store checkpoints here: {error.strerror or error}"
        return [Problem("--checkpoint_dir", str(path), what, "Choose another place.")]
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        what = "another running job stores its checkpoints here"
        return [Problem("--checkpoint_dir", str(path), what, "Choose another place, or wait for its end.")]
    except OSError:  # a file system without locks
        return []
    return []


def _is_export(path: Path) -> bool:
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        return str(manifest.get("format", "")).startswith(EXPORT_FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def _writable(flag: str, given: str, path: Path) -> list[Problem]:
    """A directory that is there or can be made."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists() or p.is_symlink())
    if not there.is_dir():
        what = f"{there} is a file" if there.exists() else f"{there} is a link to nothing"
        return [Problem(flag, given, f"cannot be a directory: {what}", "Choose another place.")]
    if not os.access(there, os.W_OK | os.X_OK):
        return [Problem(flag, given, f"you may not write to {there}", "Choose another place.")]
    return []


def find_checkpoint(spec: JobSpec) -> tuple[Path | None, list[Problem], list[str]]:
    """The checkpoint to start from: the folder given, or the newest good one in it; problems and notes."""
    if not spec.checkpoint_dir_for_init:
        return None, [], []
    from elasticdl.files import MANIFEST, verify
    from elasticdl.master.side import side_of

    given = Path(spec.checkpoint_dir_for_init).absolute()
    flag, value, notes = "--checkpoint_dir_for_init", spec.checkpoint_dir_for_init, []
    if not given.is_dir():
        return None, [Problem(flag, value, "there is no such directory", "Name the folder of a checkpoint.")], []
    versions = [p for p in given.glob("version-*") if p.name[8:].isdigit() and (p / MANIFEST).exists()]
    newest_first = sorted(versions, key=lambda p: int(p.name[8:]), reverse=True)
    problems = []
    for path in [given] if (given / MANIFEST).exists() or not versions else newest_first:
        try:
            verify(path, side_of(spec).checkpoint_files(path))
        except DataError as error:
            problems.append(Problem(flag, value, f"{error.path}: {error.what}", error.remedy))
            notes.append(f"{error.path}: {error.what}. Using the previous checkpoint.")
        else:
            return path, [], notes
    return None, problems, []


def check_data_of_checkpoint(spec: JobSpec, path: Path, datasets: dict[str, Any]) -> list[Problem]:
    """A checkpoint's place in the data means something only in the same order of the same records."""
    from elasticdl.data.dataset import Dataset
    from elasticdl.master.side import side_of

    return side_of(spec).checkpoint_problems(path, spec, Dataset.from_json(datasets["training"]))

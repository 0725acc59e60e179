"""Checkpoints and the export. A checkpoint's state is copied between two steps; a thread writes it during training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from elasticdl import faults
from elasticdl.api import state_files
from elasticdl.errors import ElasticDLError
from elasticdl.frameworks.export import whole
from elasticdl.frameworks.publishing import Turn
from elasticdl.wire import control_pb2 as pb

log = logging.getLogger(__name__)

FINISH_SECONDS = 20.0  # for what is being written when the worker ends; clusters kill it later than that


class Saver:
    """Writes one checkpoint after the other."""

    def __init__(self, answer: Callable[[int, str, str], None]) -> None:
        """`answer` gets the number of a save, its part of the manifest, and what went wrong."""
        self._answer = answer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: set[Future[None]] = set()

    def save(
        self, cut: int, directory: Path, state: Mapping[str, torch.Tensor], step: int, generation: int, records: int
    ) -> None:
        """Copy the state now; write it and answer later."""
        copied = state_files.snapshot(state)
        future = self._pool.submit(self._write, cut, directory, copied, step, generation, records)
        self._pending = {f for f in self._pending if not f.done()} | {future}

    def finish(self) -> None:
        """Wait for the checkpoints that were begun, but not for too long."""
        _, late = wait(self._pending, FINISH_SECONDS)
        if late:
            log.warning("Could not finish writing a checkpoint within %.0f s before the end", FINISH_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(
        self, cut: int, directory: Path, taken: state_files.Snapshot, step: int, generation: int, records: int
    ) -> None:
        try:
            part = state_files.write(directory, taken, step, generation, records)
            faults.point("worker.state_written")
        except OSError as error:
            self._answer(cut, "", f"{error.filename or directory}: {error.strerror or error}")
        except Exception as error:  # without an answer the master would wait forever
            log.exception("Could not write a checkpoint of step %d", step)
            self._answer(cut, "", f"{directory}: {type(error).__name__}: {error}")
        else:
            self._answer(cut, json.dumps(part), "")


def export(request: pb.Export, write: Callable[[Path], None] | None, check: Callable[[], str]) -> tuple[str, str]:
    """Write the model and check the audit as requested: what went wrong, and the audit's verdict."""
    try:
        if request.directory and write is not None:
            turn = Turn(request.run, request.number) if request.number else None
            with whole(Path(request.directory), turn) as folder:
                write(folder)
        return "", check() if request.audit else ""
    except OSError as error:
        return f"{error.filename or request.directory}: {error.strerror or error}", ""
    except ElasticDLError as error:
        return str(error), ""
    except MemoryError:
        raise
    except Exception as error:  # in the user's code: it would fail on any other worker, too
        log.exception("Could not write the model")
        return f"{type(error).__name__}: {error}", ""

"""Writing checkpoints while training goes on: the state is copied at a step's end, a thread of its own writes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from elasticdl import faults
from elasticdl.api import state_files

log = logging.getLogger(__name__)

FINISH_SECONDS = 20.0  # for what is being written when the worker ends; less than clusters give before they kill


class Saver:
    """One checkpoint after the other."""

    def __init__(self, answer: Callable[[int, str, str], None]) -> None:
        """`answer` gets the number of a save, its part of the manifest, and what went wrong."""
        self._answer = answer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: set[Future[None]] = set()

    def save(
        self, cut: int, directory: Path, state: Mapping[str, torch.Tensor], step: int, generation: int, records: int
    ) -> None:
        """Copy the state now, write it later, and say so."""
        copied = state_files.snapshot(state)
        future = self._pool.submit(self._write, cut, directory, copied, step, generation, records)
        self._pending = {f for f in self._pending if not f.done()} | {future}

    def finish(self) -> None:
        """Let what was begun be written, within reason."""
        _, late = wait(self._pending, FINISH_SECONDS)
        if late:
            log.warning("A checkpoint could not be written within %.0f s before the end", FINISH_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(
        self, cut: int, directory: Path, taken: state_files.Snapshot, step: int, generation: int, records: int
    ) -> None:
        try:
            part = state_files.write(directory, taken, step, generation, records)
            faults.point("worker.state_written")
        except OSError as error:
            self._answer(cut, "", f"{error.filename or directory}: {error.strerror or error}")
        except Exception as error:  # the thread's border: the master would wait for an answer for ever
            log.exception("Writing a checkpoint of step %d failed", step)
            self._answer(cut, "", f"{directory}: {type(error).__name__}: {error}")
        else:
            self._answer(cut, json.dumps(part), "")

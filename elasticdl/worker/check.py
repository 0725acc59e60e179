"""Before anything starts: does the model file load, is its optimizer supported, what is the data, is it undamaged?

`python -m elasticdl.worker.check` runs in a process of its own, because the launcher imports no framework. It answers
with JSON objects, one per line: what it is doing, and at the end the description of the data, or the problems.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from elasticdl.data.dataset import DataFile, Dataset
from elasticdl.data.files import FilesReader
from elasticdl.data.reader import Reader, open_reader
from elasticdl.data.verification import examine
from elasticdl.errors import DataError, ModelError, Problem, UsageError
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.model_file import ModelFile, ModelRequest
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.worker.sources import open_source
from elasticdl.worker.trainer import trainer_of

VERIFIED_BYTES = 1 << 30  # of data are read completely before a job starts: some seconds, half a minute for CSV
_NAMED_FILES = 20  # damaged ones, after which it is enough
_TELL_SECONDS = 0.25

Tell = Callable[[str], None]


def check(spec: JobSpec, tell: Tell = lambda text: None, limit_bytes: int = VERIFIED_BYTES) -> dict[str, Any]:
    """Data set descriptions by mode, and what should be noted about them; raises what is wrong."""
    problems: list[Problem] = []
    verifier = _Verifier(limit_bytes, tell)
    if spec.job_command is not None:
        return {"datasets": _of_own_program(spec, verifier), "notes": verifier.notes}
    described: dict[str, str] = {}
    readers: dict[str, tuple[Reader, Dataset]] = {}
    try:
        code: ModelFile | None = ModelFile(ModelRequest.of(spec))
    except UsageError as error:
        code, problems = None, [*error.problems]
    except ModelError as error:
        code, problems = None, [_model_problem(spec, error)]
    for mode, flag, path in (
        ("training", "--training_data", spec.training_data),
        ("evaluation", "--validation_data", spec.validation_data),
    ):
        if not path or (code is None and not Path(path).exists()):
            if path:
                problems.append(Problem(flag, path, "there is no such file or directory", "Name one that exists."))
            continue
        try:
            if code is not None:
                reader = open_source(spec, code, path, flag)
                known = next((d for _, d in readers.values() if d.path == path), None)  # one path for both
                dataset = known or verifier.describe(reader, flag)
                if dataset.records == 0:
                    problems.append(Problem(flag, path, "it holds no records", "Name a directory with data in it."))
                readers[mode], described[mode] = (reader, dataset), dataset.to_json()
        except UsageError as error:
            problems += error.problems
        except DataError as error:
            problems.append(_data_problem(flag, path, error))
        except ModelError as error:
            problems.append(_model_problem(spec, error))
    if code is not None:
        problems += _unread_parameters(spec, code)
    if code is not None and "training" in readers and not problems:
        try:
            verifier.notes += _build(spec, code, *readers["training"])
        except ModelError as error:
            problems.append(_model_problem(spec, error))
        except UsageError as error:
            problems += error.problems
        except DataError as error:
            problems.append(_data_problem("--training_data", str(spec.training_data), error))
    if problems:
        raise UsageError(problems)
    return {"datasets": described, "notes": verifier.notes}


def _of_own_program(spec: JobSpec, verifier: _Verifier) -> dict[str, str]:
    """What a program of the user's own trains on: the files that were named, or so many records it reads itself."""
    described = {}
    for mode, flag, path, count in (
        ("training", "--training_data", spec.training_data, spec.training_records),
        ("evaluation", "--validation_data", spec.validation_data, spec.validation_records),
    ):
        if path:
            try:
                described[mode] = verifier.describe(
                    open_reader(path, spec.data_reader_params, flag=flag), flag
                ).to_json()
            except DataError as error:
                raise UsageError([_data_problem(flag, path, error)]) from error
        elif count:
            described[mode] = Dataset("", "records", (DataFile("records", 0, count),)).to_json()
    program = spec.command_words[0] if spec.command_words else ""
    if shutil.which(program) is None:
        what = f"there is no program {program!r} on this machine"
        raise UsageError([Problem("--job_command", str(spec.job_command), what, "Name one that can be run.")])
    return described


class _Verifier:
    """Describes data sets and reads them completely, as long as they are not too much together."""

    def __init__(self, limit_bytes: int, tell: Tell) -> None:
        self._left_bytes, self._tell = limit_bytes, tell
        self._told_at = time.monotonic()
        self.notes: list[str] = []

    def describe(self, reader: Reader, flag: str) -> Dataset:
        if not isinstance(reader, FilesReader):
            return reader.describe()  # only its author knows what makes a record of it a good one
        found = examine(reader, self._left_bytes, partial(self._progress, flag))
        command = f"`elasticdl data verify {shlex.quote(reader.path)}`"
        if found.problems:
            problems = [_data_problem(flag, reader.path, error) for error in found.problems[:_NAMED_FILES]]
            if len(found.problems) > _NAMED_FILES:
                what = f"{len(found.problems) - _NAMED_FILES} more of its files are damaged"
                problems.append(Problem(flag, reader.path, what, f"{command} names them all."))
            raise UsageError(problems)
        dataset = Dataset(reader.path, reader.format, found.files)
        if found.complete:
            self._left_bytes -= dataset.size_bytes
        else:
            size = f"{dataset.size_bytes / (1 << 30):,.1f} GiB"
            self.notes.append(
                f"{flag}={reader.path}: of these {size} only the headers were checked. {command} checks every record."
            )
        return dataset

    def _progress(self, flag: str, done: int, total: int) -> None:
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._told_at = time.monotonic()
            self._tell(f"verifying {flag}: {done:,} of {total:,} records")


def _build(spec: JobSpec, code: ModelFile, reader: Reader, dataset: Dataset) -> tuple[str, ...]:
    """Build the model and everything that goes with it; what the user should know about it."""

    def sample() -> Arrays:
        first = next(f for f in dataset.files if f.records)
        records = reader.read(first.name, 0, min(spec.minibatch_size, first.records))
        return code.feed(records, "training", reader.metadata)[0]

    sample()  # a feed that fails should do so before anything starts, whether the model needs the sample or not
    model = trainer_of(spec).build(spec, code, sample)
    model.new_metrics()
    return model.notes


def _unread_parameters(spec: JobSpec, code: ModelFile) -> list[Problem]:
    """What --aux_params gives the model and `custom_model` does not take."""
    accepted = inspect.signature(code.custom_model).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in accepted):
        return []
    names_taken = [p.name for p in accepted]
    problems = []
    for name in spec.aux_params:
        if name != "disable_relaunch" and name not in names_taken:
            near = difflib.get_close_matches(name, names_taken, 1)
            remedy = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(names_taken) or 'no parameters'}."
            problems.append(Problem("--aux_params", name, "custom_model has no parameter of this name", remedy))
    return problems


def _data_problem(flag: str, path: str, error: DataError) -> Problem:
    at = f" at byte {error.offset}" if error.offset is not None else ""
    return Problem(flag, path, f"{error.path}{at}: {error.what}", error.remedy)


def _model_problem(spec: JobSpec, error: ModelError) -> Problem:
    what = f"{error.path}: {error.what}" + (f"\n{error.traceback}\n" if error.traceback else "")
    return Problem("--model_def", str(spec.model_def), what, error.remedy or "Correct the model file and try again.")


def main() -> int:
    spec = JobSpec.from_json(Path(os.environ[names.ENV_JOB_FILE]).read_bytes())
    # The user's code may print: the answer goes to a descriptor of its own.
    with os.fdopen(int(sys.argv[1]), "w") as answer:
        try:
            _say(answer, **check(spec, lambda text: _say(answer, doing=text)))
        except UsageError as error:
            _say(answer, problems=[vars(p) for p in error.problems])
    return 0


def _say(answer: IO[str], **words: Any) -> None:
    print(json.dumps(words), file=answer, flush=True)


if __name__ == "__main__":
    sys.exit(main())

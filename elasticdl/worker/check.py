"""Before anything starts: does the model file load, is its optimizer supported, what does the data consist of?

`python -m elasticdl.worker.check` runs in a process of its own, because the launcher imports no framework. It prints
one JSON object: the description of the data, or the problems.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

from elasticdl.data.dataset import Dataset
from elasticdl.data.reader import Reader
from elasticdl.errors import DataError, ModelError, Problem, UsageError
from elasticdl.frameworks.model_file import ModelFile, ModelRequest, load_trainable
from elasticdl.frameworks.trainable import Arrays
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.worker.sources import open_source


def check(spec: JobSpec) -> dict[str, Any]:
    """Data set descriptions by mode; raises what is wrong."""
    problems: list[Problem] = []
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
                dataset = reader.describe()
                if dataset.records == 0:
                    problems.append(Problem(flag, path, "it holds no records", "Name a directory with data in it."))
                readers[mode], described[mode] = (reader, dataset), dataset.to_json()
        except UsageError as error:
            problems += error.problems
        except DataError as error:
            at = f" at byte {error.offset}" if error.offset is not None else ""
            problems.append(Problem(flag, path, f"{error.path}{at}: {error.what}", error.remedy))
        except ModelError as error:
            problems.append(_model_problem(spec, error))
    if code is not None:
        problems += _unread_parameters(spec, code)
    if code is not None and "training" in readers and not problems:
        try:
            _build(spec, code, *readers["training"])
        except ModelError as error:
            problems.append(_model_problem(spec, error))
        except UsageError as error:
            problems += error.problems
        except DataError as error:
            problems.append(Problem("--training_data", str(spec.training_data), str(error), ""))
    if problems:
        raise UsageError(problems)
    return described


def _build(spec: JobSpec, code: ModelFile, reader: Reader, dataset: Dataset) -> None:
    def sample() -> Arrays:
        first = next(f for f in dataset.files if f.records)
        records = reader.read(first.name, 0, min(spec.minibatch_size, first.records))
        return code.feed(records, "training", reader.metadata)[0]

    sample()  # a feed that fails should do so before anything starts, whether the model needs the sample or not
    load_trainable(code, spec.seed, sample).new_metrics()


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


def _model_problem(spec: JobSpec, error: ModelError) -> Problem:
    what = f"{error.path}: {error.what}" + (f"\n{error.traceback}\n" if error.traceback else "")
    return Problem("--model_def", str(spec.model_def), what, error.remedy or "Mend the model file and try again.")


def main() -> int:
    spec = JobSpec.from_json(Path(os.environ[names.ENV_JOB_FILE]).read_bytes())
    # The user's code may print: the answer goes to a descriptor of its own.
    with os.fdopen(int(sys.argv[1]), "w") as answer:
        try:
            json.dump({"datasets": check(spec)}, answer)
        except UsageError as error:
            json.dump({"problems": [vars(p) for p in error.problems]}, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Reading a job from the command line: flags are JobSpec's knobs, and all problems are found at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elasticdl.errors import Problem, UsageError
from elasticdl.job.invalid import nearest
from elasticdl.job.knob import COMMANDS, Command, Knob
from elasticdl.job.resolve import NAMESPACE, Resolved, resolve
from elasticdl.job.spec import JobSpec, knobs, read_values, spellings
from elasticdl.job.yaml_file import read_yaml

OPTIONS = {
    "file": "-f FILE, --file FILE",
    "dry_run": "--dry_run[=yaml|json]",
    "context": "--context NAME",
    "help": "--help",
    "help_all": "--help_all",
}
_BOOLEANS = ("true", "false", "yes", "no", "t", "f", "y", "n", "on", "off", "1", "0")


@dataclass
class Request:
    """What a command line asks for."""

    resolved: Resolved
    dry_run: Literal["yaml", "json"] | None = None
    context: str | None = None  # of the kubeconfig, on the machine that submits


@dataclass
class _Reading:
    command: str
    written: dict[str, str] = field(default_factory=dict)  # knob -> the value as written
    where: dict[str, str] = field(default_factory=dict)  # knob -> the name as written
    options: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, where: str, value: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(where, value, what, remedy))


def wants_help(words: Sequence[str]) -> Literal["common", "all"] | None:
    """Whether help is asked for, and how much of it."""
    names = {word.lstrip("-").replace("-", "_") for word in words if word.startswith("-")}
    if "help_all" in names:
        return "all"
    return "common" if names & {"help", "h"} else None


def read_request(words: Sequence[str], command: str = "train") -> Request:
    """The job of a command line. `command` is train, evaluate, predict, or by-hand for a master or worker."""
    reading = _read_words(words, command)
    spec, problems, refused = _spec(reading)
    dry_run = reading.options.get("dry_run")
    form: Literal["yaml", "json"] | None = "json" if dry_run == "json" else "yaml" if dry_run else None
    context = reading.options.get("context")

    def namespace() -> str:
        return _namespace(context, prefer_file=spec.force_use_kube_config_file)

    return Request(resolve(spec, problems, refused, namespace=namespace), form, context)


def _namespace(context: str | None, *, prefer_file: bool) -> str:
    """The one that kubectl uses, as do `elasticdl list` and the others."""
    from elasticdl.cluster.kubernetes import credentials

    try:
        return credentials.find(context, prefer_file=prefer_file).namespace
    except UsageError:  # submitting reports it; --yaml and --dry_run need no cluster
        return NAMESPACE


def read_spec(words: Sequence[str], command: str = "train") -> tuple[JobSpec, list[Problem]]:
    """The job as requested, not yet resolved, and the problems of single flags."""
    return _spec(_read_words(words, command))[:2]


def _read_words(words: Sequence[str], command: str) -> _Reading:
    reading = _Reading(command)
    rest = list(words)
    while rest:
        _read_word(reading, rest)
    return reading


def _spec(reading: _Reading) -> tuple[JobSpec, list[Problem], set[str]]:
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    if "file" in reading.options:
        _read_file(reading, reading.options["file"], values, where)
    values |= reading.written
    where |= reading.where
    command: Command = next((c for c in COMMANDS if c == reading.command), "train")
    spec, problems, refused = read_values(values, command, where)
    return spec, [*reading.problems, *problems], refused


def _read_word(reading: _Reading, rest: list[str]) -> None:
    word = rest.pop(0)
    if word.strip() in ("", "\\"):  # the rest of a continued line without a next one
        return
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("-", "_")
    if re.match(r"-f($|[^-])", word):  # -f job.yaml, -fjob.yaml, -f=job.yaml
        name, equals, value = "file", word[2:3], word[2:].lstrip("=")
    elif not word.startswith("--"):
        hint = f"Did you mean --{name}?" if word.startswith("-") and name in spellings() else _NOT_A_FLAG
        reading.problem(word, "", "not a flag", hint)
        return
    if name in OPTIONS:
        _read_option(reading, name, value if equals else None, rest)
        return
    knob = knobs().get(spellings().get(name, ""))
    if knob is None or not knob.belongs_to(reading.command):
        taken = value if equals else rest.pop(0) if rest and _is_value(rest[0]) else ""
        _unknown(reading, word.partition("=")[0], taken, knob)
        return
    if not equals and knob.kind == "true|false" and not (rest and rest[0].lower() in _BOOLEANS):
        value = "true"
    elif not equals and rest and _is_value(rest[0]):
        value = rest.pop(0)
    elif not equals:
        reading.problem(f"--{name}", "", "has no value", f"Write --{name}={_example(knob)}.")
        return
    _keep(reading, knob, f"--{name}", value)


_NOT_A_FLAG = "Flags start with two dashes; put a value with spaces in quotes."


def _keep(reading: _Reading, knob: Knob, where: str, value: str) -> None:
    if knob.name in reading.where:
        both = f"{reading.where[knob.name]}={reading.written.get(knob.name, '')} and {where}={value}"
        reading.problem(where, value, f"given twice: {both}", "Keep one of them.")
        return
    reading.where[knob.name] = where
    if value.strip():
        reading.written[knob.name] = value
    elif knob.kind not in ("text", "resources", "pairs", "volumes"):
        reading.problem(where, "", "has an empty value", f"Write {where}={_example(knob)}, or leave it out.")


def _read_option(reading: _Reading, name: str, value: str | None, rest: list[str]) -> None:
    if name == "dry_run":
        bare = value is None and not (rest and rest[0] in ("yaml", "json", "true", "false"))
        text = "yaml" if bare else (value if value is not None else rest.pop(0)).lower()
        if text not in ("yaml", "json", "true", "false"):
            reading.problem("--dry_run", text, "not one of yaml, json", "Write --dry_run or --dry_run=json.")
        elif text != "false":
            reading.options["dry_run"] = text
        return
    if value is None and name in ("file", "context") and rest and _is_value(rest[0]):
        value = rest.pop(0)
    if name == "file" and not value:
        reading.problem("-f", "", "has no value", "Write -f job.yaml.")
    elif name == "context" and not value:
        reading.problem(
            "--context", "", "has no value", "Write --context=NAME; kubectl config get-contexts lists them."
        )
    elif name == "file" and name in reading.options:
        reading.problem("-f", value or "", "given twice", "Put everything into one file.")
    else:
        reading.options[name] = value or ""


def _read_file(reading: _Reading, path: str, values: dict[str, Any], where: dict[str, str]) -> None:
    content, problems = read_yaml(path)
    reading.problems += problems
    for key, value in content.items():
        knob = knobs().get(spellings().get(key.replace("-", "_"), ""))
        place = f"{Path(path).name}: {key}"
        if knob is None or not knob.belongs_to(reading.command):
            _unknown(reading, key, str(value), knob, file=Path(path).name)
        elif knob.name in where:
            reading.problem(
                place, str(value), f"means the same as {where[knob.name].split(': ')[-1]}", "Keep one of them."
            )
        elif isinstance(value, bool) and knob.kind not in ("true|false", "choice"):
            reading.problem(place, str(value).lower(), f"not a {knob.kind}", f"Write {knob.name}: {_example(knob)}.")
        else:
            values[knob.name], where[knob.name] = value, place


def _unknown(reading: _Reading, written: str, value: str, knob: Knob | None, file: str = "") -> None:
    bare = written.lstrip("-")
    place, mark, thing = (f"{file}: {written}", "", "key") if file else (written, "--", "flag")
    if knob is not None:
        owners = " and ".join(f"elasticdl {c}" for c in knob.commands) or "a master or worker started by hand"
        reading.problem(place, value, f"a {thing} of {owners}, not of elasticdl {reading.command}", "Leave it out.")
        return
    known = [s for s, name in spellings().items() if knobs()[name].belongs_to(reading.command)]
    meant = nearest(bare, known if file else [*known, *OPTIONS])
    see = f"See elasticdl {reading.command} --help_all."
    reading.problem(place, value, f"unknown {thing}", f"Did you mean {mark}{meant}?" if meant else see)


def _is_value(word: str) -> bool:
    return not word.startswith("-") or re.fullmatch(r"-\d.*", word) is not None


def _example(knob: Knob) -> str:
    """Something that could stand after the flag."""
    if knob.choices:
        return knob.choices[0]
    return {"true|false": "true", "whole number": "2", "number": "30"}.get(knob.kind, knob.metavar)

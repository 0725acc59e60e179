"""`elasticdl train | evaluate | predict`: shows the help or the resolved job, submits it to a cluster, or runs it here.

`--dry_run` prints the resolved job as YAML that `-f` reads back, or as the JSON that processes receive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Literal

import yaml

from elasticdl.cli import flags
from elasticdl.cli.help import command_help
from elasticdl.errors import UsageError
from elasticdl.job.resolve import Resolved


def run(command: str, words: Sequence[str]) -> int:
    wanted = flags.wants_help(words)
    if wanted:
        print(command_help(command, everything=wanted == "all"))
        return 0
    request = flags.read_request(words, command)
    resolved = request.resolved
    if request.dry_run is not None:
        print(_dry_run(resolved, request.dry_run, request.context))
        return 0
    if resolved.require().runtime == "kubernetes":
        from elasticdl.cli import submit

        return submit.run(resolved, request.context)
    from elasticdl.cli import train

    return train.run(resolved)


def _dry_run(resolved: Resolved, form: Literal["yaml", "json"], context: str | None) -> str:
    """The resolved job as text, with the cluster's answer; raises UsageError if there is something wrong with it."""
    if resolved.problems:
        raise UsageError(resolved.problems)
    spec, answer = resolved.spec, list[str]()
    if form == "json":
        return spec.to_json()
    if spec.runtime == "kubernetes" and not resolved.later:
        from elasticdl.cli.submit import ask

        answer = asyncio.run(ask(spec, context))
    values = json.loads(spec.to_json())
    differing = {name: values[name] for name in spec.given()}
    sections = [
        f"# elasticdl {spec.command}: what differs from the defaults",
        yaml.safe_dump(differing, sort_keys=False),
    ]
    sections += _comments("Decisions", resolved.decisions)
    sections += _comments("Notes", resolved.notes)
    sections += _comments("Warnings", resolved.warnings)
    sections += _comments("The cluster", answer)
    sections += _comments("This release cannot run this job yet", (str(problem) for problem in resolved.later))
    return "\n".join(sections).rstrip()


def _comments(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"#   {line}" for line in lines]
    return [f"# {title}:", *found, ""] if found else []

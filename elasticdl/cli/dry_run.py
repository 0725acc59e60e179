"""What `--dry_run` prints: the resolved job as YAML that `-f` reads back, or as the JSON that processes receive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal

import yaml

from elasticdl.errors import UsageError
from elasticdl.job.resolve import Resolved


def show(resolved: Resolved, form: Literal["yaml", "json"], said: Sequence[str] = ()) -> str:
    """The resolved job as text, with what its cluster said; raises UsageError if there is something wrong with it."""
    if resolved.problems:
        raise UsageError(resolved.problems)
    spec = resolved.spec
    if form == "json":
        return spec.to_json()
    values = json.loads(spec.to_json())
    differing = {name: values[name] for name in spec.given()}
    sections = [
        f"# elasticdl {spec.command}: what differs from the defaults",
        yaml.safe_dump(differing, sort_keys=False),
    ]
    sections += _comments("Decisions", resolved.decisions)
    sections += _comments("Notes", resolved.notes)
    sections += _comments("Warnings", resolved.warnings)
    sections += _comments("The cluster", said)
    sections += _comments("This release cannot run this job yet", (str(problem) for problem in resolved.later))
    return "\n".join(sections).rstrip()


def _comments(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"#   {line}" for line in lines]
    return [f"# {title}:", *found, ""] if found else []

"""The help texts: plain text as wide as the terminal, with bold headings on one."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from elasticdl.cli.commands import COMMANDS

if TYPE_CHECKING:
    from elasticdl.job.knob import Knob

EXAMPLES = {
    "train": (
        "elasticdl train --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model "
        "--training_data=data/mnist/train --validation_data=data/mnist/test --num_workers=2"
    ),
    "evaluate": (
        "elasticdl evaluate --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model "
        "--validation_data=data/mnist/test --checkpoint_dir_for_init=checkpoints"
    ),
    "predict": (
        "elasticdl predict --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model "
        "--prediction_data=data/mnist/test --checkpoint_dir_for_init=checkpoints"
    ),
}
OPTIONS = (
    ("-f, --file FILE", "Read the job from a YAML file, whose keys are the names of flags; flags override it."),
    ("--dry_run[=yaml|json]", "Print the resolved job, and whether its cluster accepts it, without running it."),
    ("--context NAME", "The kubeconfig context to submit with (default: the current one)."),
    ("--help", "Show the common flags."),
    ("--help_all", "Show every flag."),
)


def width() -> int:
    """Columns to write in: the terminal's, from 60 to 110."""
    return max(60, min(shutil.get_terminal_size((100, 24)).columns, 110))


def bold(text: str) -> str:
    """Bold on a terminal that wants it, plain elsewhere."""
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[1m{text}\033[0m"


def overview(version: str) -> str:
    """What `elasticdl --help` shows: the commands by group, each with a line about it."""
    lines = [f"{bold('ElasticDL')} {version}: deep learning on machines that come and go", ""]
    lines += [f"{bold('Usage')}: elasticdl COMMAND [FLAGS]", ""]
    for title, group in itertools.groupby(COMMANDS.values(), lambda command: command.group):
        lines += [bold(title), *_table([(command.name, command.about) for command in group], 12), ""]
    lines += [
        bold("Options"),
        *_table((("--help", "Show this page; elasticdl COMMAND --help shows a command's."),), 12),
        *_table((("--version", "Show the version."),), 12),
    ]
    return "\n".join(lines)


def command_help(command: str, everything: bool) -> str:
    """What `elasticdl train --help` shows, or `--help_all` when everything is wanted."""
    from elasticdl.job.spec import GROUPS, knobs  # here, so that the overview starts without pydantic

    mine = [k for k in knobs().values() if k.belongs_to(command)]
    shown = [k for k in mine if everything or k.common]
    lines = [f"{bold('Usage')}: elasticdl {command} [-f FILE] [FLAGS]", "", COMMANDS[command].about, ""]
    for group in GROUPS:
        rows = [(_left(k), _right(k)) for k in shown if k.group == group.title]
        if rows:
            lines += [bold(group.title), *_table(rows, 30), ""]
    lines += [bold("Options"), *_table(OPTIONS, 30), "", bold("Example")]
    lines += _continued(EXAMPLES[command])
    if not everything:
        more = f"{len(mine) - len(shown)} more flags: elasticdl {command} --help_all."
        lines += ["", *textwrap.wrap(f"{more} Dashes mean the same as underscores.", width())]
    return "\n".join(lines)


def _left(knob: Knob) -> str:
    choices = "|".join(knob.choices)
    return f"{knob.flag} {knob.metavar or (choices if len(choices) <= 30 else 'CHOICE')}"


def _right(knob: Knob) -> str:
    text = knob.help
    if len("|".join(knob.choices)) > 30:
        text += f" One of {', '.join(knob.choices)}."
    if knob.aliases:
        text += f" Also written {', '.join('--' + a for a in knob.aliases)}."
    if knob.gone:
        return f"{text} No longer used: {knob.gone}."
    if knob.local:
        text += " Only on Kubernetes."
    if isinstance(knob.later, str):
        text += " Not in this release yet."
    elif knob.later:
        text += f" Not in this release yet: {', '.join(knob.later)}."
    default = knob.spell(knob.default)
    return f"{text} (default: {default})" if default else text


def _table(rows: Iterable[tuple[str, str]], column: int) -> list[str]:
    lines: list[str] = []
    for left, right in rows:
        wrapped = textwrap.wrap(right, width() - column - 4, break_on_hyphens=False) or [""]
        if len(left) <= column:
            lines.append(f"  {left:<{column}}  {wrapped.pop(0)}")
        else:
            lines.append(f"  {left}")
        lines += [" " * (column + 4) + line for line in wrapped]
    return lines


def _continued(command_line: str) -> list[str]:
    """A long command line over several lines, as a user types it."""
    wrapped = textwrap.wrap(command_line, width() - 6, break_on_hyphens=False, break_long_words=False)
    return [
        ("  " if i == 0 else "    ") + line + (" \\" if i < len(wrapped) - 1 else "") for i, line in enumerate(wrapped)
    ]

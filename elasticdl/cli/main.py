"""The `elasticdl` command: finds the command that is asked for, runs it, and reports problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from elasticdl import __version__
from elasticdl.cli import help as help_texts
from elasticdl.cli.commands import COMMANDS
from elasticdl.errors import ElasticDLError, Problem, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0 done, 1 failed, 2 the request is wrong, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    try:
        code = _dispatch(command, words[1:])
        sys.stdout.flush()  # here, where a reader that went away is still caught
        return code
    except ElasticDLError as error:
        _complain(command, error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader went away: elasticdl logs | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(command: str, words: list[str]) -> int:
    if command == "help" and words:
        command, words = words[0], ["--help"]
    if command in ("--help", "-h", "help") and not words:
        print(help_texts.overview(__version__))
        return 0
    if command in ("--version", "version"):
        print(f"elasticdl {__version__}")
        return 0
    if command not in COMMANDS:
        raise UsageError([_unknown(command)])
    return COMMANDS[command].run(words)


def _unknown(command: str) -> Problem:
    from elasticdl.job.invalid import nearest

    if command.startswith("-"):
        return Problem(f"elasticdl {command}", "", "begins with a flag", "Write elasticdl COMMAND, then flags.")
    meant = nearest(command, COMMANDS)
    remedy = f"Did you mean elasticdl {meant}?" if meant else "See elasticdl --help."
    return Problem(f"elasticdl {command}", "", "unknown command", remedy)


def _complain(command: str, error: ElasticDLError) -> None:
    if isinstance(error, UsageError) and len(error.problems) > 1:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        print(f"elasticdl {command}: {len(error.problems)} problems\n{lines}", file=sys.stderr)
    else:
        text = str(error)
        print(text if text.startswith("elasticdl ") else f"elasticdl {command}: {text}", file=sys.stderr)

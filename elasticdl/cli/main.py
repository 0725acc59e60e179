"""The `elasticdl` command: a table of commands. Finds the one that is asked for, runs it, and reports problems.

A command's module is imported only when it runs, so that `elasticdl --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl import __version__
from elasticdl.cli import help as help_texts
from elasticdl.errors import ElasticDLError, Problem, UsageError

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True)
class Command:
    """A row of the table.

    Its module brings `add_arguments(parser)` and `run(args)`; where the flags are a job's knobs, `run(command, words)`.
    Without a module, the command is not part of this release.
    """

    name: str
    group: str
    about: str
    module: str = ""
    knobs: bool = False

    def parser(self) -> argparse.ArgumentParser:
        """The parser of its arguments, where they are not knobs."""
        import argparse

        parser = argparse.ArgumentParser(prog=f"elasticdl {self.name}", description=self.about)
        importlib.import_module(self.module).add_arguments(parser)
        return parser

    def run(self, words: list[str]) -> int:
        """Run it with these words of the command line; returns the exit code."""
        if not self.module:
            what = "not part of this release yet"
            raise UsageError([Problem(f"elasticdl {self.name}", "", what, "See elasticdl --help for what is.")])
        module = importlib.import_module(self.module)
        if self.knobs:
            return int(module.run(self.name, words))
        try:
            return int(module.run(self.parser().parse_args(words)))
        except SystemExit as stop:  # argparse has already said why
            return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2


RUN, LOOK_AFTER, PREPARE = "Run a job", "Look after jobs", "Prepare"
_HERE = "elasticdl.cli.commands"
_LATER = "(not in this release yet)"

COMMANDS = {
    command.name: command
    for command in (
        Command("train", RUN, "Train a model over workers that may come and go.", f"{_HERE}.job", knobs=True),
        Command("evaluate", RUN, f"Evaluate a trained model {_LATER}.", f"{_HERE}.job", knobs=True),
        Command("predict", RUN, f"Run a trained model over data {_LATER}.", f"{_HERE}.job", knobs=True),
        Command("run", RUN, f"Run a program of your own elastically {_LATER}."),
        Command("list", LOOK_AFTER, "List the jobs.", f"{_HERE}.list"),
        Command("status", LOOK_AFTER, "Show a job: progress, replicas, and decisions with reasons.", f"{_HERE}.status"),
        Command("logs", LOOK_AFTER, "Show the log of a job's replicas; -f follows it.", f"{_HERE}.logs"),
        Command("stop", LOOK_AFTER, "Stop a job gracefully, with a checkpoint.", f"{_HERE}.stop"),
        Command("scale", LOOK_AFTER, "Change the number of workers or servers while a job runs.", f"{_HERE}.scale"),
        Command("top", LOOK_AFTER, "Watch what the replicas of running jobs use.", f"{_HERE}.top"),
        Command(
            "chaos",
            LOOK_AFTER,
            "Inject faults into a running job, by a seed, and report the outcome.",
            "elasticdl.cli.chaos.command",
        ),
        Command("data", PREPARE, "Convert and inspect data files.", f"{_HERE}.data"),
        Command("zoo", PREPARE, "Make images of your models: zoo init, build, push.", "elasticdl.cli.zoo.command"),
    )
}


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
        print(help_texts.overview(COMMANDS.values(), __version__))
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
        return Problem(command, "", "stands where a command belongs", "Write elasticdl COMMAND first, then its flags.")
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

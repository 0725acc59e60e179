"""The table of commands. Each is one row here and one module, which is imported only when the command runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.errors import Problem, UsageError

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
        """Run it with the rest of the command line; returns the exit code."""
        if not self.module:
            what = "is not part of this release yet"
            raise UsageError([Problem(f"elasticdl {self.name}", "", what, "See elasticdl --help for what is.")])
        module = importlib.import_module(self.module)
        if self.knobs:
            return int(module.run(self.name, words))
        try:
            return int(module.run(self.parser().parse_args(words)))
        except SystemExit as stop:  # argparse has printed why
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

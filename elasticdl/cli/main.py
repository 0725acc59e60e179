"""The `elasticdl` command: finds the subcommand, runs it, and says what went wrong in plain words.

Subcommands are imported only when they run, so that `elasticdl --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from elasticdl import __version__
from elasticdl.cli import help as help_texts
from elasticdl.errors import ElasticDLError, Problem, UsageError

if TYPE_CHECKING:
    from elasticdl.job.resolve import Resolved

GROUPS = {
    "Run a job": {
        "train": "Train a model over workers that may come and go.",
        "evaluate": "Evaluate a trained model (not in this release yet).",
        "predict": "Run a trained model over data (not in this release yet).",
        "run": "Run a program of your own elastically (not in this release yet).",
    },
    "Look after jobs": {
        "list": "List the jobs.",
        "status": "Show a job: progress, replicas, decisions with their reasons.",
        "logs": "Show the log of a job's replicas; -f follows it.",
        "stop": "Stop a job gracefully, with a checkpoint.",
        "scale": "Change the number of workers or servers while a job runs.",
        "top": "Watch what the replicas of running jobs use.",
        "chaos": "Disturb a running job on purpose, by a seed, and report what came of it.",
    },
    "Prepare": {
        "data": "Convert and inspect data files.",
        "zoo": "Make images of your models: zoo init, build, push.",
    },
}
JOB_COMMANDS = ("train", "evaluate", "predict")
LOOKING_AFTER = ("list", "status", "logs", "stop")
NOT_BUILT = {
    "run": "running a program of your own",
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
    if command in ("--help", "-h", "help") and not words:
        print(help_texts.overview(GROUPS, __version__))
        return 0
    if command == "help":
        return _dispatch(words[0], ["--help"])
    if command in ("--version", "version"):
        print(f"elasticdl {__version__}")
        return 0
    if command in JOB_COMMANDS:
        return _job(command, words)
    if command in (*LOOKING_AFTER, "scale", "top", "chaos", "data", "zoo"):
        return _with_argparse(command, words)
    if command in NOT_BUILT:
        what = f"{NOT_BUILT[command]} is not part of this release yet"
        raise UsageError([Problem(f"elasticdl {command}", "", what, "See elasticdl --help for what is.")])
    raise UsageError([_unknown(command)])


def _job(command: str, words: list[str]) -> int:
    from elasticdl.cli import flags

    wanted = flags.wants_help(words)
    if wanted:
        print(help_texts.command_help(command, everything=wanted == "all"))
        return 0
    request = flags.read_request(words, command)
    if request.dry_run is not None:
        return _dry_run(request.resolved, request.dry_run, request.context)
    if request.resolved.require().runtime == "kubernetes":
        from elasticdl.cli import submit

        return submit.run(request.resolved, request.context)
    from elasticdl.cli import train

    return train.run(request.resolved)


def _dry_run(resolved: Resolved, form: Literal["yaml", "json"], context: str | None) -> int:
    from elasticdl.cli.dry_run import show

    said: list[str] = []
    possible = not (resolved.problems or resolved.later)
    if form == "yaml" and possible and resolved.spec.runtime == "kubernetes":
        import asyncio

        from elasticdl.cli.submit import ask

        said = asyncio.run(ask(resolved.spec, context))
    print(show(resolved, form, said))
    return 0


def _with_argparse(command: str, words: list[str]) -> int:
    import argparse

    about = next(commands[command] for commands in GROUPS.values() if command in commands)
    parser = argparse.ArgumentParser(prog=f"elasticdl {command}", description=about)
    try:
        if command == "data":
            from elasticdl.cli import data

            data.add_arguments(parser)
            return data.run(parser.parse_args(words))
        if command == "zoo":
            from elasticdl.cli.zoo import command as zoo

            zoo.add_arguments(parser)
            return zoo.run(parser.parse_args(words))
        if command == "chaos":
            from elasticdl.cli.chaos import command as chaos

            chaos.add_arguments(parser)
            return chaos.run(parser.parse_args(words))
        if command == "scale":
            from elasticdl.cli import scale

            scale.add_arguments(parser)
            return scale.run(parser.parse_args(words))
        if command == "top":
            from elasticdl.cli import top

            top.add_arguments(parser)
            return top.run(parser.parse_args(words))
        from elasticdl.cli import jobs

        jobs.add_arguments(command, parser)
        return jobs.run(command, parser.parse_args(words))
    except SystemExit as stop:  # argparse has already said why
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2


def _unknown(command: str) -> Problem:
    from elasticdl.job.invalid import nearest

    if command.startswith("-"):
        return Problem(command, "", "stands where a command belongs", "Write elasticdl COMMAND first, then its flags.")
    meant = nearest(command, [name for commands in GROUPS.values() for name in commands])
    remedy = f"Did you mean elasticdl {meant}?" if meant else "See elasticdl --help."
    return Problem(f"elasticdl {command}", "", "unknown command", remedy)


def _complain(command: str, error: ElasticDLError) -> None:
    if isinstance(error, UsageError) and len(error.problems) > 1:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        print(f"elasticdl {command}: {len(error.problems)} problems\n{lines}", file=sys.stderr)
    else:
        text = str(error)
        print(text if text.startswith("elasticdl ") else f"elasticdl {command}: {text}", file=sys.stderr)

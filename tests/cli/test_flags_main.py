"""The command itself: exit codes, messages without tracebacks, and what is imported for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl import __version__
from elasticdl.cli.commands import COMMANDS
from elasticdl.cli.main import main

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "keras", "grpc", "rich", "numpy", "zmq", "pyarrow", "tensorflow", "jax")


def modules_after(*argv: str) -> set[str]:
    """The top-level modules that a command line imports, in a process of its own."""
    program = (
        "import json, sys; from elasticdl.cli.main import main; main(sys.argv[1:]); "
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy_and_not_even_pydantic() -> None:
    assert modules_after("--help") & {*HEAVY, "pydantic", "yaml", "argparse"} == set()


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--help"],
        ["train", "--help_all"],
        ["train", "--model_def=a.b.c", "--training_data=d", "--dry_run"],
        ["train", "--num_workers=0"],
    ],
    ids=" ".join,
)
def test_help_dry_run_and_refusals_import_nothing_heavy(argv: list[str]) -> None:
    assert modules_after(*argv) & set(HEAVY) == set()


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"elasticdl {__version__}\n"


def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "elasticdl", "train", "--num_workers=0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--num_workers=0: below 1" in done.stderr
    assert done.stdout == ""


def test_an_unknown_command_is_named_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "elasticdl trian: unknown command. Did you mean elasticdl train?\n"
    assert main(["--num_workers=2", "train"]) == 2
    assert capsys.readouterr().err.startswith("elasticdl --num_workers=2: begins with a flag. Write elasticdl COMMAND")
    assert main(["scale", "job"]) == 2
    assert capsys.readouterr().err.startswith("elasticdl scale: no change given. Give --ps N")


@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if not command.module])
def test_a_command_of_a_later_release_says_so_by_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "anything"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"elasticdl {command}: ") and "is not part of this release yet" in said


def test_every_command_is_either_built_or_says_that_it_is_not() -> None:
    for name, command in COMMANDS.items():
        assert ("not in this release yet" in command.about) == (name in {"run", "evaluate", "predict"}), name


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_evaluate_and_predict_are_described_and_refused_by_name(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"evaluate": "--validation_data=d", "predict": "--prediction_data=d"}[command]
    words = [command, "--model_def=a.b.c", data, "--checkpoint_dir_for_init=c"]
    assert main([*words, "--dry_run"]) == 0
    assert f"elasticdl {command}: what differs" in capsys.readouterr().out
    assert main(words) == 2
    assert "not part of this release yet" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = "import sys; from elasticdl.cli.main import main; sys.exit(main(['train', '--help_all']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait() == 0

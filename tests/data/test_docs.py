"""docs/data.md: its programs run, its commands parse, and what it promises about speed was measured."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.cli.commands.data import add_arguments

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^elasticdl data (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_on_the_page_runs(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_the_page_parses(command: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(shlex.split(command, comments=True)).data_command in command


def test_the_measured_speeds_are_those_the_page_speaks_of() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "read_records.json").read_text())["readers"]
    assert measured["recordio snappy"]["records_per_cpu_second_median"] > 1_000_000
    assert measured["recordio snappy"]["range_512_ms_median"] < 2

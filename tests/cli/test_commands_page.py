"""The reference page of the commands that look after jobs names every flag that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticdl.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"


@pytest.mark.parametrize("command", ["list", "status", "logs", "stop", "scale", "top"])
def test_every_flag_is_on_the_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    flags = set(re.findall(r"(?<![\w-])--?[a-z]\w*", capsys.readouterr().out)) - {"-h", "--help"}
    _, _, rest = PAGE.read_text().partition(f"## `elasticdl {command}")
    own = rest.partition("\n## ")[0]
    where = PAGE.read_text().partition("## Which job is meant")[2].partition("\n## ")[0]
    assert flags and all(f"`{flag}" in own + where for flag in flags), flags

"""The help: grouped, complete, and as wide as the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.cli import help as help_texts
from elasticdl.cli.commands import COMMANDS
from elasticdl.cli.main import main
from elasticdl.job.spec import GROUPS, knobs

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[60, 80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("wide")
def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        for name, command in COMMANDS.items():
            assert f"  {name}" in shown and command.about.split(" (")[0].split(";")[0] in shown


@pytest.mark.usefixtures("wide")
def test_help_shows_the_common_flags_and_says_where_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 100
    for knob in knobs().values():
        assert (f"  {knob.flag} " in shown) == (knob.common and knob.belongs_to("train")), knob.name
    assert "more flags: elasticdl train --help_all" in shown


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_all_shows_every_flag_of_the_command_in_its_group(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help_all"]) == 0
    sections: dict[str, str] = {}
    title = ""
    for line in capsys.readouterr().out.splitlines():
        if line and not line.startswith(" "):
            title = line
        sections[title] = sections.get(title, "") + " " + line
    for knob in knobs().values():
        section = " ".join(sections.get(knob.group, "").split())
        assert (f" {knob.flag} " in section) == knob.belongs_to(command), knob.name
        if knob.belongs_to(command):
            assert " ".join(knob.help.split()) in section
            default = knob.spell(knob.default)
            assert not default or knob.gone or f"(default: {default})" in section
            assert all(choice in section for choice in knob.choices)
            assert all(f"--{alias}" in section for alias in knob.aliases)


def test_no_line_is_wider_than_the_terminal(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [help_texts.overview("2.0"), help_texts.command_help("train", everything=True)]
    for line in "\n".join(texts).splitlines():
        unbreakable = line.startswith("    --") or line.strip().startswith(("--", "host_path=", "claim_name="))
        assert len(line) <= columns or unbreakable, line


def test_there_is_no_bold_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    assert "\033" not in capsys.readouterr().out


def test_headings_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert help_texts.bold("Model") == "\033[1mModel\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert help_texts.bold("Model") == "Model"


def test_every_group_has_a_title_of_its_own() -> None:
    titles = [part.title for part in GROUPS]
    assert len(set(titles)) == len(titles) and all(titles)


def test_the_reference_page_is_current() -> None:
    command = [sys.executable, "scripts/make_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The documentation is true: commands parse, flags and files exist, links lead somewhere, names are the code's."""

from __future__ import annotations

import argparse
import ast
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli import flags
from elasticdl.cli.commands import COMMANDS as CLI
from elasticdl.cli.main import main
from elasticdl.core.plan import Kind
from elasticdl.job import names
from elasticdl.job.loglines import evaluation_metrics
from elasticdl.job.spec import knobs, spellings
from tests.docs import pages
from tests.docs.pages import DOCS, PAGES, ROOT, Command, name_of

COMMANDS = [command for page in PAGES for command in pages.commands(page)]
MADE_LATER = {"build/kills.json", "build/chaos.json"}  # by `make test-kills` and `make test-chaos`, which take a while
OTHER_FLAGS = {
    *("pdeathsig", "build_arg", "mount", "dest"),  # of other programs
    *("flag", "num_w"),  # a stand-in; one that must not be taken for another
}


def _options(parser: argparse.ArgumentParser) -> set[str]:
    found = {option.lstrip("-") for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for sub in action.choices.values() for option in _options(sub)}
    return found


# Commands.


def test_the_pages_show_commands() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/data.md"} <= {command.page for command in COMMANDS}
    assert {words[0] for command in COMMANDS if (words := command.words)} >= {
        "train",
        "data",
        "list",
        "status",
        "logs",
        "stop",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_line_of_the_docs_is_understood(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("model_def: a.b.custom_model\ntraining_data: data\n")
    name, words = command.words[0], list(command.words[1:])
    if name in ("--version", "--help"):
        assert main([name]) == 0
    elif name == "train":
        request = flags.read_request([*words, "--dry_run"])
        assert not request.resolved.problems and not request.resolved.later
        assert main(["train", *words, "--dry_run"]) == 0, capsys.readouterr().err
    else:
        CLI[name].parser().parse_args(words)


def test_the_readme_shows_the_command_of_the_first_tutorial_on_local_processes() -> None:
    [shown] = [c for c in COMMANDS if c.page == "README.md" and c.words[0] == "train"]
    assert "--job_name=test-mnist" in shown.words
    assert not any(word.startswith("--image_name") for word in shown.words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_flag_that_a_page_names_exists(page: Path) -> None:
    known = {*spellings(), *flags.OPTIONS, "version", *OTHER_FLAGS}
    commands = [command for command in CLI.values() if command.module and not command.knobs]
    known |= {option for command in commands for option in _options(command.parser())}
    assert pages.flags(page) <= known, pages.flags(page) - known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join([*pages.inline(page), *(text for language, text in pages.blocks(page) if not language)])
    assert set(re.findall(r"^make ([\w-]+)", code, re.MULTILINE)) <= targets


# Links, files, programs.


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in pages.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in pages.anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    folders = ("elasticdl", "tests", "benchmarks", "scripts", "native", "model_zoo", "docs")
    for text in pages.inline(page):
        if re.fullmatch(rf"(?:{'|'.join(folders)})/[\w./-]*", text) and text not in MADE_LATER:
            written_by_user = text.startswith("model_zoo/mnist/mine")
            assert written_by_user or (ROOT / text).exists(), text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_program_of_a_page_is_python(page: Path) -> None:
    for language, text in pages.blocks(page):
        if language == "python":
            ast.parse(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_place_on_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.~])/(?:tmp|work|home|opt|root|Users)/\S*", page.read_text())


# The README.


def test_the_readme_has_both_commands_and_what_they_need_at_its_top() -> None:
    top = "\n".join((ROOT / "README.md").read_text().splitlines()[:12])
    assert all(text in top for text in ("make demo", "make test", "Python 3.11", "C++ compiler"))


def test_the_readme_shows_lines_that_the_code_writes() -> None:
    shown = [text for language, text in pages.blocks(ROOT / "README.md") if "Evaluation metrics" in text]
    assert len(shown) == 1
    assert evaluation_metrics(500, {"accuracy": 0.9245}) in shown[0].splitlines()
    code = "\n".join(path.read_text() for path in (ROOT / "elasticdl").rglob("*.py"))
    for piece in ("since no --image_name is given", "initial worker", "Its replicas keep running"):
        assert piece in shown[0] and piece in code


def test_what_the_readme_calls_built_is_built_and_the_rest_is_not() -> None:
    status = pages.prose(ROOT / "README.md").partition("## Status")[2]
    built, _, missing = status.partition("**Not yet:**")
    commands = set(CLI)
    not_built = {"run", "evaluate", "predict"}
    assert {word for word in re.findall(r"`(?:elasticdl )?(\w+)`", built) if word in commands} == commands - not_built
    named = {word for word in re.findall(r"`(\w+)`", missing.partition("##")[0]) if word in commands}
    assert named and named <= not_built


def _measured(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def _text(path: str) -> str:
    return " ".join((ROOT / path).read_text().split())


def test_the_readme_shows_numbers_that_were_measured() -> None:
    readme = _text("README.md")
    total = _measured("chaos")["total"]
    kills = sum(count for what, count in total["delivered"].items() if what.endswith(" kill"))
    assert not total["failed"] and f"{total['runs']} jobs under seeded chaos, with {kills} kills" in readme
    recovery = _measured("allreduce_recovery")["kill2"]
    ours, theirs = (recovery[name]["median"]["next commit"] for name in ("elasticdl", "torchrun"))
    assert f"{ours:.2f} s after a `kill -9`; torchrun needs {theirs:.1f} s" in readme
    assert recovery["elasticdl"]["median"]["survivors restarted"] == 0
    speeds = [run["samples/s"] for run in _measured("allreduce_throughput").values() if "samples/s" in run]
    ratios = [speed["elasticdl"] / speed["torchrun"] for speed in speeds]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times as many samples per second as DDP" in readme
    rows = _measured("row_store_pull")["uniform"]["million rows/s"]["row store"]["median"]
    assert f"{rows:.1f} million rows/s" in readme
    assert f"delays pushes by {_measured('ps_snapshots')['pause_ms_median']:.0f} ms" in readme
    assert f"finish {100 * _measured('two_jobs')['makespan shorter by']:.0f} % sooner" in readme


def test_the_pages_show_numbers_that_were_measured() -> None:
    guarantees, performance = _text("docs/guarantees.md"), _text("docs/performance.md")
    measured = _measured("read_records")["readers"]
    assert measured["recordio snappy"]["records_per_second_median"] > 1_000_000
    assert measured["recordio snappy"]["range_512_ms_median"] < 1
    kills = _measured("kills")
    jobs = f"{len(kills['runs'])} jobs with {kills['workers_killed']} workers and {kills['masters_killed']} masters"
    assert jobs in guarantees
    total = _measured("chaos")["total"]
    struck: Counter[str] = Counter()
    for what, count in total["delivered"].items():
        struck[what.split()[1]] += count
    assert (
        not total["failed"]
        and f"{total['runs']} jobs under seeded chaos: {struck['kill']} kills, {struck['terminate']} terminations, "
        f"{struck['pause']} pauses and {struck['cut']} cut connections of workers, servers and masters, "
        f"and deaths at {len(total['fault_points_hit'])} named points"
        in guarantees
    )
    for name, words in (("pull", "pulled"), ("push", "pushed")):
        median = _measured(f"row_store_{name}")["uniform"]["million rows/s"]["row store"]["median"]
        assert re.search(rf"{median:.1f} million(?: rows/s)? {words}", performance)
    assert f"pushes wait {_measured('ps_snapshots')['pause_ms_median']:.0f} ms" in performance


# Lines.


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_a_page_can_be_read(page: Path) -> None:
    """Blocks, which show output as it is, and rows of tables cannot be wrapped."""
    lines = pages.prose(page).splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.lstrip().startswith("|")]


# Names.


def _glossary() -> list[str]:
    text = (DOCS / "concepts.md").read_text().partition("## Glossary")[2]
    return [row.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) if row.strip() != "word"]


def test_the_glossary_is_sorted_and_names_each_word_once() -> None:
    words = _glossary()
    assert words == sorted(words) and len(words) == len(set(words))


def test_the_glossary_has_the_words_of_the_code() -> None:
    words = {word for entry in _glossary() for word in entry.split(", ")}
    roles = {names.MASTER, names.WORKER, names.PS}
    kinds = {kind.value for kind in Kind} & {"probe", "audit", "export"}
    assert {*roles, *kinds, "shard", "lease", "attempt", "version", "step", "record", "view", "cut"} <= words
    assert {"world", "generation", "virtual worker", "standby", "part", "pulse", "keeper", "timeline"} <= words
    assert not {"pod", "node", "task", "helper", "manager"} & words


def test_the_architecture_lists_every_package_and_every_machine() -> None:
    page = (DOCS / "architecture.md").read_text()
    folders = page.partition("## Folders")[2]
    for path in sorted((ROOT / "elasticdl").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            assert f"`elasticdl/{path.name}/`" in folders or f"`{path.name}/`" in folders, path.name
    data_only = {"__init__", "events", "commands"}
    for path in (ROOT / "elasticdl" / "core").glob("*.py"):
        assert path.stem in data_only or f"`core/{path.name}`" in page, path.name
    for path in (ROOT / "elasticdl" / "strategies").glob("*/core/*.py"):
        assert path.stem == "__init__" or f"`{path.name}`" in page, path


def test_the_walks_of_the_architecture_lead_through_files_that_exist_and_are_as_long_as_they_say() -> None:
    text = _text("docs/architecture.md").partition("## Three walks")[2].partition("By the same count")[0]
    walks = re.split(r"\*\*(?=A record|A worker|A command)", text)[1:]
    assert len(walks) == 3
    for walk in walks:
        walk = walk.partition("With all-reduce")[0]
        files = {name for name in re.findall(r"`([\w/]+(?:\.py|/))`", walk) if name != "native/"}
        assert all((ROOT / "elasticdl" / name).is_file() for name in files), files
        hops = re.search(r"\*\*[^:]*: (\d+) hops", walk)
        assert hops is not None and int(hops[1]) == len(files) + ("`native/`" in walk), (len(files), walk)


def test_the_page_on_layers_shows_the_layers_that_the_linter_holds() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    [shown] = [text for _, text in pages.blocks(DOCS / "decisions" / "layers.md")]
    assert shown.splitlines() == [layer.replace("elasticdl.", "") for layer in layers]


def test_the_page_on_what_comes_later_names_flags_that_are_refused() -> None:
    for text in pages.inline(DOCS / "decisions" / "later.md"):
        if text.startswith("--"):
            name, _, value = text.removeprefix("--").partition("=")
            knob = knobs()[name]
            assert knob.feature_missing(_another(knob.default, value)) is not None, text


def _another(default: object, value: str) -> object:
    """A value other than the default."""
    if value in ("true", "false"):
        return value == "true"
    if value:
        return value
    return default + 1 if isinstance(default, int) else "something"


# Decisions.


def test_the_index_of_decisions_has_one_line_for_every_page() -> None:
    index = DOCS / "decisions" / "README.md"
    lines = [line for line in index.read_text().splitlines() if line.startswith("- ")]
    listed = [re.findall(r"\]\(([^)]+)\)", line) for line in lines]
    assert all(len(found) == 1 for found in listed)
    existing = {path.name for path in index.parent.glob("*.md")} - {"README.md"}
    assert sorted(found[0] for found in listed) == sorted(existing)


def test_every_dependency_has_a_decision() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(path.read_text() for path in (DOCS / "decisions").glob("*.md")).lower()
    for requirement in project["dependencies"]:
        package = re.split(r"[<>=\[]", requirement)[0]
        assert package.lower() in text, f"{package} has no page in docs/decisions"


def test_every_page_is_reached_from_the_index() -> None:
    index = DOCS / "README.md"
    reached, front = {index.resolve()}, [index]
    while front:
        page = front.pop()
        for link in pages.links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached:
                reached.add(target)
                front.append(target)
    missing = [name_of(page) for page in DOCS.rglob("*.md") if page.resolve() not in reached]
    assert not missing

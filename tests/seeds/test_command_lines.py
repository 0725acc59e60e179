"""Every command line of the tutorials works, or docs/migrating.md says what to type instead."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from elasticdl.cli import by_hand, flags
from elasticdl.cli.zoo import command as zoo
from elasticdl.frameworks.model_file import ModelRequest, locate
from elasticdl.job import loglines, names
from tests.seeds.command_lines import COPY, SEEDS, blocks, in_seeds

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
LINES = COPY.read_text().splitlines()
# Programs that are not ours, and what they are asked concerns nothing of ours.
OTHERS = ("cd", "eksctl", "eval", "export", "gcloud", "git", "minikube", "mkdir", "sed", "wget", "EDL_REPO", "cat")
KUBECTL = ("get", "delete", "scale", "cp")
LATER = ("003", "004")  # Estimators and torchelastic: the table says what there is instead


@cache
def table() -> tuple[re.Pattern[str], ...]:
    """What stands in the first column of the tables, `…` for any text."""
    rows = re.findall(r"^\|([^|]+)\|", (ROOT / "docs" / "migrating.md").read_text(), re.MULTILINE)
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    return tuple(re.compile(re.escape(span).replace("…", ".*")) for span in spans)


def in_table(line: str) -> bool:
    return any(pattern.fullmatch(line) for pattern in table())


def test_the_copy_holds_every_command_line_of_the_tutorials() -> None:
    if not SEEDS.exists():
        pytest.skip("the tutorials are not beside this checkout; the copy is walked instead")
    assert in_seeds() == LINES


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_works_or_the_table_says_what_to_type(line: str) -> None:
    page, command = line[:3], line[4:]
    if in_table(command):
        return
    program = re.split(r"[ =]", command)[0]
    if program in OTHERS:
        return
    assert page not in LATER or program in ("elasticdl", "kubectl"), f"docs/migrating.md has no row for {command}"
    works(command)


def works(command: str) -> None:
    """As far as can be told without a cluster and an engine; tests/kubernetes and tests/zoo run them."""
    words = shlex.split(os.path.expandvars(command))
    match words:
        case ["elasticdl", "train", *rest]:
            assert flags.read_request(rest).resolved.problems == ()
        case ["elasticdl", "zoo", *rest]:
            parser = argparse.ArgumentParser()
            zoo.add_arguments(parser)
            parser.parse_args(rest)
        case ["docker", "build", *rest]:
            dockerfile = (ROOT / rest[rest.index("-f") + 1]).read_text()
            for given in (rest[i + 1] for i, word in enumerate(rest) if word == "--build-arg"):
                assert f"ARG {given.partition('=')[0]}" in dockerfile
        case ["docker", "run", *rest]:
            image = next(word for word in rest if word.startswith("elasticdl"))
            assert f"-t {image} " in f"{(ROOT / 'scripts/travis/build_images.sh').read_text()} "
            if rest[-2] == "-c":
                works(rest[-1])
        case ["python", "-m", module, *rest]:
            assert ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file()
            spec = by_hand.master_job(rest).require() if "master" in module else by_hand.worker_job(rest)
            request = ModelRequest(str(ROOT / spec.model_zoo), str(spec.model_def))
            assert locate(request).file.is_relative_to(ROOT / "elasticdl" / "python")
        case ["kubectl", "apply" | "create", "-f", path]:
            found = MANIFESTS.parent / path if "/" in path else next(MANIFESTS.rglob(path))
            assert all(thing["kind"] for thing in yaml.safe_load_all(found.read_text()))
        case ["kubectl", "logs", pod, "|", "grep", word]:
            _, role, _ = names.parse_replica_name(pod)
            said = {
                names.MASTER: [loglines.EVALUATION_STARTED, loglines.evaluation_metrics(50, {"accuracy": 0.77}),
                               loglines.EVALUATION_STOPPED],
                names.WORKER: [loglines.loss_line(0.083, 100)],
            }[role]  # fmt: skip
            assert all(word in line for line in said)
        case ["kubectl", verb, *_]:
            assert verb in KUBECTL
        case [script] if "scripts/" in script:
            works_script(script)
        case [script, _] if "scripts/" in script:
            works_script(script)
        case _:
            pytest.fail(f"neither known to work nor in the table of docs/migrating.md: {command}")


def works_script(script: str) -> None:
    assert os.access(ROOT / script.lstrip("/"), os.X_OK)


def test_the_manifests_that_a_tutorial_shows_are_ours() -> None:
    if not SEEDS.exists():
        pytest.skip("the tutorials are not beside this checkout")
    page = next(SEEDS.glob("001*")).read_text()
    shown = [yaml.safe_load(block) for block in blocks(page, "yaml")]
    ours = [thing for path in MANIFESTS.rglob("*.yaml") for thing in yaml.safe_load_all(path.read_text())]
    assert len(shown) == 4
    assert [thing for thing in shown if thing not in ours] == []


def test_every_file_of_a_manifest_of_the_examples_is_a_job_that_resolves() -> None:
    for name in ("elasticdl-demo-minikube.yaml", "elasticdl-demo-k8s.yaml"):
        (container,) = yaml.safe_load((MANIFESTS / "examples" / name).read_text())["spec"]["containers"]
        assert container["command"] == ["elasticdl", "train"]
        (own,) = container["env"]
        assert own["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
        words = [word.replace(f"$({own['name']})", "team") for word in container["args"]]  # as the kubelet does
        resolved = flags.read_request(words).resolved
        assert resolved.problems == ()
        assert resolved.spec.namespace == "team"
        assert (resolved.spec.image_name, resolved.spec.image_pull_policy) == (
            container["image"], container["imagePullPolicy"],
        )  # fmt: skip


@pytest.mark.parametrize(("answer", "runs"), [("False", ["test_plain"]), ("True", ["test_cluster", "test_plain"])])
def test_the_old_place_of_the_tests_runs_the_tests_with_or_without_a_cluster(
    tmp_path: Path, answer: str, runs: list[str]
) -> None:
    """In a tree like this one, with three tests."""
    old = tmp_path / "elasticdl" / "python" / "tests"
    shutil.copytree(ROOT / "elasticdl" / "python" / "tests", old, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    tests = [
        f"@pytest.mark.{mark}\ndef test_{name}(): pass"
        for mark, name in (("kubernetes", "cluster"), ("filterwarnings", "plain"), ("long", "whole_job"))
    ]
    (tmp_path / "tests" / "test_three.py").write_text("\n".join(["import pytest", *tests]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "elasticdl/python/tests"],
        cwd=tmp_path, env={**os.environ, "K8S_TESTS": answer}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert re.findall(r"PASSED tests/test_three.py::(\w+)", done.stdout) == runs, done.stdout + done.stderr

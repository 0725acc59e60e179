"""The transcripts of docs/tutorials show the commands of the old tutorials, and what those of theirs show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.seeds.command_lines import COPY

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tutorials"


def page(story: str) -> str:
    return (PAGES / f"{story}.md").read_text()


def typed(text: str, start: str) -> list[list[str]]:
    """The words of the commands of a transcript, or of the old tutorials, that start so."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [shlex.split(line) for line in re.findall(rf"^(?:\$ |\d+ )({re.escape(start)}.*)$", joined, re.MULTILINE)]


def of_tutorial(number: str, start: str) -> list[list[str]]:
    return typed("\n".join(line for line in COPY.read_text().splitlines() if line.startswith(number)), start)


def test_the_first_tutorials_jobs_are_submitted_as_written() -> None:
    assert typed(page("one-node"), "elasticdl train") == of_tutorial("000", "elasticdl train")


def test_the_second_tutorials_job_differs_where_the_page_says() -> None:
    [ours], [theirs] = typed(page("coming-and-going"), "elasticdl train"), of_tutorial("001", "elasticdl train")
    changed = {word.partition("=")[0] for word in {*ours} ^ {*theirs}}
    requests = {f"--{role}_resource_request" for role in ("master", "ps", "worker")}
    assert changed == {"--image_name", "--image_pull_policy", *requests}


def test_master_and_worker_by_hand_are_started_as_written() -> None:
    ours = [words[-1] for words in typed(page("by-hand"), "docker run")]
    assert [shlex.split(line) for line in ours] == [shlex.split(w[-1]) for w in of_tutorial("002", "docker run --net")]


@pytest.mark.parametrize(
    ("story", "lines"),
    [
        ("one-node", [
            r"elasticdl-test-mnist-master +1/1 +Running", r"elasticdl-test-mnist-ps-0 +1/1 +Running",
            r"elasticdl-test-mnist-worker-0 +1/1 +Running", r".* Evaluation service started",
            r".* Evaluation metrics\[v=250\]: \{'accuracy': 0\.9\d+\}", r".* Evaluation service stopped",
            r"elasticdl-test-mnist-allreduce-worker-1 +1/1 +Running", r".* Loss = 0\.\d+, steps = 100",
            r"elasticdl-test-mnist-master +0/1 +Completed",
        ]),
        ("coming-and-going", [
            r"elasticdl-test-mnist-worker-4 +1/1 +Running", r"elasticdl-test-mnist-worker-\d +1/1 +Terminating",
            r"elasticdl-test-mnist-worker-\d +0/1 +Pending", r"test-nginx-\S+ +1/1 +Running",
            r".* 1 deleted, 3 preempted.*",
        ]),
        ("by-hand", [
            r"No --token_file is given.*", r".* Loss = [\d.]+, steps = 1$", r".* Evaluation metrics\[v=96\].*",
            "test succeeded.*",
        ]),
    ],
)  # fmt: skip
def test_a_transcript_shows_what_the_old_one_shows(story: str, lines: list[str]) -> None:
    text = page(story)
    assert [line for line in lines if not re.search(rf"^{line}", text, re.MULTILINE)] == []

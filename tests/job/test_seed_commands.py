"""The command lines of the seed documents, as a shell hands them over, resolve without a problem."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from elasticdl.cli.flags import read_request
from elasticdl.cli.main import main
from elasticdl.job.spec import JobSpec, spellings

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"
START = re.compile(r"elasticdl train |docker run --net=host ")


def blocks(text: str) -> list[str]:
    """Command lines with their continuations, verbatim."""
    found: list[list[str]] = []
    continued = False
    for line in text.splitlines():
        if continued and line and not line.startswith("```"):
            found[-1].append(line)
        elif START.match(line):
            found.append([line])
        else:
            continued = False
            continue
        continued = line.rstrip().endswith("\\")
    return ["\n".join(lines) for lines in found]


def words_of(block: str) -> list[str]:
    """What bash makes of a command line: the words that the command receives."""
    script = 'elasticdl() { printf "%s\\0" "$@"; }; docker() { printf "%s\\0" "$@"; }\n' + block + "\n"
    env = {**os.environ, "PROJECT_ID": "demo"}
    output = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    words = output.split("\0")[:-1]
    if words[0] == "train":
        return words[1:]
    inner = shlex.split(words[-1])  # docker run … bash -c "python -m … FLAGS"
    return inner[3:]


COPIED = blocks((HERE / "seed_commands.txt").read_text())


def test_the_copy_holds_every_command_line_of_the_seeds() -> None:
    if not SEEDS.exists():
        pytest.skip("the seed documents are not beside this checkout; the copy is tested instead")
    found = [block for seed in sorted(SEEDS.iterdir()) for block in blocks(seed.read_text())]
    assert sorted(found) == sorted(COPIED)


@pytest.mark.parametrize("block", [b for b in COPIED if b.startswith("elasticdl")], ids=lambda b: b[-60:])
def test_a_train_command_of_the_seeds_resolves_as_written(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(block)
    assert main(["train", *words, "--dry_run"]) == 0
    shown = JobSpec.model_validate(yaml.safe_load(capsys.readouterr().out))
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        knob = spellings()[name]
        assert getattr(shown, knob) == getattr(JobSpec.model_validate({knob: value}), knob), word


@pytest.mark.parametrize("block", [b for b in COPIED if b.startswith("elasticdl")], ids=lambda b: b[-60:])
def test_a_train_command_of_the_seeds_becomes_objects_of_a_cluster(
    block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = read_request(words_of(block)).resolved
    if resolved.later:
        pytest.skip(f"not part of this release yet: {resolved.later[0].where}")
    assert main(["train", *words_of(block), "--yaml=-"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    job = resolved.spec.job_name
    assert [(thing["kind"], thing["metadata"]["name"]) for thing in objects] == [
        ("ConfigMap", f"elasticdl-{job}"),
        ("Secret", f"elasticdl-{job}"),
        ("Service", f"elasticdl-{job}-master"),
        ("NetworkPolicy", f"elasticdl-{job}"),
        ("Pod", f"elasticdl-{job}-master"),
        ("Pod", f"elasticdl-{job}-keeper"),
    ]
    assert JobSpec.from_json(objects[0]["data"]["job.json"]) == resolved.spec


@pytest.mark.parametrize("block", [b for b in COPIED if b.startswith("docker")], ids=["master", "worker"])
def test_a_master_or_worker_started_by_hand_takes_its_old_flags(block: str) -> None:
    resolved = read_request([*words_of(block), "--dry_run"], "by-hand").resolved
    assert resolved.problems == ()
    assert resolved.spec.model_zoo == "elasticdl/python/examples"
    assert resolved.spec.model_def == "mnist_functional_api.custom_model"
    assert any("--codec_type=tf_example" in note for note in resolved.notes)


def test_the_older_spellings_of_the_master_mean_the_new_flags() -> None:
    block = next(b for b in COPIED if "master.main" in b)
    spec = read_request(words_of(block), "by-hand").resolved.spec
    assert spec.training_data == "/data/mnist/train"
    assert spec.validation_data == "/data/mnist/test"
    assert (spec.minibatch_size, spec.num_minibatches_per_task, spec.shard_records) == (10, 10, 100)
    assert not spec.asynchronous


def test_the_first_command_without_its_image_runs_here() -> None:
    words = [w for w in words_of(COPIED[0]) if not w.startswith("--image_name")]
    resolved = read_request(words).resolved
    spec = resolved.require()
    assert (spec.runtime, spec.job_name, spec.num_ps_pods, spec.asynchronous) == ("local", "test-mnist", 1, True)
    named = " ".join(resolved.notes)
    for flag in ("--image_pull_policy", "--volume", "--worker_resource_request"):
        assert flag in named


def test_what_is_left_of_a_line_continued_into_nothing_is_ignored() -> None:
    words = [*words_of(COPIED[0]), "\\", ""]
    assert read_request(words).resolved.problems == ()

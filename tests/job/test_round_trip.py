"""Any job survives JSON and the command line unchanged."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticdl.cli.flags import read_spec
from elasticdl.job.resolve import resolve
from elasticdl.job.resources import PrioritySpec, ResourceSpec, VolumeSpec
from elasticdl.job.spec import JobSpec, knobs

WORD = st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True)
LINE = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=15).filter(
    lambda t: t.strip() not in ("", "\\")
)
VALUE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=10)
RESOURCES = st.builds(
    ResourceSpec,
    cpu=st.none() | st.integers(1, 64_000).map(lambda m: m / 1000),
    memory=st.none() | st.integers(1, 2**40),
    extended=st.dictionaries(st.just("nvidia.com/gpu") | WORD.map("example.com/{}".format), st.integers(0, 8)).map(
        lambda d: tuple(sorted(d.items()))
    ),
).filter(lambda r: r != ResourceSpec())
PATH = st.from_regex(r"/[a-z0-9/._,=-]{0,10}", fullmatch=True)
VOLUME = st.builds(VolumeSpec, host_path=PATH, mount_path=PATH) | st.builds(
    VolumeSpec, claim_name=WORD, mount_path=PATH, sub_path=st.none() | WORD
)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "model_def": st.from_regex(r"[a-z]+(\.[a-z_-]+)*\.[a-z_]+", fullmatch=True),
    "model_file": WORD.map("zoo/{}.py".format),
    "worker_pod_priority": st.builds(PrioritySpec, WORD, st.floats(0, 1).map(lambda f: round(f, 3))),
    "populate_env_names": WORD,
    "cluster_spec_json": st.just('{"a": [1, "b c"]}'),
    "job_command": st.lists(LINE, min_size=1, max_size=3).map(shlex.join),
    "critical_worker_index": st.sampled_from(["none", "0:1", "1:0,3:1"]),
    "master_port": st.integers(0, 65535),
}
SYMBOLS = ("feed", "loss", "optimizer", "eval_metrics_fn", "callbacks", "custom_data_reader")
NAMED = ("job_name", "namespace", "prediction_outputs_processor", "image_name", "worker_image", "ps_image", *SYMBOLS)


def strategy(name: str) -> st.SearchStrategy[Any]:
    knob = knobs()[name]
    if name in SPECIAL:
        return SPECIAL[name]
    if name in NAMED or name.endswith("_pod_priority"):
        return WORD
    return {
        "true|false": st.booleans(),
        "choice": st.sampled_from(knob.choices or ("",)),
        "whole number": st.integers(1, 10**6),
        "number": st.floats(0.001, 1e6),
        "resources": RESOURCES,
        "pairs": st.dictionaries(WORD, VALUE, max_size=3),
        "volumes": st.lists(VOLUME, max_size=2, unique_by=lambda v: v.mount_path).map(tuple),
        "text": LINE,
    }[knob.kind]


JOBS = st.lists(st.sampled_from(sorted(knobs())), max_size=12, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: strategy(name) for name in names})
)


@settings(max_examples=200, deadline=None)
@given(JOBS)
def test_a_job_survives_json(values: dict[str, Any]) -> None:
    spec = JobSpec.model_validate(values)
    assert JobSpec.from_json(spec.to_json()) == spec


@settings(max_examples=200, deadline=None)
@given(JOBS, st.booleans())
def test_a_job_survives_the_command_line(values: dict[str, Any], apart: bool) -> None:
    spec = JobSpec.model_validate(values)
    words: list[str] = []
    for name, value in spec.given().items():
        knob = knobs()[name]
        spelled = knob.spell(value)
        words += (
            [knob.flag, spelled]
            if apart and not spelled.startswith("-") and spelled.strip()
            else [f"{knob.flag}={spelled}"]
        )
    again, problems = read_spec(words, "by-hand")
    assert problems == []
    assert again == spec


@settings(max_examples=100, deadline=None)
@example({"state_dir": "~0", "output": "~0/o"})
@given(JOBS)
def test_any_job_can_be_resolved_and_resolving_again_changes_nothing(values: dict[str, Any]) -> None:
    once = resolve(JobSpec.model_validate(values), env={"ELASTICDL_STATE_DIR": "/s"}, unique="u")
    assert resolve(once.spec, env={}, unique="v").spec == once.spec

"""JobSpec itself: frozen, closed, and read back from JSON with words for what is wrong."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from elasticdl.errors import UsageError
from elasticdl.job.spec import GROUPS, JobSpec, knobs, read_values, spellings


def test_a_job_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        JobSpec().num_workers = 3  # type: ignore[misc]


def test_every_field_is_a_knob_of_one_group() -> None:
    assert [*knobs(), "command"] == list(JobSpec.model_fields)
    assert {knob.group for knob in knobs().values()} == {part.title for part in GROUPS}


def test_no_two_knobs_share_a_name() -> None:
    names = [name for knob in knobs().values() for name in (knob.name, *knob.aliases)]
    assert len(names) == len(set(names)) == len(spellings())


def test_defaults_are_values_that_their_own_knob_takes() -> None:
    for knob in knobs().values():
        if spelled := knob.spell(knob.default):
            assert getattr(JobSpec.model_validate({knob.name: spelled}), knob.name) == knob.default


def test_a_copy_with_other_values_is_validated() -> None:
    spec = JobSpec(num_workers=3, seed=7)
    assert spec.with_values(seed=8) == JobSpec(num_workers=3, seed=8)
    with pytest.raises(ValidationError):
        spec.with_values(num_workers=0)


def test_json_with_something_wrong_names_it() -> None:
    text = json.dumps({**json.loads(JobSpec().to_json()), "num_workers": 0, "num_wokers": 1})
    with pytest.raises(UsageError) as caught:
        JobSpec.from_json(text)
    assert {problem.where for problem in caught.value.problems} == {"--num_workers", "--num_wokers"}
    with pytest.raises(UsageError, match=r"^job"):
        JobSpec.from_json("{not json")


def test_what_is_wrong_does_not_hide_the_rest() -> None:
    spec, problems, refused = read_values({"num_workers": 0, "seed": "x", "num_epochs": 3})
    assert refused == {"num_workers", "seed"} and len(problems) == 2
    assert (spec.num_workers, spec.num_epochs) == (2, 3)


def test_the_size_of_a_shard_follows_from_its_minibatches() -> None:
    assert JobSpec(minibatch_size=64, num_minibatches_per_task=2).shard_records == 128

"""Small values: pairs, names, command lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.job.invalid import Invalid, nearest
from elasticdl.job.spec import JobSpec, read_values
from elasticdl.job.values import read_pairs, spell_pairs


@pytest.mark.parametrize(
    ("text", "separator", "pairs"),
    [
        ("a=1; b=2", ";", {"a": "1", "b": "2"}),
        ("A=1,2,B=3", ",", {"A": "1,2", "B": "3"}),  # a comma inside a value, as the old client allowed
        ("A=x=y,B=", ",", {"A": "x=y", "B": ""}),
        ('sep=";"; columns=["a","b"]', ";", {"sep": ";", "columns": '["a","b"]'}),
        ("MSG=it's,B=2", ",", {"MSG": "it's", "B": "2"}),
        ('A="1,B=2",C=3', ",", {"A": "1,B=2", "C": "3"}),
        ("", ";", {}),
        (" ; ", ";", {}),
    ],
)
def test_pairs_are_read(text: str, separator: str, pairs: dict[str, str]) -> None:
    assert read_pairs(text, separator) == pairs


@pytest.mark.parametrize("text", ["a", "=1", "a=1;a=2"])
def test_wrong_pairs_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_pairs(text, ";")


@given(st.dictionaries(st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True), st.text(max_size=12)), st.sampled_from(";,"))
def test_any_pairs_survive_being_spelled_and_read(pairs: dict[str, str], separator: str) -> None:
    assert read_pairs(spell_pairs(pairs, separator), separator) == pairs


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("num_workers", "0", "below 1"),
        ("num_workers", "two", "not a whole number"),
        ("num_workers", "2.5", "not a whole number"),
        ("num_workers", True, "not a whole number"),
        ("minibatch_size", "-3", "below 1"),
        ("seed", "-1", "below 0"),
        ("master_port", "70000", "above 65535"),
        ("hang_seconds", "0", "not above 0"),
        ("hang_seconds", "soon", "not a number"),
        ("hang_seconds", "inf", "not a number"),
        ("shuffle", "maybe", "neither true nor false"),
        ("job_name", "Test_Job", "not a DNS label"),
        ("job_name", "x" * 60, "longer than 45 characters"),
        ("namespace", "a b", "not a DNS label"),
        ("model_def", "custom_model", "not a dotted path"),
        ("model_file", "model.txt", "not the path of a Python file"),
        ("loss", "my loss", "not a Python name"),
        ("image_name", "a b", "contains spaces"),
        ("populate_env_names", "(", "not a regular expression"),
        ("job_command", "echo 'open", "cannot be split into words"),
        ("cluster_spec_json", "{", "not JSON"),
        ("cluster_spec_json", "[1]", "not a JSON object"),
        ("critical_worker_index", "first", "not default, none or a list"),
        ("envs", "1A=x", "not a variable's name"),
        ("envs", {"A": ["x"]}, "more than one value for A"),
        ("log_level", "LOUD", "not one of DEBUG"),
        ("distribution_strategy", "Allreduce", "not one of"),
        ("training_data", ["a"], "not text"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_a_remedy(name: str, value: Any, what: str) -> None:
    _, problems, refused = read_values({name: value})
    (problem,) = problems
    assert problem.where == f"--{name}"
    assert what in problem.what
    assert len(problem.remedy) > 5
    assert refused == {name}


def test_values_are_taken_in_the_forms_people_write() -> None:
    spec = JobSpec.model_validate(
        {
            "num_workers": " 3 ",
            "log_level": "debug",
            "launch_worker_after_ps_running": True,  # what YAML makes of `on`
            "job_name": 7,
            "worker_pod_priority": 0.5,
            "job_command": ["python", "-c", "print('a b')"],
            "envs": {"A": 1, "B": True},
            "checkpoint_dir": "",
        }
    )
    assert (spec.num_workers, spec.log_level, spec.launch_worker_after_ps_running) == (3, "DEBUG", "on")
    assert (spec.job_name, str(spec.worker_pod_priority), spec.checkpoint_dir) == ("7", "high=0.5", None)
    assert spec.command_words == ["python", "-c", "print('a b')"]
    assert spec.envs == {"A": "1", "B": "true"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [("num_wokers", "num_workers"), ("num-workers", "num_workers"), ("batch_size", "minibatch_size"), ("zzzz", None)],
)
def test_the_nearest_name_is_found(written: str, meant: str | None) -> None:
    assert nearest(written, ["num_workers", "minibatch_size", "num_epochs"]) == meant

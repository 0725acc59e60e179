"""Reading a job from flags and YAML: everything wrong is found at once, with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elasticdl.cli.flags import read_request, read_spec
from elasticdl.cli.main import main
from elasticdl.job.spec import JobSpec

JOB = ["--model_def=mnist.net.custom_model", "--training_data=data", "--job_name=j"]


def problems(*words: str, command: str = "train") -> dict[str, str]:
    """Where -> the rest of the message."""
    found = read_request([*JOB, *words], command).resolved.problems
    return {p.where: str(p).removeprefix(p.where) for p in found}


@pytest.mark.parametrize(
    "words",
    [
        ["--num_workers=3"],
        ["--num-workers=3"],
        ["--num_workers", "3"],
        ["--num-workers", "3"],
        ["", "--num_workers=3", "\\"],
    ],
)
def test_a_flag_may_be_written_in_several_ways(words: list[str]) -> None:
    spec, found = read_spec(words)
    assert (spec.num_workers, found) == (3, [])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--use_async"], True),
        (["--use_async", "--num_workers=1"], True),
        (["--use_async", "false"], False),
        (["--use_async=no"], False),
        (["--use_async=True"], True),
        (["--use_async", "--shuffle", "false"], True),
    ],
)
def test_a_boolean_may_stand_alone(words: list[str], value: bool) -> None:
    spec, found = read_spec(words)
    assert (spec.use_async, found) == (value, [])


def test_quoting_survives() -> None:
    spec, _ = read_spec(["--job_command=python -c \"print('a  b')\"", "--envs", "A=x y,B=1"])
    assert spec.command_words == ["python", "-c", "print('a  b')"]
    assert spec.envs == {"A": "x y", "B": "1"}


def test_an_empty_text_means_that_nothing_was_given() -> None:
    spec, found = read_spec(["--checkpoint_dir=", "--worker_resource_limit", "", "--volume="])
    assert found == []
    assert (spec.checkpoint_dir, spec.worker_resource_limit, spec.volume) == (None, None, ())


def test_an_unknown_flag_is_named_with_the_nearest_one() -> None:
    said = problems("--num_wokers=2", "--batch-size", "32", "--zzzzz")
    assert "unknown flag. Did you mean --num_workers?" in said["--num_wokers"]
    assert "Did you mean --minibatch_size?" in said["--batch-size"]
    assert "See elasticdl train --help_all." in said["--zzzzz"]


def test_a_flag_given_twice_is_a_problem_whatever_its_spelling() -> None:
    assert "given twice" in problems("--num_workers=2", "--num_workers=3")["--num_workers"]
    assert "--num_ps_pods=1 and --num_ps=2" in problems("--num_ps_pods=1", "--num_ps=2")["--num_ps"]


def test_a_flag_of_another_command_is_named_as_such() -> None:
    assert "a flag of elasticdl predict, not of elasticdl train" in problems("--prediction_data=d")["--prediction_data"]
    assert "started by hand" in problems("--worker_id=1")["--worker_id"]
    assert (
        "a flag of elasticdl train, not of elasticdl evaluate"
        in problems("--num_epochs=2", command="evaluate")["--num_epochs"]
    )


def test_words_that_are_no_flags_are_named() -> None:
    said = problems("data/mnist", "-num_workers=2")
    assert "not a flag" in said["data/mnist"]
    assert "Did you mean --num_workers?" in said["-num_workers=2"]


def test_a_flag_without_its_value_is_named_with_an_example() -> None:
    said = problems("--num_workers", "--minibatch_size", "--num_epochs=", "--log_level")
    assert "Write --num_workers=2." in said["--num_workers"]
    assert "has no value" in said["--minibatch_size"]
    assert "has an empty value" in said["--num_epochs"]
    assert "Write --log_level=DEBUG." in said["--log_level"]


def test_a_negative_number_is_a_value_and_not_a_flag() -> None:
    assert "--seed" in problems("--seed", "-1")


def test_all_problems_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num_workers=0", "--minibatch_size=ten", "--typo=1", "--evaluation_steps=5", "--log_level=LOUD", "extra"]
    assert main(["train", "--model_def=a.b.c", "--model_zoo", "z", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("elasticdl train: 7 problems\n")
    for part in (
        "--num_workers=0",
        "--minibatch_size=ten",
        "--typo=1",
        "--evaluation_steps=5",
        "--log_level=LOUD",
        "extra",
    ):
        assert part in said
    assert "--training_data: needed to train" in said
    assert "Traceback" not in said


def test_a_yaml_file_holds_the_same_names_and_flags_override_it(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        """
model_def: mnist.net.custom_model
training_data: data
job_name: from-file
num-workers: 4
num_ps: 2
use_async: yes
output: null
envs: {A: 1, B: two words}
volume:
  - {host_path: /data, mount_path: /data}
worker_resource_limit: {cpu: 2, memory: 1Gi}
job_command:
"""
    )
    spec, found = read_spec(["-f", str(file), "--num_workers=1"])
    assert found == []
    assert (spec.num_workers, spec.num_ps_pods, spec.job_name, spec.use_async, spec.output) == (
        1,
        2,
        "from-file",
        True,
        None,
    )
    assert spec.envs == {"A": "1", "B": "two words"}
    assert [v.mount_path for v in spec.volume] == ["/data"]
    assert str(spec.worker_resource_limit) == "cpu=2,memory=1024Mi"
    for form in (["--file", str(file)], [f"--file={file}"], [f"-f={file}"], [f"-f{file}"]):
        assert read_spec([*form, "--num_workers=1"])[0] == spec


def test_problems_in_a_yaml_file_name_the_file_and_the_key(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "num_wokers: 2\nnum_workers: true\nminibatch_size: 0\nnum_ps: 1\nnum_ps_pods: 1\nprediction_data: d\n"
    )
    said = problems("-f", str(file))
    assert "unknown key. Did you mean num_workers?" in said["job.yaml: num_wokers"]
    assert "not a whole number" in said["job.yaml: num_workers"]
    assert "below 1" in said["job.yaml: minibatch_size"]
    assert "means the same as num_ps" in said["job.yaml: num_ps_pods"]
    assert "not of elasticdl train" in said["job.yaml: prediction_data"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"num_workers: 1\nnum_workers: 2\n", "line 2, column 1: num_workers is given twice"),
        (b"a: [1\nb: 2\n", "line 2"),
        (b"- num_workers\n", "not a mapping"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_job_is_named(tmp_path: Path, content: bytes | None, what: str) -> None:
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    assert what in problems("-f", str(file))["-f"]


def test_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("# nothing yet\n")
    assert problems("-f", str(file)) == {}
    assert "given twice" in problems("-f", str(file), "-f", str(file))["-f"]
    assert "has no value" in problems("-f")["-f"]


def test_a_dry_run_prints_a_job_that_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*JOB, "--num_workers=3", "--envs=A=1", "--volume=host_path=/d,mount_path=/d", "--grads_to_wait=2"]
    words += ["--num_standby=1", "--num_evaluators=1"]
    assert main(["train", *words, f"--state_dir={tmp_path}", "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert "Training is synchronous (a step averages 2 batches), since --grads_to_wait=2 is above 1." in shown
    assert "--volume=host_path=/d,mount_path=/d changes nothing" in shown
    assert "--num_standby=1 changes nothing: only --distribution_strategy=AllreduceStrategy uses it" in shown
    assert "This release cannot run this job yet" in shown and "--num_evaluators=1: " in shown
    assert "minibatch_size" not in yaml.safe_load(shown)
    file = tmp_path / "job.yaml"
    file.write_text(shown)
    assert main(["train", "-f", str(file), "--dry_run=json"]) == 0
    again = JobSpec.from_json(capsys.readouterr().out)
    assert again == read_request([*words, f"--state_dir={tmp_path}"]).resolved.spec


def test_a_dry_run_with_problems_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry_run", "--num_workers=0", *JOB]) == 2
    assert "--num_workers=0: below 1" in capsys.readouterr().err
    assert main(["train", "--dry_run=toml", *JOB]) == 2
    assert "--dry_run=toml: not one of yaml, json" in capsys.readouterr().err


def test_a_job_goes_to_the_namespace_that_kubectl_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*words: str) -> tuple[str | None, bool]:
        resolved = read_request([*JOB, "--image_name=elasticdl:mnist", *words]).resolved
        return resolved.spec.namespace, any("goes to namespace" in line for line in resolved.decisions)

    clusters = [{"name": "c", "cluster": {"server": "https://here:6443"}}]
    contexts = [
        {"name": "plain", "context": {"cluster": "c"}},
        {"name": "team", "context": {"cluster": "c", "namespace": "ads"}},
    ]
    config = {"clusters": clusters, "contexts": contexts, "current-context": "plain"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert found() == ("default", False)
    assert found("--context=team") == ("ads", True)
    assert found("--context=team", "--namespace=mine") == ("mine", False)
    (tmp_path / "config").write_text(yaml.safe_dump({**config, "current-context": "team"}))
    assert found() == ("ads", True)
    assert found("--namespace=default") == ("default", False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert found() == ("default", False), "submitting reports that there is no cluster"
    assert read_request(JOB).resolved.spec.namespace is None, "processes belong to none"

"""Each flag does something: a value other than the default changes the resolved job, or is answered by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elasticdl.cli.flags import read_request
from elasticdl.job.resolve import Resolved
from elasticdl.job.spec import JobSpec, knobs, spellings

HERE = Path(__file__).parent
FLAGS_PAGE = HERE.parents[2] / "shared" / "flags.md"
BASE = {
    "model_def": "mnist.model.custom_model",
    "training_data": "data/train",
    "validation_data": "data/test",
    "job_name": "a-job",
    "state_dir": "state",
}
# A value other than the default for every knob; with it, other flags that the value needs.
OTHERWISE: dict[str, str | tuple[str, dict[str, str]]] = {
    "model_zoo": "zoo",
    "model_def": "mnist.other.custom_model",
    "model_file": ("zoo/mnist.py", {"model_def": ""}),
    "feed": "my_feed",
    "loss": "losses.mine",
    "optimizer": "my_optimizer",
    "eval_metrics_fn": "my_metrics",
    "callbacks": "my_callbacks",
    "custom_data_reader": "MyReader",
    "prediction_outputs_processor": "MyProcessor",
    "aux_params": "disable_relaunch=true",
    "training_data": "data/other",
    "validation_data": "data/other",
    "prediction_data": "data/other",
    "data_reader_params": "columns=a,b; sep=tab",
    "num_minibatches_per_task": "2",
    "records_per_task": "640",
    "shuffle": "false",
    "seed": "7",
    "max_bad_records": "3",
    "codec_type": "tf_example",
    "distribution_strategy": "Local",
    "minibatch_size": "32",
    "num_epochs": "3",
    "max_step": "100",
    "log_loss_steps": "10",
    "nonfinite_gradients": "skip",
    "audit": "true",
    "num_workers": "4",
    "relaunch_on_worker_failure": "5",
    "hang_seconds": "60",
    "start_seconds": "60",
    "reconnect_seconds": "5.5",
    "critical_worker_index": "0:1,3:0",
    "enable_automate_memory": "false",
    "relaunch_timeout_worker": "true",
    "task_fault_tolerance": "false",
    "need_elasticdl_job_service": "true",
    "need_task_manager": "false",
    "need_pod_manager": "false",
    "num_ps_pods": "2",
    "table_threshold_bytes": "64Ki",
    "encrypt_data_plane": "true",
    "use_async": "false",
    "grads_to_wait": "2",
    "sync_version_tolerance": "0",
    "lr_staleness_modulation": "true",
    "get_model_steps": "4",
    "ps_is_critical": "false",
    "ps_relaunch_max_num": "3",
    "launch_worker_after_ps_running": "on",
    "min_workers": "1",
    "max_workers": "8",
    "num_standby": "1",
    "virtual_workers": "16",
    "deterministic": "false",
    "batch_policy": "per_worker",
    "lr_scaling": "sqrt",
    "master_grace_seconds": "10",
    "evaluation_steps": "50",
    "output": "out",
    "checkpoint_dir": "checkpoints",
    "checkpoint_dir_for_init": "checkpoints",
    "checkpoint_steps": "100",
    "checkpoint_seconds": "30",
    "keep_checkpoint_max": "3",
    "job_name": "another-job",
    "runtime": ("local", {"image_name": "elasticdl:mnist"}),
    "image_name": "elasticdl:mnist",
    "worker_image": ("elasticdl:worker", {"image_name": "elasticdl:mnist"}),
    "ps_image": ("elasticdl:ps", {"image_name": "elasticdl:mnist"}),
    "image_pull_policy": "Never",
    "restart_policy": "OnFailure",
    "namespace": "training",
    "volume": "host_path=/data,mount_path=/data",
    "envs": "A=1,B=2",
    "master_port": "50001",
    "populate_env_names": "AWS_.*",
    "cluster_spec": "cluster.py",
    "cluster_spec_json": '{"spec": {}}',
    "yaml": ("job.yaml", {"image_name": "elasticdl:mnist"}),
    "force_use_kube_config_file": "true",
    "extra_pypi_index": "https://packages.example.com/simple",
    "master_resource_request": "cpu=2,memory=512Mi",
    "master_resource_limit": "cpu=4,memory=8Gi",
    "worker_resource_request": "cpu=2,memory=512Mi",
    "worker_resource_limit": "cpu=4,memory=8Gi",
    "ps_resource_request": "cpu=2,memory=512Mi",
    "ps_resource_limit": "cpu=4,memory=8Gi",
    "chief_resource_request": "cpu=2,memory=512Mi",
    "chief_resource_limit": "cpu=4,memory=8Gi",
    "evaluator_resource_request": "cpu=2,memory=512Mi",
    "evaluator_resource_limit": "cpu=4,memory=8Gi",
    "master_pod_priority": "high",
    "worker_pod_priority": "high=0.5",
    "ps_pod_priority": "high",
    "chief_pod_priority": "high",
    "evaluator_pod_priority": "high",
    "log_level": "DEBUG",
    "state_dir": "elsewhere",
    "log_file_path": "pod.log",
    "job_command": ("python -m my.program --x=1", {"model_def": ""}),
    "training_records": ("600", {"job_command": "python -m my.program", "model_def": "", "training_data": ""}),
    "validation_records": ("60", {"job_command": "python -m my.program", "model_def": "", "validation_data": ""}),
    "need_tf_config": ("true", {"job_command": "python -m my.program", "model_def": ""}),
    "num_evaluators": "1",
    "workers_by_hand": "true",
    "worker_id": "1",
    "master_addr": "localhost:50001",
    "token_file": "token",
}


def resolved_with(name: str, value: str, others: dict[str, str]) -> Resolved:
    values = {**BASE, **others, name: value}
    words = [f"--{k}={v}" for k, v in values.items() if v]
    command = "by-hand" if "train" not in knobs().get(name, knobs()["seed"]).commands else "train"
    return read_request(words, command).resolved


def test_the_table_has_every_flag() -> None:
    assert set(OTHERWISE) == set(knobs())


@pytest.mark.parametrize("name", list(OTHERWISE))
def test_a_flag_changes_the_resolved_job_or_is_answered_by_name(name: str) -> None:
    knob = knobs()[name]
    entry = OTHERWISE[name]
    value, others = entry if isinstance(entry, tuple) else (entry, {})
    without = resolved_with("seed", "0", others)
    resolved = resolved_with(name, value, others)
    assert resolved.problems == (), [str(p) for p in resolved.problems]
    before, after = (json.loads(r.spec.to_json()) for r in (without, resolved))
    assert before != after, f"{knob.flag} is dropped"
    if name in ("model_file", "records_per_task"):  # an older way to write others: they change instead
        assert any(knob.flag in note for note in resolved.notes)
        return
    expected = getattr(JobSpec.model_validate({name: value}), name)
    given = getattr(resolved.spec, name)
    assert given == expected or str(given).endswith(f"/{value}")  # a folder is made absolute
    if knob.later is not None and knob.feature_missing(expected):
        assert knob.flag in [problem.where for problem in resolved.later]
    if knob.gone is not None:
        assert any(knob.flag in note and knob.gone in note for note in resolved.notes)
    if knob.local is not None and resolved.spec.runtime == "local":
        assert any(knob.flag in note for note in resolved.notes)


@pytest.mark.parametrize("spelling", [s for s, name in spellings().items() if s != name])
def test_an_older_spelling_means_the_same(spelling: str) -> None:
    name = spellings()[spelling]
    value = OTHERWISE[name]
    assert isinstance(value, str)
    base = {k: v for k, v in BASE.items() if k != name}
    old, new = (read_request([*(f"--{k}={v}" for k, v in base.items()), f"--{s}={value}"]) for s in (spelling, name))
    assert old.resolved == new.resolved


def test_the_set_of_flags_is_frozen() -> None:
    """Scripts out there use these. A change here is a change for all of them; then change flags.txt as well."""
    lines = []
    for knob in knobs().values():
        names = " ".join(f"--{n}" for n in (knob.name, *knob.aliases))
        kind = "|".join(knob.choices) or knob.kind
        lines.append(f"{names}: {kind} = {knob.spell(knob.default) or 'none'}")
    assert lines == (HERE / "flags.txt").read_text().splitlines()


def test_every_flag_of_the_old_client_is_known_with_its_default() -> None:
    # Where the design chose better, the default differs.
    ours = {"job_name", "namespace", "use_async", "sync_version_tolerance", "model_zoo", "extra_pypi_index"}
    for line in (HERE / "old_flags.txt").read_text().splitlines():
        name, _, default = line.partition(" ")
        assert name in knobs(), name
        if name not in ours:
            assert knobs()[name].spell(knobs()[name].default) == default, name


def test_every_flag_that_people_use_is_known() -> None:
    if not FLAGS_PAGE.exists():
        pytest.skip("the page of flags is not beside this checkout; old_flags.txt is tested instead")
    page = re.sub(r"\*\*zoo\*\*.*\n", "", FLAGS_PAGE.read_text())
    named = set(re.findall(r"--([a-z_]+)", page))
    for pattern in re.findall(r"--\{([a-z,]+)\}(_[a-z_]+)", page):
        named |= {role + pattern[1] for role in pattern[0].split(",")}
    assert named - set(spellings()) == set()


def test_every_knob_explains_itself_in_a_sentence() -> None:
    for knob in knobs().values():
        assert knob.help.endswith(".") and knob.help[0].isupper() and len(knob.help) > 15, knob.name

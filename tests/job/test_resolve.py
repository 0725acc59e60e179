"""From what was asked for to the job that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import UsageError
from elasticdl.job.resolve import Resolved, resolve
from elasticdl.job.spec import JobSpec

MODEL: dict[str, Any] = {"model_def": "mnist.net.custom_model", "training_data": "data"}


def resolved(**values: Any) -> Resolved:
    return resolve(JobSpec.model_validate({**MODEL, **values}), env={}, unique="abc")


def said(result: Resolved) -> str:
    return "\n".join([*result.decisions, *result.notes])


def test_a_job_without_a_name_gets_one_from_its_model() -> None:
    result = resolved()
    assert result.spec.job_name == "net-abc"
    assert "--job_name is not given" in said(result)


def test_a_job_without_an_image_runs_here_and_one_with_an_image_on_kubernetes() -> None:
    assert resolved().spec.runtime == "local"
    assert resolved(image_name="i").spec.runtime == "kubernetes"
    assert resolved(image_name="i", runtime="local").spec.runtime == "local"
    assert "since --image_name is given" in said(resolved(image_name="i"))
    assert "as --runtime=local says" in said(resolved(image_name="i", runtime="local"))


@pytest.mark.parametrize(
    ("values", "asynchronous", "why"),
    [
        ({}, True, "nothing asks for synchronous"),
        ({"grads_to_wait": 1}, True, "nothing asks for synchronous"),
        ({"use_async": True}, True, "--use_async=true"),
        ({"use_async": False}, False, "--use_async=false"),
        ({"grads_to_wait": 2}, False, "--grads_to_wait=2"),
        ({"sync_version_tolerance": 0}, False, "--sync_version_tolerance is given"),
    ],
)
def test_the_mode_is_resolved_with_its_reason(values: dict[str, Any], asynchronous: bool, why: str) -> None:
    result = resolved(**values)
    assert result.spec.use_async is result.spec.asynchronous is asynchronous
    assert why in said(result)
    assert not result.later


def test_one_server_is_started_where_none_is_asked_for() -> None:
    assert resolved().spec.num_ps_pods == 1
    assert resolved(num_ps_pods=3).spec.num_ps_pods == 3
    assert resolved(distribution_strategy="AllreduceStrategy").spec.num_ps_pods == 0


def test_the_local_strategy_has_one_worker_and_one_server() -> None:
    result = resolved(distribution_strategy="Local", num_workers=4)
    assert (result.spec.num_workers, result.spec.num_ps_pods) == (1, 1)
    assert any(note.startswith("--num_workers=4") for note in result.notes)
    assert result.problems == result.later == ()


def test_state_and_checkpoints_are_kept_below_one_folder() -> None:
    spec = resolved(job_name="j", state_dir="~/s").spec
    assert spec.state_dir == str(Path.home() / "s")
    assert spec.checkpoint_dir == str(Path.home() / "s" / "j" / "checkpoint")
    spec = resolve(JobSpec.model_validate({**MODEL, "job_name": "j"}), env={"ELASTICDL_STATE_DIR": "/s"}).spec
    assert spec.state_dir == "/s"
    assert resolved(checkpoint_dir="mine").spec.checkpoint_dir == "mine"


def test_a_limit_is_the_request_on_kubernetes_and_only_what_was_given_here() -> None:
    there = resolved(image_name="i", worker_resource_request="cpu=2,memory=1Gi", ps_resource_limit="memory=512Mi").spec
    assert there.limit("worker") == there.request("worker")
    assert str(there.request("ps")) == "cpu=1,memory=512Mi"
    assert str(there.limit("master")) == "cpu=1,memory=2048Mi", "it loads the model, before it starts replicas"
    assert str(resolved(image_name="i", master_resource_request="cpu=0.5").spec.limit("master")) == "cpu=0.5"
    here = resolved(worker_resource_request="cpu=2,memory=1Gi")
    assert here.spec.limit("worker") is None
    assert any("--worker_resource_limit" in note for note in here.notes)


def test_records_per_task_become_whole_minibatches() -> None:
    spec = resolved(records_per_task=100, minibatch_size=64).spec
    assert (spec.num_minibatches_per_task, spec.records_per_task) == (2, None)


def test_relaunching_can_be_switched_off_the_old_way() -> None:
    result = resolved(aux_params="disable_relaunch=True; layers=2")
    assert result.spec.relaunch_on_worker_failure == 0
    assert "--relaunch_on_worker_failure=0" in said(result)
    assert result.spec.aux_params["layers"] == "2", "the model's own parameters stay"


def test_resolving_again_changes_nothing() -> None:
    on_volume = {"image_name": "i", "volume": "host_path=/data,mount_path=/data"}
    for values in ({}, {"image_name": "i", "use_async": False}, on_volume, {"distribution_strategy": "Local"}):
        once = resolved(**values)
        again = resolve(JobSpec.from_json(once.spec.to_json()), env={}, unique="other")
        assert again.spec == once.spec


def test_features_of_later_releases_are_all_refused_by_name_at_once() -> None:
    result = resolved(ps_is_critical=False, job_command="python -m mine", model_def=None)
    assert result.problems == ()
    with pytest.raises(UsageError) as caught:
        result.require()
    where = {problem.where for problem in caught.value.problems}
    assert where == {"--ps_is_critical", "--job_command"}


def in_a_cluster(**values: Any) -> Resolved:
    return resolved(image_name="i", **values)


def test_a_job_in_a_cluster_keeps_its_state_on_its_first_volume_and_says_so() -> None:
    result = in_a_cluster(volume="claim_name=c,mount_path=/data;claim_name=d,mount_path=/more")
    assert (result.spec.state_dir, result.spec.checkpoint_dir) == ("/data/.elasticdl", None)
    assert "Journal and checkpoints are stored below /data/.elasticdl, on the first --volume." in result.decisions
    assert result.warnings == ()
    assert result.spec.checkpoint_seconds == 60.0


def test_a_job_in_a_cluster_without_a_volume_is_warned_of_what_it_loses_with_which_pod() -> None:
    result = in_a_cluster(output="/out")
    state, output = result.warnings
    assert state.startswith("Nothing is stored outside the pods") and "--volume=claim_name" in state
    assert output == "--output=/out is on no --volume: files written there are lost with the pod."
    assert result.spec.checkpoint_seconds == 0.0
    (problem,) = in_a_cluster(checkpoint_steps=10).problems
    assert str(problem).startswith("--checkpoint_steps=10: checkpoints need a place that every pod sees.")


def test_a_place_that_an_overlay_may_mount_is_taken_at_its_word() -> None:
    result = in_a_cluster(state_dir="/mine", cluster_spec_json='{"spec": {}}')
    assert (result.spec.state_dir, result.warnings) == ("/mine", ())
    assert result.spec.checkpoint_seconds == 60.0


def test_a_directory_of_the_node_is_warned_of() -> None:
    (warning,) = in_a_cluster(volume="host_path=/data,mount_path=/data", output="/data/model").warnings
    assert warning.startswith("A host_path is a directory of whichever node a pod runs on.")


def test_the_data_plane_is_encrypted_between_pods_unless_the_user_says_no() -> None:
    assert in_a_cluster().spec.encrypt_data_plane is True
    refused = in_a_cluster(encrypt_data_plane=False)
    assert refused.spec.encrypt_data_plane is False
    assert any(text.startswith("--encrypt_data_plane=false:") for text in refused.warnings)
    by_allreduce = in_a_cluster(distribution_strategy="AllreduceStrategy")
    assert "Gradients between workers are not encrypted" in said(by_allreduce)
    assert resolved().spec.encrypt_data_plane is None


def test_replicas_wait_longer_for_a_master_whose_pod_may_have_to_wait_for_room() -> None:
    assert in_a_cluster().spec.master_grace_seconds == 300.0
    assert in_a_cluster(master_grace_seconds=10).spec.master_grace_seconds == 10.0
    assert in_a_cluster(master_grace_seconds=60).spec.master_grace_seconds == 60.0  # said, not left out
    assert resolved().spec.master_grace_seconds == 60.0


def test_a_port_of_its_own_means_nothing_in_a_pod() -> None:
    assert (
        "--master_port=7 changes nothing: in its pod the master listens at 50001" in in_a_cluster(master_port=7).notes
    )


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_commands_of_later_releases_are_refused_by_name(command: str) -> None:
    values = {"validation_data": "d", "prediction_data": "d", "checkpoint_dir_for_init": "c", "command": command}
    result = resolved(**values)
    assert result.problems == ()
    assert [problem.where for problem in result.later] == [f"elasticdl {command}"]


@pytest.mark.parametrize(
    ("values", "flag", "what"),
    [
        ({"model_def": None}, "--model_def", "names the model"),
        ({"training_data": None}, "--training_data", "needed to train"),
        ({"command": "evaluate", "checkpoint_dir_for_init": "c"}, "--validation_data", "needed to evaluate"),
        ({"command": "predict", "prediction_data": "d"}, "--checkpoint_dir_for_init", "needed to predict"),
        ({"model_file": "a.py"}, "--model_file", "--model_def"),
        ({"records_per_task": 5, "num_minibatches_per_task": 2}, "--records_per_task", "size of a shard"),
        ({"evaluation_steps": 5}, "--evaluation_steps", "no data"),
        ({"distribution_strategy": "AllreduceStrategy", "num_ps_pods": 1}, "--num_ps_pods", "all-reduce"),
        ({"distribution_strategy": "CustomStrategy"}, "--distribution_strategy", "program of your own"),
        ({"use_async": True, "grads_to_wait": 2}, "--grads_to_wait", "--use_async is true"),
        ({"use_async": False, "get_model_steps": 2}, "--get_model_steps", "synchronous"),
        ({"grads_to_wait": 2, "lr_staleness_modulation": True}, "--lr_staleness_modulation", "synchronous"),
        ({"min_workers": 3}, "--min_workers", "above --num_workers=2"),
        ({"max_workers": 1}, "--max_workers", "below --num_workers=2"),
        ({"max_workers": 8, "virtual_workers": 4}, "--virtual_workers", "8 workers"),
        ({"envs": "WORKER_ID=1"}, "--envs", "ElasticDL itself"),
        ({"envs": "ELASTICDL_TOKEN=1"}, "--envs", "ElasticDL itself"),
        ({"job_command": "echo"}, "--model_def", "its own program"),
        ({"need_tf_config": True}, "--need_tf_config", "program of your own"),
        ({"runtime": "kubernetes"}, "--image_name", "needed on Kubernetes"),
        ({"yaml": "job.yaml"}, "--yaml", "runs as processes on this machine"),
        ({"yaml": "job.yaml", "image_name": "i", "runtime": "local"}, "--yaml", "runs as processes on this machine"),
        ({"worker_image": "i"}, "--image_name", "needed on Kubernetes"),
        ({"cluster_spec": "f.py", "cluster_spec_json": "{}"}, "--cluster_spec_json", "--cluster_spec"),
        (
            {"worker_resource_request": "cpu=2,memory=1Gi", "worker_resource_limit": "cpu=1,memory=2Gi"},
            "--worker_resource_limit",
            "allows cpu=1, less than the cpu=2",
        ),
    ],
)
def test_knobs_that_do_not_fit_together_are_named(values: dict[str, Any], flag: str, what: str) -> None:
    problems = resolved(**values).problems
    assert [problem.where for problem in problems if what in problem.what] == [flag]
    assert all(problem.remedy for problem in problems)


def test_a_check_is_left_out_when_one_of_its_knobs_was_refused_already() -> None:
    spec = JobSpec.model_validate({**MODEL, "evaluation_steps": 5})
    assert resolve(spec).problems
    assert resolve(spec, refused={"validation_data"}).problems == ()


def test_resources_that_no_process_here_is_held_to_are_named() -> None:
    limit = "cpu=1,memory=1Gi,gpu=1,disk=1Gi"
    [note] = resolved(worker_resource_limit=limit).notes
    assert note.startswith("--worker_resource_limit: ephemeral-storage, nvidia.com/gpu changes nothing")
    assert not resolved(worker_resource_limit="cpu=1,memory=1Gi").notes


def test_a_tilde_means_a_home_wherever_a_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    places = ("model_zoo", "training_data", "validation_data", "output", "checkpoint_dir", "state_dir")
    spec = resolved(**{name: f"~/{name}" for name in places}).spec
    assert {name: getattr(spec, name) for name in places} == {name: f"/home/me/{name}" for name in places}
    assert resolved(model_def=None, model_file="~/zoo/net.py").spec.model_zoo == "/home/me/zoo"
    assert resolved(output="~no-user-of-this-name/o").spec.output == "~no-user-of-this-name/o", "as a shell leaves it"
    assert resolved(output="~/o", image_name="i").spec.output == "~/o", "the home of a pod is not ours"


def test_a_batch_that_follows_the_workers_says_how_the_learning_rate_does() -> None:
    job = {"distribution_strategy": "AllreduceStrategy", "batch_policy": "per_worker", "minibatch_size": 32}
    told = said(resolved(**job))
    assert "a step is 32 records per worker, the learning rate follows, added in one fixed order" in told
    assert "the learning rate stays" in said(resolved(**job, lr_scaling="none"))
    assert "the learning rate follows by its square root" in said(resolved(**job, lr_scaling="sqrt"))
    few = resolved(**job, num_workers=8, virtual_workers=4)
    assert few.problems == (), "the parts do not limit the workers"
    assert "--virtual_workers=4 changes nothing: each worker computes its records of a step in one part" in said(few)


def test_a_rule_for_the_learning_rate_changes_nothing_where_the_batch_is_fixed() -> None:
    result = resolved(distribution_strategy="AllreduceStrategy", lr_scaling="sqrt")
    assert "--lr_scaling=sqrt changes nothing: the batch does not follow the number of workers" in said(result)

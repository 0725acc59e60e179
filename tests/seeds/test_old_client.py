"""What the client of ElasticDL 1.0 puts on its master's command line means what its user asked for."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from elasticdl.cli.flags import read_request
from elasticdl.errors import UsageError
from elasticdl.job.spec import JobSpec
from elasticdl.python.master.main import job_of, unfit
from tests.seeds.command_lines import COPY

HERE = Path(__file__).parent
# As elasticdl_client 1.0.0 wrote it for the first tutorial's job, a flag on each line.
WRITTEN = shlex.split((HERE / "old_client.txt").read_text().partition("master.main")[2])
ASKED = next(line[4:] for line in COPY.read_text().splitlines() if "elasticdl train" in line)


def with_flag(name: str, value: str) -> list[str]:
    words = list(WRITTEN)
    for place in [i for i, word in enumerate(words) if word == f"--{name}"]:
        words[place + 1] = value
    return words


def test_the_job_is_that_of_todays_client_with_the_same_flags() -> None:
    assert len({word for word in WRITTEN if word.startswith("--")}) == 76
    old, new = job_of(WRITTEN), read_request([*shlex.split(ASKED)[2:], "--runtime=kubernetes"]).resolved
    assert old.problems == () and old.later == ()
    assert (old.spec, old.notes) == (new.spec, new.notes)
    assert old.spec.asynchronous, "the old client writes --use_async False whether it was asked for or not"


@pytest.mark.parametrize(
    ("name", "value"),
    [("grads_to_wait", "2"), ("num_workers", "3"), ("worker_pod_priority", "low"), ("worker_image", "another:image"),
     ("cluster_spec_json", '{"spec": {"hostNetwork": true}}'), ("envs", "A=1,B=x y"), ("aux_params", "layers=2"),
     ("restart_policy", "OnFailure"), ("use_async", "True"), ("volume", "claim_name=c,mount_path=/c")],
)  # fmt: skip
def test_a_flag_that_was_given_arrives(name: str, value: str) -> None:
    old = job_of(with_flag(name, value))
    assert old.problems == ()
    asked = [word for word in shlex.split(ASKED)[2:] if not word.startswith(f"--{name}=")]
    new = read_request([*asked, f"--{name}={value}", "--runtime=kubernetes"]).resolved
    assert (old.spec, old.notes) == (new.spec, new.notes)


def test_a_flag_that_is_wrong_is_named() -> None:
    with pytest.raises(UsageError, match="--num_workers=none"):
        job_of(with_flag("num_workers", "none")).require()


def test_a_pod_of_the_old_client_that_cannot_lead_the_job_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    fits, fails = (JobSpec(job_name="j", state_dir=str(tmp_path / name)) for name in ("state", "file"))
    on_node, claimed = ({"spec": {"securityContext": context}} for context in ({}, {"runAsUser": os.getuid() + 1}))
    assert unfit(fits, "1", on_node) == "" and (tmp_path / "state").is_dir()
    assert unfit(fits, "1", {"spec": {"securityContext": {"runAsUser": os.getuid()}}}) == ""
    assert unfit(fails, "1", on_node).startswith(f"cannot write the job's state to {tmp_path / 'file'}")
    assert unfit(fits, "2", claimed).startswith(f"it runs as user {os.getuid()}, and the job's other pods")
    assert not any((tmp_path / "state").glob("*-2")), "nothing is made that the other user could not write to"

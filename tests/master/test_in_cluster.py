"""What a master in a pod puts on it at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticdl.errors import UsageError
from elasticdl.job.names import JobPaths
from elasticdl.job.spec import JobSpec
from elasticdl.master import in_cluster


def test_a_result_fits_into_an_annotation_and_keeps_what_matters_most() -> None:
    decisions = [{"at": n, "text": f"{n} " + "x" * 4000} for n in range(200)]
    replicas = [{"name": f"worker-{n}", "detail": "y" * 900} for n in range(200)]
    status = {"records_done": "960", "audit": "all of them", "decisions": decisions, "replicas": replicas}
    result = {"outcome": "failed", "reason": "z" * 200_000 + " in the end", "status": status, "exit_code": 1}
    short = in_cluster._short(result)
    assert len(json.dumps(short)) <= 3 * in_cluster.RESULT_BYTES < 256 << 10
    assert (short["outcome"], short["exit_code"], short["status"]["records_done"]) == ("failed", 1, "960")
    assert short["reason"].endswith(" in the end")
    assert status["decisions"] == decisions, "the file on the volume has it all"
    few = {**result, "reason": "why", "status": {**status, "replicas": [], "decisions": decisions[:3]}}
    assert in_cluster._short(few) == few


def test_a_place_that_cannot_be_written_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    spec = JobSpec.model_validate({"job_name": "j", "state_dir": str(tmp_path / "state")})
    with pytest.raises(UsageError) as refused:
        in_cluster._make_home(spec, JobPaths(tmp_path / "state", "default-1"))
    (problem,) = refused.value.problems
    assert problem.where == "--state_dir" and "cannot be kept in" in problem.what
    assert "or name another place on one with --state_dir" in problem.remedy

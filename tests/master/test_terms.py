"""What a job's description means to the core."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.job.resolve import resolve
from elasticdl.job.spec import JobSpec
from elasticdl.strategies.parameter_servers.master import terms_of

MOUNTED = "claim_name=c,mount_path=/job"


@pytest.mark.parametrize(
    ("values", "nowhere"),
    [
        ({}, False),
        ({"image_name": "i"}, True),
        ({"image_name": "i", "volume": MOUNTED}, False),
        ({"image_name": "i", "volume": MOUNTED, "checkpoint_dir": "/job/c"}, False),
        ({"image_name": "i", "volume": MOUNTED, "checkpoint_dir": "/elsewhere"}, True),
        ({"image_name": "i", "checkpoint_dir": "/c", "cluster_spec_json": "{}"}, False),
    ],
    ids=str,
)
def test_checkpoints_that_no_other_pod_would_see_are_not_waited_for(values: dict[str, Any], nowhere: bool) -> None:
    asked = JobSpec.model_validate({"job_name": "j", "model_def": "m.f", "training_data": "d", **values})
    spec = resolve(asked, env={}).spec
    assert terms_of(spec, 10, 0).schedule.nowhere is nowhere

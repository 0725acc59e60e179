"""A whole job whose data plane is encrypted: every record once, and the keys where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.job import names
from tests.processes.harness import check_witness, start_witness

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_an_encrypted_job_trains_every_record_and_workers_never_see_the_secret_key(tmp_path: Path) -> None:
    job = start_witness(tmp_path, "encrypted", "--encrypt_data_plane=true", records=4000, epochs=1)
    job.wait_until(lambda status: any(r.leases for r in status.replicas if r.role == "worker"))
    keys: dict[str, tuple[bool, bool]] = {}
    for name, process in job.replicas().items():
        env = process.environ()
        keys[name.removeprefix("elasticdl-encrypted-")] = names.ENV_DATA_KEY in env, names.ENV_DATA_SECRET in env
    check_witness(job, tmp_path / "encrypted-model", records=4000, epochs=1, servers=2)
    assert keys["worker-0"] == (True, False)
    assert keys["ps-0"] == keys["ps-1"] == (True, True)

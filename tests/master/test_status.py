"""What the master tells people of its pace."""

from __future__ import annotations

from elasticdl.master.status import Chronicle


def test_a_job_that_goes_back_to_a_checkpoint_has_no_negative_pace() -> None:
    chronicle = Chronicle(0.0)
    for now, records in ((0, 0), (1, 100), (2, 200)):
        chronicle.progress(now, records)
    assert chronicle.records_per_second() == 100
    chronicle.progress(3, 50)
    assert chronicle.records_per_second() == 0
    chronicle.progress(4, 80)
    assert chronicle.records_per_second() == 30

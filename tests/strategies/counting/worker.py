"""A worker that only counts: `python -m tests.strategies.counting.worker`."""

from __future__ import annotations

import os
import time
import uuid

from elasticdl.job import names
from elasticdl.worker.control import Control
from elasticdl.worker.session import Session


def main() -> int:
    session = Session(os.environ[names.ENV_REPLICA], uuid.uuid4().hex, capacity=2, needs_servers=False)
    control = Control(session, os.environ[names.ENV_MASTER_ADDR], os.environ[names.ENV_TOKEN], 20.0)
    control.start()
    while (work := control.wait_for_work()) is not None:
        while work.next_batch < work.batches and not control.gone(work):
            time.sleep(0.005)
            control.committed(work, work.next_batch + 1, 0.0)
    control.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The pebble. A test sets the addresses of the master and the workers, so that it can cut them off.

`CUT_MASTERS` is JSON: the address of the master by replica. With `CUT_HOSTS=1` every worker has its own address.
"""

from __future__ import annotations

import json
import os

from pebble import custom_model, eval_metrics_fn, feed, loss, optimizer  # noqa: F401

from elasticdl.job.names import ENV_MASTER_ADDR, ENV_POD_IP, ENV_REPLICA, ENV_WORKER_ID

if ENV_REPLICA in os.environ:
    masters = json.loads(os.environ.get("CUT_MASTERS", "{}"))
    os.environ[ENV_MASTER_ADDR] = masters.get(os.environ[ENV_REPLICA], os.environ[ENV_MASTER_ADDR])
    if "CUT_HOSTS" in os.environ and ENV_WORKER_ID in os.environ:
        os.environ[ENV_POD_IP] = f"127.0.1.{1 + int(os.environ[ENV_WORKER_ID])}"

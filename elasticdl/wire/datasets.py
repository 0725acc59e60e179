"""The description of the data sets, which a worker reads from a file beside the job's or from the master."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import grpc

from elasticdl.errors import Refused, Unreachable
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.wire import auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.link import NO, OPTIONS

_RETRY_SECONDS = 1.0


def described(job_file: Path, spec: JobSpec) -> dict[str, str]:
    """The data sets by mode, as JSON. A worker in a pod has no access to the master's disk and asks the master."""
    beside = job_file.with_name("datasets.json")
    found: dict[str, str] = {}
    if beside.exists():
        found = json.loads(beside.read_bytes())
    elif spec.runtime == "kubernetes":
        found = json.loads(asked(spec.master_grace_seconds))
    return found


def asked(patience_seconds: float) -> str:
    """The master's answer. Retries, since the master may be restarting."""
    address, token = os.environ[names.ENV_MASTER_ADDR], os.environ[names.ENV_TOKEN]
    deadline, trouble = time.monotonic() + patience_seconds, "no attempt was made"
    with tls.blocking_channel(address, OPTIONS, os.environ.get(names.ENV_TLS_CERT)) as channel:
        stub = ControlStub(channel)
        while (left := deadline - time.monotonic()) > 0:
            request, metadata = pb.DescribeRequest(), auth.metadata(token)
            try:
                answer = stub.Describe(request, metadata=metadata, wait_for_ready=True, timeout=left)
                return str(answer.datasets)
            except grpc.RpcError as error:
                if error.code() in NO:
                    raise Refused(f"the master at {address} refused: {error.details()}") from error
                trouble = str(error.details())
            time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    raise Unreachable(f"no master at {address} for {patience_seconds:g} s ({trouble})")

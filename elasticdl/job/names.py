"""Names that leave the process: replicas, labels, environment variables, and the files of a local job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from elasticdl.job.values import JOB_NAME_MAX

Role = Literal["master", "worker", "ps", "chief", "evaluator"]
MASTER: Final = "master"
WORKER: Final = "worker"
PS: Final = "ps"
CHIEF: Final = "chief"
EVALUATOR: Final = "evaluator"
ROLES: tuple[Role, ...] = (MASTER, WORKER, PS, CHIEF, EVALUATOR)

# Environment that user code reads, as it always could.
ENV_MASTER_ADDR = "MASTER_ADDR"
ENV_WORKER_ID = "WORKER_ID"
ENV_WORKER_NUM = "WORKER_NUM"
ENV_POD_IP = "MY_POD_IP"
ENV_TF_CONFIG = "TF_CONFIG"

# Environment that numeric libraries read: how many threads they use.
ENV_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Environment that the C library reads. With a heap in huge pages, where the system gives them on request, the death of
# a training process takes 10 ms instead of 40, and other workers wait for that.
ENV_HEAP = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"

# Environment that only ElasticDL's own processes read.
OWN_ENV = "ELASTICDL_"  # how their names begin
ENV_JOB_FILE = "ELASTICDL_JOB_FILE"  # path of the job's JSON
ENV_REPLICA = "ELASTICDL_REPLICA"  # this replica's name
ENV_TOKEN = "ELASTICDL_TOKEN"  # the job's secret
ENV_DATA_KEY = "ELASTICDL_DATA_KEY"  # the parameter servers' public key; absent where nothing is encrypted
ENV_DATA_SECRET = "ELASTICDL_DATA_SECRET"  # their secret one: of servers only
ENV_STATE_DIR = "ELASTICDL_STATE_DIR"  # where local jobs are kept
ENV_LAUNCHER = "ELASTICDL_LAUNCHER"  # path of the launcher's socket
ENV_TLS_CERT = "ELASTICDL_TLS_CERT"  # the job's own certificate, as PEM; absent where the control plane is plaintext
ENV_TLS_KEY = "ELASTICDL_TLS_KEY"  # its key, as PEM: of the master only

LABEL_APP = "app"
LABEL_JOB = "elasticdl-job-name"
LABEL_TYPE = "elasticdl-replica-type"
LABEL_INDEX = "elasticdl-replica-index"
ANNOTATION_ORDER = "elasticdl-first-launch"  # when a pod of this name was first made: nanoseconds since 1970
ANNOTATION_LAUNCH = "elasticdl-launch"  # one launch, however often it is repeated
ANNOTATION_ENDING = "elasticdl-ending"  # present when the job itself deleted the pod
ANNOTATION_CRASHES = "elasticdl-crashes"  # of the master's pod: how often one before it failed
ANNOTATION_RESULT = "elasticdl-result"  # of the master's pod: how the job ended, as JSON; absent while it runs
ANNOTATION_OVERLAY = "elasticdl-cluster-spec"  # of the ConfigMap: the file of --cluster_spec where it was submitted
ANNOTATION_UNFIT = "elasticdl-unfit"  # of the master's pod: why it cannot run the job; the keeper replaces it
APP = "elasticdl"

# In a cluster.
KEEPER: Final = "keeper"  # value of LABEL_TYPE of the pod that restarts a lost master; not a role of a job
MASTER_PORT = 50001
CONFIG_DIR = "/etc/elasticdl"  # where the job's ConfigMap is mounted in every pod
JOB_KEY = "job.json"  # its keys: the resolved JobSpec,
MASTER_KEY = "master.json"  # the master's pod, made again when it is lost,
KEEPER_KEY = "keeper.json"  # the keeper's,
OVERLAY_KEY = "cluster_spec.py"  # and the file of --cluster_spec, where there is one
SERVICE_ACCOUNT = "elasticdl-master"  # of master and keeper: manifests/elasticdl-rbac.yaml

_REPLICA = re.compile(rf"{APP}-(?P<job>.+?)-(?:(?P<master>master)|(?P<role>worker|ps|chief|evaluator)-(?P<index>\d+))")


def replica_name(job_name: str, role: str, index: int = 0) -> str:
    """`elasticdl-<job>-master`, `elasticdl-<job>-worker-0`: pods and processes alike."""
    if role not in ROLES:
        raise ValueError(f"no role {role!r}; there are {', '.join(ROLES)}")
    return f"{APP}-{job_name}-{role}" if role == MASTER else f"{APP}-{job_name}-{role}-{index}"


def config_name(job_name: str) -> str:
    """The job's ConfigMap, which owns everything else; its Secret, Lease and NetworkPolicy are named alike."""
    return f"{APP}-{job_name}"


def service_name(job_name: str) -> str:
    """The stable name under which the master is found, and which its certificate carries."""
    return replica_name(job_name, MASTER)


def keeper_name(job_name: str) -> str:
    return f"{APP}-{job_name}-{KEEPER}"


def master_address(job_name: str, namespace: str) -> str:
    """host:port of a job's master, from inside the cluster."""
    return f"{service_name(job_name)}.{namespace}.svc:{MASTER_PORT}"


def parse_replica_name(name: str) -> tuple[str, str, int]:
    """(job name, role, index) of a replica's name."""
    found = _REPLICA.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not a replica's name")
    return found["job"], found["master"] or found["role"], int(found["index"] or 0)


def labels(job_name: str, role: str | None = None, index: int | None = None) -> dict[str, str]:
    """The labels of a job's objects, narrowed to a role or one replica."""
    found = {LABEL_APP: APP, LABEL_JOB: job_name}
    if role is not None:
        found[LABEL_TYPE] = role
    if index is not None:
        found[LABEL_INDEX] = str(index)
    return found


def made_up_job_name(model: str, unique: str) -> str:
    """A name for a job that was given none: the model's file, and something unique."""
    parts = [p for p in re.split(r"[./]", model) if p]
    stem = parts[-2] if len(parts) > 1 else "".join(parts)
    base = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job"
    return f"{base[: JOB_NAME_MAX - len(unique) - 1].strip('-')}-{unique}"


def expanded(path: str) -> Path:
    """With `~` and `~user` replaced as a shell does: a user that does not exist leaves the name as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def default_state_dir(env: Mapping[str, str] | None = None) -> Path:
    """Where local jobs are kept unless --state_dir says otherwise."""
    env = os.environ if env is None else env
    named = env.get(ENV_STATE_DIR, "").strip()
    return expanded(named).absolute() if named else Path.home() / ".elasticdl" / "jobs"


class _File:
    """A file or folder of a job, below its own folder."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, paths: JobPaths, owner: type[JobPaths]) -> Path:
        return paths.root.joinpath(*self._parts)


@dataclass(frozen=True)
class JobPaths:
    """The files of one local job, all below `<state_dir>/<job_name>/`."""

    state_dir: Path
    job_name: str

    job_file = _File("job.json")  # the resolved JobSpec
    datasets = _File("datasets.json")  # the files of the data, as found before the job started
    token = _File("token")  # the job's secret; only its owner can read it
    journal = _File("journal.sqlite")  # the master's journal of events
    logs = _File("logs")
    launcher_socket = _File("run", "launcher.sock")  # for the master's requests; only the owner can enter the folder
    launcher_pid = _File("launcher.pid")  # the launcher's process id; locked while it lives
    master_address = _File("master.addr")  # host:port of the master that runs now
    result = _File("result.json")  # how the job ended; absent while it runs
    checkpoint = _File("checkpoint")  # unless --checkpoint_dir is given

    @property
    def root(self) -> Path:
        return self.state_dir / self.job_name

    def log(self, replica: str) -> Path:
        """The log of all processes of a replica."""
        return self.logs / f"{replica}.log"

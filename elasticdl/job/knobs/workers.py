"""Knobs of the workers, and of failing replicas."""

from __future__ import annotations

from typing import ClassVar

from elasticdl.job.knob import BY_HAND, TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, CriticalWorkers, OptionalCount, Positive, Seconds, Text

INFERRED = "ElasticDL derives it from the rest of the job"


class WorkersKnobs(KnobGroup):
    title: ClassVar[str] = "Workers and faults"

    num_workers: Positive = knob(2, "How many workers train.", common=True)
    relaunch_on_worker_failure: Count = knob(
        1,
        "How often a crashed worker is replaced before the job fails. Kills and preemption do not count.",
        commands=TRAIN,
    )
    hang_seconds: Seconds = knob(
        300.0, "Replace a worker that makes no progress for this long.", aliases=("lease_seconds",)
    )
    start_seconds: Seconds = knob(120.0, "How long a replica may take from its start until it connects to the master.")
    reconnect_seconds: Seconds = knob(
        30.0, "How long the master waits for a disconnected replica before it replaces it."
    )
    master_grace_seconds: Seconds = knob(
        60.0,
        "How long workers and servers continue without the master; by default 300 in a cluster, where the master's pod "
        "may have to wait for a node.",
        commands=TRAIN,
    )
    critical_worker_index: CriticalWorkers = knob(
        "default",
        "Workers whose loss ends the job, as index:relaunches; none, or default (none but an Estimator's chief).",
        metavar="I:N,I:N",
        commands=TRAIN,
        later="workers that the job cannot lose",
    )
    enable_automate_memory: bool = knob(
        True,
        "Restart a worker that ran out of memory with more memory.",
        commands=TRAIN,
    )
    relaunch_timeout_worker: bool = knob(
        False,
        "Whether a slow worker was replaced, in older versions.",
        commands=TRAIN,
        gone="a worker without progress is always replaced, after --hang_seconds",
    )
    task_fault_tolerance: bool = knob(
        True,
        "Whether another worker took over the shards of a lost one, in older versions.",
        commands=TRAIN,
        gone="every record is always trained exactly once per epoch",
    )
    need_elasticdl_job_service: bool = knob(
        False, "Whether the master served ElasticDL's own workers, in older versions.", commands=TRAIN, gone=INFERRED
    )
    need_task_manager: bool = knob(
        True, "Whether the master handed out shards, in older versions.", commands=TRAIN, gone=INFERRED
    )
    need_pod_manager: bool = knob(
        True, "Whether the master managed the pods, in older versions.", commands=TRAIN, gone=INFERRED
    )


class ByHandKnobs(KnobGroup):
    title: ClassVar[str] = "A master or worker started by hand"

    workers_by_hand: bool = knob(
        False,
        "Do not start workers: train with those that you start and that connect to this master.",
        commands=BY_HAND,
    )
    worker_id: OptionalCount = knob(None, "The number of this worker.", commands=BY_HAND)
    master_addr: Text = knob(None, "The address of the master.", metavar="HOST:PORT", commands=BY_HAND)
    token_file: Text = knob(
        None,
        "A file with the secret that master and workers share; without it, the master accepts every worker.",
        metavar="FILE",
        commands=BY_HAND,
    )

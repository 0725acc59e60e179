"""Knobs of the workers, and of what happens when a replica fails."""

from __future__ import annotations

from typing import ClassVar

from elasticdl.job.knob import BY_HAND, TRAIN, KnobGroup, knob
from elasticdl.job.values import Count, CriticalWorkers, OptionalCount, Positive, Seconds, Text

INFERRED = "ElasticDL works this out from the rest of the job"


class WorkersKnobs(KnobGroup):
    title: ClassVar[str] = "Workers and faults"

    num_workers: Positive = knob(2, "How many workers train.", common=True)
    relaunch_on_worker_failure: Count = knob(
        1,
        "How often a worker that crashed is replaced before the job fails. Being killed or preempted never counts.",
        commands=TRAIN,
    )
    hang_seconds: Seconds = knob(
        300.0, "A worker that makes no progress for this long is replaced.", aliases=("lease_seconds",)
    )
    start_seconds: Seconds = knob(120.0, "How long a replica may take from its start until it reports to the master.")
    reconnect_seconds: Seconds = knob(
        30.0, "How long the master waits for a replica whose connection broke before it replaces it."
    )
    master_grace_seconds: Seconds = knob(
        60.0,
        "How long workers and servers go on without hearing from the master; by default 300 in a cluster, where its "
        "pod may have to wait for room.",
        commands=TRAIN,
    )
    critical_worker_index: CriticalWorkers = knob(
        "default",
        "Workers whose loss ends the job, as index:relaunches; none, or default (none but an Estimator's chief).",
        metavar="I:N,I:N",
        commands=TRAIN,
        later="workers that the job cannot do without",
    )
    enable_automate_memory: bool = knob(
        True,
        "Whether a worker that ran out of memory comes back with more.",
        commands=TRAIN,
    )
    relaunch_timeout_worker: bool = knob(
        False,
        "Whether a worker that took too long was replaced, in older versions.",
        commands=TRAIN,
        gone="a worker without progress is always replaced, after --hang_seconds",
    )
    task_fault_tolerance: bool = knob(
        True,
        "Whether the shards of a lost worker went to another, in older versions.",
        commands=TRAIN,
        gone="every record is trained exactly once, always",
    )
    need_elasticdl_job_service: bool = knob(
        False, "Whether the master served ElasticDL's own workers, in older versions.", commands=TRAIN, gone=INFERRED
    )
    need_task_manager: bool = knob(
        True, "Whether the master handed out shards, in older versions.", commands=TRAIN, gone=INFERRED
    )
    need_pod_manager: bool = knob(
        True, "Whether the master looked after the pods, in older versions.", commands=TRAIN, gone=INFERRED
    )


class ByHandKnobs(KnobGroup):
    title: ClassVar[str] = "A master or worker started by hand"

    workers_by_hand: bool = knob(
        False,
        "Whether nobody starts workers: those that somebody starts, and that come to this master, train.",
        commands=BY_HAND,
    )
    worker_id: OptionalCount = knob(None, "Which worker this is.", commands=BY_HAND)
    master_addr: Text = knob(None, "Where the master listens.", metavar="HOST:PORT", commands=BY_HAND)
    token_file: Text = knob(
        None,
        "A file with the secret that master and workers share; without one every worker that comes takes part.",
        metavar="FILE",
        commands=BY_HAND,
    )

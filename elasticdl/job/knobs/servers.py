"""Knobs of the parameter servers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from elasticdl.job.knob import TRAIN, KnobGroup, knob
from elasticdl.job.resources import ByteCount
from elasticdl.job.values import Count, OptionalCount, Positive, on_off


class ServersKnobs(KnobGroup):
    title: ClassVar[str] = "Parameter servers"

    num_ps_pods: Count = knob(
        0,
        "How many parameter servers share the model; 0 means one where the strategy needs one.",
        aliases=("num_ps",),
        common=True,
    )
    table_threshold_bytes: ByteCount = knob(
        2 << 20,
        "Plain Embedding layers of Keras and torch whose weights have at least this many bytes become tables on the "
        "servers, and plain layers again in the exported model; 0 leaves them all in the model.",
        metavar="BYTES",
    )
    encrypt_data_plane: bool | None = knob(
        None,
        "Whether rows and gradients are encrypted between workers and servers, with keys made for the job; by default "
        "they are between pods, and are not between processes of one machine.",
    )
    use_async: bool | None = knob(
        None,
        "Whether servers apply each gradient as it comes: yes, unless this is false, --grads_to_wait is above 1 or "
        "--sync_version_tolerance is given.",
        commands=TRAIN,
    )
    grads_to_wait: Positive = knob(
        1,
        "How many gradients servers average before they apply them; above 1 training is synchronous.",
        commands=TRAIN,
    )
    sync_version_tolerance: OptionalCount = knob(
        None,
        "How many versions old a gradient may be in synchronous training.",
        commands=TRAIN,
    )
    lr_staleness_modulation: bool = knob(
        False,
        "Whether servers divide the learning rate by the age of a gradient: the versions since the one it was "
        "computed on, where that is more than 1.",
        commands=TRAIN,
    )
    get_model_steps: Positive = knob(
        1,
        "A worker pulls dense values every this many steps and trains on its own copy in between, which its own "
        "gradients move.",
        commands=TRAIN,
    )
    ps_is_critical: bool = knob(
        True,
        "Whether the job fails when a server is lost for good.",
        commands=TRAIN,
        later="going on without a lost server",
    )
    ps_relaunch_max_num: Count = knob(
        1,
        "How often a server that failed is started again, from the newest checkpoint; preemption does not count.",
        commands=TRAIN,
    )
    launch_worker_after_ps_running: Annotated[Literal["default", "on", "off"], BeforeValidator(on_off)] = knob(
        "default",
        "Whether workers started only after all servers ran, in older versions.",
        commands=TRAIN,
        gone="all replicas start at once, and a worker trains as soon as every server answers",
    )

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
        "How many parameter servers hold the model; 0 means one where the strategy needs one.",
        aliases=("num_ps",),
        common=True,
    )
    table_threshold_bytes: ByteCount = knob(
        2 << 20,
        "Embedding layers of Keras and torch with at least this many bytes of weights become tables on the servers, "
        "and plain layers again in the exported model; 0 keeps all of them in the model.",
        metavar="BYTES",
    )
    encrypt_data_plane: bool | None = knob(
        None,
        "Encrypt rows and gradients between workers and servers, with keys made for the job. The default is true "
        "between pods and false between processes of one machine.",
    )
    use_async: bool | None = knob(
        None,
        "Servers apply each gradient when it arrives. This is the default unless --grads_to_wait is above 1 or "
        "--sync_version_tolerance is given.",
        commands=TRAIN,
    )
    grads_to_wait: Positive = knob(
        1,
        "How many gradients the servers average before they apply them; above 1 makes training synchronous.",
        commands=TRAIN,
    )
    sync_version_tolerance: OptionalCount = knob(
        None,
        "In synchronous training, how many versions old a gradient may be.",
        commands=TRAIN,
    )
    lr_staleness_modulation: bool = knob(
        False,
        "Divide the learning rate by the age of a gradient: the versions since the one it was computed on, where that "
        "is more than 1.",
        commands=TRAIN,
    )
    get_model_steps: Positive = knob(
        1,
        "Pull dense values every this many steps; in between, a worker trains on its own copy and updates it with its "
        "own gradients.",
        commands=TRAIN,
    )
    ps_is_critical: bool = knob(
        True,
        "Fail the job when a server is lost for good.",
        commands=TRAIN,
        later="continuing without a lost server",
    )
    ps_relaunch_max_num: Count = knob(
        1,
        "How often a failed server is restarted from the newest checkpoint; preemption does not count.",
        commands=TRAIN,
    )
    launch_worker_after_ps_running: Annotated[Literal["default", "on", "off"], BeforeValidator(on_off)] = knob(
        "default",
        "Whether workers started after all servers were running, in older versions.",
        commands=TRAIN,
        gone="all replicas start at once, and a worker trains as soon as every server answers",
    )

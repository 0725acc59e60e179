from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "worker")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker: int
    def __init__(self, protocol: _Optional[int] = ..., worker: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("replica", "job", "datasets")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    replica: str
    job: str
    datasets: str
    def __init__(self, replica: _Optional[str] = ..., job: _Optional[str] = ..., datasets: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("datasets",)
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    datasets: str
    def __init__(self, datasets: _Optional[str] = ...) -> None: ...

class FromReplica(_message.Message):
    __slots__ = ("hello", "progress", "completed", "failed", "returned", "leaving", "held", "frozen", "unfit", "wrote", "restored", "confirmed", "broken", "pulse", "stored", "evaluated", "exported", "formed", "stack", "set_aside", "usage")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    WROTE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    PULSE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    FORMED_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    progress: Progress
    completed: Completed
    failed: Failed
    returned: Returned
    leaving: Leaving
    held: Held
    frozen: Frozen
    unfit: Unfit
    wrote: Wrote
    restored: Restored
    confirmed: Confirmed
    broken: Broken
    pulse: Pulse
    stored: Stored
    evaluated: Evaluated
    exported: Exported
    formed: Formed
    stack: Stack
    set_aside: SetAside
    usage: Usage
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., returned: _Optional[_Union[Returned, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., frozen: _Optional[_Union[Frozen, _Mapping]] = ..., unfit: _Optional[_Union[Unfit, _Mapping]] = ..., wrote: _Optional[_Union[Wrote, _Mapping]] = ..., restored: _Optional[_Union[Restored, _Mapping]] = ..., confirmed: _Optional[_Union[Confirmed, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., pulse: _Optional[_Union[Pulse, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., exported: _Optional[_Union[Exported, _Mapping]] = ..., formed: _Optional[_Union[Formed, _Mapping]] = ..., stack: _Optional[_Union[Stack, _Mapping]] = ..., set_aside: _Optional[_Union[SetAside, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "replica", "incarnation", "address", "capacity", "holdings", "timeline", "generation", "state", "fingerprint", "evaluations", "wrote", "exported", "set_aside")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    WROTE_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    replica: str
    incarnation: str
    address: str
    capacity: int
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    timeline: int
    generation: int
    state: StateName
    fingerprint: str
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluated]
    wrote: _containers.RepeatedCompositeFieldContainer[Wrote]
    exported: Exported
    set_aside: _containers.RepeatedCompositeFieldContainer[SetAside]
    def __init__(self, protocol: _Optional[int] = ..., replica: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., capacity: _Optional[int] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., timeline: _Optional[int] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[StateName, _Mapping]] = ..., fingerprint: _Optional[str] = ..., evaluations: _Optional[_Iterable[_Union[Evaluated, _Mapping]]] = ..., wrote: _Optional[_Iterable[_Union[Wrote, _Mapping]]] = ..., exported: _Optional[_Union[Exported, _Mapping]] = ..., set_aside: _Optional[_Iterable[_Union[SetAside, _Mapping]]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("shard", "attempt", "next_batch", "completed", "result", "skipped")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    next_batch: int
    completed: bool
    result: str
    skipped: int
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., next_batch: _Optional[int] = ..., completed: bool = ..., result: _Optional[str] = ..., skipped: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("shard", "attempt", "next_batch", "loss", "skipped")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    next_batch: int
    loss: float
    skipped: int
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., next_batch: _Optional[int] = ..., loss: _Optional[float] = ..., skipped: _Optional[int] = ...) -> None: ...

class Completed(_message.Message):
    __slots__ = ("shard", "attempt", "result")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    result: str
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., result: _Optional[str] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("shard", "attempt", "batch", "error")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    batch: int
    error: str
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., batch: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("shard", "attempt", "reason")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    reason: str
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Unfit(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class Counter(_message.Message):
    __slots__ = ("shard", "next_batch")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    shard: str
    next_batch: int
    def __init__(self, shard: _Optional[str] = ..., next_batch: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("cut", "counters", "at", "coming")
    CUT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    COMING_FIELD_NUMBER: _ClassVar[int]
    cut: int
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    at: int
    coming: bool
    def __init__(self, cut: _Optional[int] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., at: _Optional[int] = ..., coming: bool = ...) -> None: ...

class Frozen(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class Wrote(_message.Message):
    __slots__ = ("cut", "part", "error")
    CUT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cut: int
    part: str
    error: str
    def __init__(self, cut: _Optional[int] = ..., part: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Restored(_message.Message):
    __slots__ = ("timeline", "error")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    error: str
    def __init__(self, timeline: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class StateName(_message.Message):
    __slots__ = ("generation", "step", "records")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    records: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class Confirmed(_message.Message):
    __slots__ = ("generation", "state", "left_seconds")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    state: StateName
    left_seconds: float
    def __init__(self, generation: _Optional[int] = ..., state: _Optional[_Union[StateName, _Mapping]] = ..., left_seconds: _Optional[float] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("generation", "step", "error", "suspects", "unreadable")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    error: str
    suspects: _containers.RepeatedScalarFieldContainer[str]
    unreadable: str
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., error: _Optional[str] = ..., suspects: _Optional[_Iterable[str]] = ..., unreadable: _Optional[str] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("generation", "step", "phase", "seconds", "loss", "has_loss", "step_seconds", "first_step_seconds", "records")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    HAS_LOSS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    phase: str
    seconds: float
    loss: float
    has_loss: bool
    step_seconds: float
    first_step_seconds: float
    records: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., seconds: _Optional[float] = ..., loss: _Optional[float] = ..., has_loss: bool = ..., step_seconds: _Optional[float] = ..., first_step_seconds: _Optional[float] = ..., records: _Optional[int] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("generation", "key", "value")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    key: str
    value: bytes
    def __init__(self, generation: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("version", "metrics")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    version: int
    metrics: str
    def __init__(self, version: _Optional[int] = ..., metrics: _Optional[str] = ...) -> None: ...

class Exported(_message.Message):
    __slots__ = ("directory", "error", "audit", "number")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    directory: str
    error: str
    audit: str
    number: int
    def __init__(self, directory: _Optional[str] = ..., error: _Optional[str] = ..., audit: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Formed(_message.Message):
    __slots__ = ("generation", "build_seconds", "copy_seconds", "copied_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BUILD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    build_seconds: float
    copy_seconds: float
    copied_bytes: int
    def __init__(self, generation: _Optional[int] = ..., build_seconds: _Optional[float] = ..., copy_seconds: _Optional[float] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class SetAside(_message.Message):
    __slots__ = ("record", "name", "error")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    record: int
    name: str
    error: str
    def __init__(self, record: _Optional[int] = ..., name: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("cpu", "memory_bytes")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    memory_bytes: int
    def __init__(self, cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Stack(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ToReplica(_message.Message):
    __slots__ = ("welcome", "members", "grant", "revoke", "close", "hold", "advance", "freeze", "release", "drop_view", "shutdown", "opened", "open_shards", "close_shard", "close_epoch", "restore", "settle", "proposal", "start", "stored", "save", "export", "hung")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DROP_VIEW_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    OPEN_SHARDS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SHARD_FIELD_NUMBER: _ClassVar[int]
    CLOSE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    HUNG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    members: Members
    grant: Grant
    revoke: Revoke
    close: Close
    hold: Hold
    advance: Advance
    freeze: Freeze
    release: Release
    drop_view: DropView
    shutdown: Shutdown
    opened: Opened
    open_shards: OpenShards
    close_shard: CloseShard
    close_epoch: CloseEpoch
    restore: Restore
    settle: Settle
    proposal: Proposal
    start: Start
    stored: Stored
    save: Save
    export: Export
    hung: Hung
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., members: _Optional[_Union[Members, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ..., freeze: _Optional[_Union[Freeze, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., drop_view: _Optional[_Union[DropView, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., open_shards: _Optional[_Union[OpenShards, _Mapping]] = ..., close_shard: _Optional[_Union[CloseShard, _Mapping]] = ..., close_epoch: _Optional[_Union[CloseEpoch, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., export: _Optional[_Union[Export, _Mapping]] = ..., hung: _Optional[_Union[Hung, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("master_epoch",)
    MASTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    master_epoch: int
    def __init__(self, master_epoch: _Optional[int] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("timeline", "servers")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, timeline: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("shard", "attempt", "kind", "round", "start", "stop", "batches", "next_batch", "payload", "bad_records", "careful")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    CAREFUL_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    kind: str
    round: int
    start: int
    stop: int
    batches: int
    next_batch: int
    payload: str
    bad_records: _containers.RepeatedScalarFieldContainer[int]
    careful: bool
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., round: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., batches: _Optional[int] = ..., next_batch: _Optional[int] = ..., payload: _Optional[str] = ..., bad_records: _Optional[_Iterable[int]] = ..., careful: bool = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("shard", "attempt", "reason")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    reason: str
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("shard", "attempt")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("shard", "attempt", "next_batch", "batches")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: int
    next_batch: int
    batches: int
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[int] = ..., next_batch: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class OpenShards(_message.Message):
    __slots__ = ("open",)
    OPEN_FIELD_NUMBER: _ClassVar[int]
    open: _containers.RepeatedCompositeFieldContainer[Opened]
    def __init__(self, open: _Optional[_Iterable[_Union[Opened, _Mapping]]] = ...) -> None: ...

class CloseShard(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class CloseEpoch(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("cut", "at")
    CUT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    at: int
    def __init__(self, cut: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("cut", "counters")
    CUT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    cut: int
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    def __init__(self, cut: _Optional[int] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ...) -> None: ...

class Freeze(_message.Message):
    __slots__ = ("cut", "purpose", "directory")
    CUT_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    cut: int
    purpose: str
    directory: str
    def __init__(self, cut: _Optional[int] = ..., purpose: _Optional[str] = ..., directory: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("timeline", "directory", "version", "open", "servers", "round_batches", "epoch_batches", "tolerance")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_BATCHES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    directory: str
    version: int
    open: _containers.RepeatedCompositeFieldContainer[Opened]
    servers: int
    round_batches: int
    epoch_batches: int
    tolerance: int
    def __init__(self, timeline: _Optional[int] = ..., directory: _Optional[str] = ..., version: _Optional[int] = ..., open: _Optional[_Iterable[_Union[Opened, _Mapping]]] = ..., servers: _Optional[int] = ..., round_batches: _Optional[int] = ..., epoch_batches: _Optional[int] = ..., tolerance: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("cut", "published", "directory")
    CUT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    cut: int
    published: bool
    directory: str
    def __init__(self, cut: _Optional[int] = ..., published: bool = ..., directory: _Optional[str] = ...) -> None: ...

class DropView(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    def __init__(self, cut: _Optional[int] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("generation", "members", "urgent", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    members: _containers.RepeatedScalarFieldContainer[str]
    urgent: bool
    reason: str
    def __init__(self, generation: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., urgent: bool = ..., reason: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("generation", "members", "state", "copies", "directory", "evaluated")
    class CopiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    members: _containers.RepeatedScalarFieldContainer[str]
    state: StateName
    copies: _containers.ScalarMap[str, str]
    directory: str
    evaluated: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[StateName, _Mapping]] = ..., copies: _Optional[_Mapping[str, str]] = ..., directory: _Optional[str] = ..., evaluated: _Optional[_Iterable[int]] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("cut", "directory", "at")
    CUT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    cut: int
    directory: str
    at: int
    def __init__(self, cut: _Optional[int] = ..., directory: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class Export(_message.Message):
    __slots__ = ("directory", "audit", "bad_records", "number", "run")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    directory: str
    audit: bool
    bad_records: _containers.RepeatedScalarFieldContainer[int]
    number: int
    run: int
    def __init__(self, directory: _Optional[str] = ..., audit: bool = ..., bad_records: _Optional[_Iterable[int]] = ..., number: _Optional[int] = ..., run: _Optional[int] = ...) -> None: ...

class Hung(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("role", "count")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    role: str
    count: int
    def __init__(self, role: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("job", "phase", "reason", "records_done", "records_total", "epoch", "epochs", "version", "version_total", "loss", "has_loss", "records_per_second", "evaluations", "replicas", "decisions", "losses", "recovery_seconds", "bad_records", "started_at", "now", "output", "checkpoint", "master_starts", "epochs_done", "audit", "timeline", "repeated_batches", "servers", "servers_wanted", "rollbacks", "mode", "skipped_batches", "generation", "world", "changes", "incidents", "usage")
    class IncidentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UsageEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Usage
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    HAS_LOSS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MASTER_STARTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_DONE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    REPEATED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    job: str
    phase: str
    reason: str
    records_done: int
    records_total: int
    epoch: int
    epochs: int
    version: int
    version_total: int
    loss: float
    has_loss: bool
    records_per_second: float
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationStatus]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    losses: int
    recovery_seconds: _containers.RepeatedScalarFieldContainer[float]
    bad_records: _containers.RepeatedScalarFieldContainer[str]
    started_at: float
    now: float
    output: str
    checkpoint: str
    master_starts: int
    epochs_done: _containers.RepeatedCompositeFieldContainer[EpochStatus]
    audit: str
    timeline: int
    repeated_batches: int
    servers: int
    servers_wanted: int
    rollbacks: int
    mode: str
    skipped_batches: int
    generation: int
    world: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.RepeatedCompositeFieldContainer[WorldChange]
    incidents: _containers.ScalarMap[str, int]
    usage: _containers.MessageMap[str, Usage]
    def __init__(self, job: _Optional[str] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., records_done: _Optional[int] = ..., records_total: _Optional[int] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., version: _Optional[int] = ..., version_total: _Optional[int] = ..., loss: _Optional[float] = ..., has_loss: bool = ..., records_per_second: _Optional[float] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationStatus, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., losses: _Optional[int] = ..., recovery_seconds: _Optional[_Iterable[float]] = ..., bad_records: _Optional[_Iterable[str]] = ..., started_at: _Optional[float] = ..., now: _Optional[float] = ..., output: _Optional[str] = ..., checkpoint: _Optional[str] = ..., master_starts: _Optional[int] = ..., epochs_done: _Optional[_Iterable[_Union[EpochStatus, _Mapping]]] = ..., audit: _Optional[str] = ..., timeline: _Optional[int] = ..., repeated_batches: _Optional[int] = ..., servers: _Optional[int] = ..., servers_wanted: _Optional[int] = ..., rollbacks: _Optional[int] = ..., mode: _Optional[str] = ..., skipped_batches: _Optional[int] = ..., generation: _Optional[int] = ..., world: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[WorldChange, _Mapping]]] = ..., incidents: _Optional[_Mapping[str, int]] = ..., usage: _Optional[_Mapping[str, Usage]] = ...) -> None: ...

class WorldChange(_message.Message):
    __slots__ = ("generation", "at", "who", "why", "detect", "abort", "agree", "rebuild", "copy", "first_step", "total", "copied_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DETECT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    AGREE_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    at: float
    who: str
    why: str
    detect: float
    abort: float
    agree: float
    rebuild: float
    copy: float
    first_step: float
    total: float
    copied_bytes: int
    def __init__(self, generation: _Optional[int] = ..., at: _Optional[float] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., detect: _Optional[float] = ..., abort: _Optional[float] = ..., agree: _Optional[float] = ..., rebuild: _Optional[float] = ..., copy: _Optional[float] = ..., first_step: _Optional[float] = ..., total: _Optional[float] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class EpochStatus(_message.Message):
    __slots__ = ("epoch", "records", "batches")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    records: int
    batches: int
    def __init__(self, epoch: _Optional[int] = ..., records: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class EvaluationStatus(_message.Message):
    __slots__ = ("version", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    version: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, version: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("name", "role", "state", "detail", "since", "leases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    state: str
    detail: str
    since: float
    leases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., since: _Optional[float] = ..., leases: _Optional[_Iterable[str]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("at", "text")
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at: float
    text: str
    def __init__(self, at: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

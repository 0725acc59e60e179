"""The messages between a `LocalCluster` and the launcher: JSON, one message per line.

A client sends calls; the launcher answers each with one reply that has the call's id. After a `watch` call, status
changes follow on that connection.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from elasticdl.cluster.protocol import ReplicaRequest, ReplicaStatus

MOST_LINE_BYTES = 8 << 20  # a launch contains a whole environment, of up to about 2 MiB


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Launch(Message):
    do: Literal["launch"] = "launch"
    request: ReplicaRequest


class Stop(Message):
    do: Literal["stop"] = "stop"
    name: str
    grace_seconds: float = Field(ge=0, allow_inf_nan=False)


class Kill(Message):
    do: Literal["kill"] = "kill"
    name: str


class List(Message):
    do: Literal["list"] = "list"


class Watch(Message):
    do: Literal["watch"] = "watch"


Action = Launch | Stop | Kill | List | Watch


class Call(Message):
    id: int
    action: Annotated[Action, Field(discriminator="do")]


class Reply(Message):
    kind: Literal["reply"] = "reply"
    id: int | None  # None: the call had no readable id
    refused: str | None = None
    replicas: list[ReplicaStatus] | None = None


class ReplicaChanged(Message):
    kind: Literal["event"] = "event"
    status: ReplicaStatus


_ANSWER: TypeAdapter[Reply | ReplicaChanged] = TypeAdapter(
    Annotated[Reply | ReplicaChanged, Field(discriminator="kind")]
)


class Malformed(ValueError):
    """A line that is not a message; `call_id` is the id of the call, if it can be read."""

    def __init__(self, what: str, call_id: int | None = None) -> None:
        super().__init__(what)
        self.call_id = call_id


def encode(message: Message) -> bytes:
    return message.model_dump_json().encode() + b"\n"


def decode_call(line: bytes) -> Call:
    try:
        return Call.model_validate_json(line)
    except ValidationError as error:
        raise Malformed(_describe(error), _id_in(line)) from error


def decode_answer(line: bytes) -> Reply | ReplicaChanged:
    try:
        return _ANSWER.validate_json(line)
    except ValidationError as error:
        raise Malformed(_describe(error)) from error


class _Id(BaseModel):
    model_config = ConfigDict(strict=True)
    id: int


def _id_in(line: bytes) -> int | None:
    try:
        return _Id.model_validate_json(line).id
    except ValidationError:
        return None


def _describe(error: ValidationError) -> str:
    problems = (f"{'.'.join(map(str, e['loc'])) or 'message'}: {e['msg']}" for e in error.errors(include_url=False))
    return "; ".join(problems)

"""The control service on either side of a gRPC connection, made from its description in control.proto."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from elasticdl.wire import control_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Control"]


class ControlStub:
    """A client: `ControlStub(channel).Watch(request, metadata=...)`, on a blocking or an asyncio channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        if name not in _SERVICE.methods_by_name:
            raise AttributeError(name)
        kind, request, reply = _shape(name)
        return getattr(self._channel, kind)(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )


def serve_control(servicer: object, server: grpc.aio.Server) -> None:
    """Answer calls with the methods of `servicer`; gRPC refuses those that it does not have."""
    handlers = {}
    for name in _SERVICE.methods_by_name:
        if (answer := getattr(servicer, name, None)) is not None:
            kind, request, reply = _shape(name)
            handlers[name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                answer, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
            )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),))


def _shape(name: str) -> tuple[str, Any, Any]:
    """Which sides of a method stream, as gRPC calls it, and the classes of its messages."""
    method = _SERVICE.methods_by_name[name]
    kind = "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    return kind, GetMessageClass(method.input_type), GetMessageClass(method.output_type)

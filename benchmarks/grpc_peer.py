"""A parameter server as people write one with gRPC: protobuf messages, numpy tables; to compare with, nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
RATE, EPSILON = 0.01, 1e-7
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def _message() -> Any:
    """message Rows { bytes ids = 1; bytes values = 2; }"""
    file = descriptor_pb2.FileDescriptorProto(name="peer.proto", package="peer", syntax="proto3")
    rows = file.message_type.add(name="Rows")
    kind = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    for number, name in enumerate(("ids", "values"), 1):
        rows.field.add(name=name, number=number, type=kind, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("peer.Rows"))


Rows = _message()


class Table:
    """Rows at their ids, Adagrad on the distinct ones."""

    def __init__(self, rows: int, dim: int) -> None:
        self.weights = np.random.default_rng(1).uniform(-0.05, 0.05, (rows, dim)).astype(np.float32)
        self.accumulators = np.full((rows, dim), 0.1, np.float32)
        self.dim = dim
        self.lock = threading.Lock()

    def pull(self, request: Any, _: Any) -> Any:
        ids = np.frombuffer(request.ids, np.int64)
        with self.lock:
            return Rows(values=self.weights[ids].tobytes())

    def push(self, request: Any, _: Any) -> Any:
        ids = np.frombuffer(request.ids, np.int64)
        gradients = np.frombuffer(request.values, np.float32).reshape(-1, self.dim)
        with self.lock:
            accumulator = self.accumulators[ids] + gradients**2
            self.accumulators[ids] = accumulator
            self.weights[ids] -= RATE * gradients / np.sqrt(accumulator + EPSILON)
        return Rows()


def _serve(rows: int, dim: int) -> None:
    table = Table(rows, dim)
    server = grpc.server(futures.ThreadPoolExecutor(2), options=OPTIONS)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=Rows.FromString, response_serializer=Rows.SerializeToString
        )
        for name, call in (("Pull", table.pull), ("Push", table.push))
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer.Table", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(0)


@contextmanager
def serving_peer(count: int, rows: int, dim: int) -> Iterator[list[str]]:
    """Servers that end with this block, or with this process."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            command = [sys.executable, __file__, str(-(-rows // count)), str(dim)]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(server.wait)
            assert server.stdin is not None
            stack.callback(server.stdin.close)
            started.append(server)
        yield [s.stdout.readline().strip() for s in started if s.stdout is not None]


class Peer:
    """Asks all servers at once; an id lies on server id % servers."""

    def __init__(self, addresses: Sequence[str], dim: int) -> None:
        self.dim = dim
        self._channels = [grpc.insecure_channel(a, options=OPTIONS) for a in addresses]
        calls = [
            {
                name: channel.unary_unary(
                    f"/peer.Table/{name}",
                    request_serializer=Rows.SerializeToString,
                    response_deserializer=Rows.FromString,
                )
                for name in ("Pull", "Push")
            }
            for channel in self._channels
        ]
        self._pull, self._push = [c["Pull"] for c in calls], [c["Push"] for c in calls]

    def pull(self, ids: Ids) -> Floats:
        owner, local = ids % len(self._pull), ids // len(self._pull)
        out = np.empty((len(ids), self.dim), np.float32)
        coming = [call.future(Rows(ids=local[owner == s].tobytes())) for s, call in enumerate(self._pull)]
        for s, answer in enumerate(coming):
            out[owner == s] = np.frombuffer(answer.result().values, np.float32).reshape(-1, self.dim)
        return out

    def push(self, ids: Ids, gradients: Floats) -> None:
        owner, local = ids % len(self._push), ids // len(self._push)
        coming = [
            call.future(Rows(ids=local[owner == s].tobytes(), values=gradients[owner == s].tobytes()))
            for s, call in enumerate(self._push)
        ]
        for answer in coming:
            answer.result()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


if __name__ == "__main__" and sys.argv[1:]:
    _serve(int(sys.argv[1]), int(sys.argv[2]))

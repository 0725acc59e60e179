"""A program that knows the addresses of a job's master and server, but no secrets; prints their answers as JSON.

outsider.py MASTER_HOST:PORT SERVER_ADDRESS
"""

from __future__ import annotations

import json
import ssl
import sys

import grpc
import zmq

from elasticdl.wire import auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.auth import Keys
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.frames import Greet, Header

SECONDS = 3.0


def asked(channel: grpc.Channel, token: str) -> str:
    """The master's answer to a client with this token."""
    stub, metadata = ControlStub(channel), auth.metadata(token)
    try:
        stub.Stop(pb.StopRequest(reason="an outsider"), metadata=metadata, timeout=SECONDS)
        return "did it"
    except grpc.RpcError as error:
        return str(error.code().name)


def control(address: str) -> dict[str, str]:
    host, port = address.rsplit(":", 1)
    shown = ssl.get_server_certificate((host, int(port)), timeout=SECONDS)  # every client gets it
    other, _ = tls.make("elasticdl-another-master")
    found = {}
    with tls.blocking_channel(address, (), None) as channel:
        found["in plain text"] = asked(channel, "guessed")
    with tls.blocking_channel(address, (), other) as channel:
        found["trusting another certificate"] = asked(channel, "guessed")
    with tls.blocking_channel(address, (), shown) as channel:
        found["without a token"] = asked(channel, "")
        found["with a guessed token"] = asked(channel, "0" * 64)
    return found


def greeted(address: str, keys: Keys | None) -> str:
    """A server's answer to a client with these keys."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        keys.connect(socket)
    socket.connect(address)
    socket.send_multipart([Header(1, 1, Greet()).pack(), b"guessed"])
    answer = "answers" if socket.poll(int(SECONDS * 1000)) else "silence"
    socket.close(0)
    context.term()
    return answer


if __name__ == "__main__":
    master, server = sys.argv[1:]
    data = {"in plain text": greeted(server, None), "with another key": greeted(server, Keys.new())}
    print(json.dumps({"control": control(master), "data": data}))

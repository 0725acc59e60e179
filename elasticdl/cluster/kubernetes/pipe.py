"""Connects standard input and output of a process in a pod to one of the pod's ports.

Commands such as `elasticdl status` run it in a pod to reach the master through the API server. The text of this file is
the program: it imports only the standard library.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

READY = b"joined to the port\n"  # comes first; other output before it is an error message
_CHUNK = 1 << 16
_CONNECT_SECONDS = 5.0


def main(port: int) -> int:
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS)
    except OSError as error:
        print(f"nothing listens on port {port} of this pod: {error.strerror or error}", file=sys.stderr)
        return 1
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _write_all(1, READY)
    threading.Thread(target=_read_input, args=(connection,), daemon=True).start()
    while data := connection.recv(_CHUNK):
        _write_all(1, data)
    return 0


def _read_input(connection: socket.socket) -> None:
    """Forward the input, and end the process when the input ends."""
    try:
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
    finally:
        os._exit(0)  # the other thread is blocked on the port


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

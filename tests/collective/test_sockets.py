"""Which connections belong to a group, and that only those are shut down."""

from __future__ import annotations

import socket
import struct

from elasticdl.collective.sockets import listening_address, named_in, shut_down


def stored(family: int, address: bytes, port: int, host: bytes = b"node") -> bytes:
    head = struct.pack("=HH", family, socket.htons(port))
    body = head + (address if family == socket.AF_INET else bytes(4) + address)
    return struct.pack("<Q", len(host)) + host + struct.pack("<Q", 136) + body.ljust(136, b"\0")


def connected(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    return client, accepted


def test_an_address_is_read_from_what_a_member_has_stored() -> None:
    four, six = socket.inet_aton("10.1.2.3"), socket.inet_pton(socket.AF_INET6, "fd00::7")
    assert listening_address(stored(socket.AF_INET, four, 4711)) == ("10.1.2.3", 4711)
    assert listening_address(stored(socket.AF_INET6, six, 4711)) == ("fd00::7", 4711)


def test_an_unknown_format_gives_no_address() -> None:
    for value in (b"", b"x", bytes(200), b"\xff" * 200, stored(socket.AF_UNIX, b"", 1)):
        assert listening_address(value) is None


def test_an_error_names_the_rank_whose_port_it_holds_with_its_bytes_swapped() -> None:
    addresses = {0: ("127.0.0.1", 0x1234), 1: ("127.0.0.1", 0x3412), 2: ("10.0.0.2", 0x3412)}
    swapped = f"Connection closed by peer [10.0.0.2]:{0x1234}. This is typically caused by a crash."
    assert named_in(swapped, addresses) == [2]
    assert named_in("Timed out waiting 500ms for recv operation to complete", addresses) == []


def test_only_connections_of_the_group_are_shut_down_at_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as foreign:
        pairs = [*connected(ours), *connected(foreign)]
        assert shut_down([ours.getsockname()]) == 2
        assert pairs[0].recv(1) == b"" and pairs[1].recv(1) == b""
        pairs[2].sendall(b"x")
        assert pairs[3].recv(1) == b"x"
        late = connected(ours)
        late[0].sendall(b"y")
        assert late[1].recv(1) == b"y", "the listening socket itself was shut down"
        for connection in (*pairs, *late):
            connection.close()

"""The control plane with TLS: only clients that trust the job's certificate reach the master."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import grpc
import pytest

from elasticdl.cli.master_client import MasterClient
from elasticdl.core import events as e
from elasticdl.errors import JobFailed, Unreachable, UsageError
from elasticdl.job import names
from elasticdl.wire import auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.link import OPTIONS
from tests.wire.loopback import TOKEN, Hall, Replica

Run = Callable[..., None]

CERTIFICATE, KEY = tls.make("elasticdl-j-master")
GIVEN = {names.ENV_TLS_CERT: CERTIFICATE, names.ENV_TLS_KEY: KEY}


def secure_hall() -> Hall:
    """As a master of a cluster listens."""
    return Hall(env=GIVEN)


def quick(address: str, certificate: str | None) -> Replica:
    """One that soon gives up."""
    return Replica(address, patience_seconds=0.5, certificate=certificate)


def test_a_replica_with_the_certificate_is_welcomed_whatever_address_it_came_by(run: Run) -> None:
    async def story() -> None:
        async with secure_hall() as hall:
            for address in (hall.address, f"localhost:{hall.port}"):
                async with Replica(address, certificate=CERTIFICATE) as replica:
                    assert (await replica.receive("welcome")).master_epoch == 1
                    await hall.hear(e.ReplicaJoined)

    run(story())


@pytest.mark.parametrize("certificate", [None, tls.make("elasticdl-j-master")[0]], ids=["plain text", "another one"])
def test_a_client_that_does_not_trust_the_certificate_sends_nothing_to_the_master(
    run: Run, certificate: str | None
) -> None:
    async def story() -> None:
        async with secure_hall() as hall, quick(hall.address, certificate) as replica:
            with pytest.raises(Unreachable, match="no master at"):
                await asyncio.wait_for(replica.task, 10)
            assert hall.heard.empty()

    run(story())


def test_a_master_without_the_key_is_not_spoken_to(run: Run) -> None:
    """It takes the master's place on the network and receives neither the token nor a message."""
    seen: list[bytes] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            seen.append(await reader.read(1 << 16))
        writer.close()

    async def story() -> None:
        impostor = await asyncio.start_server(swallow, "127.0.0.1", 0)
        port = impostor.sockets[0].getsockname()[1]
        async with impostor, quick(f"127.0.0.1:{port}", CERTIFICATE) as replica:
            with pytest.raises(Unreachable):
                await asyncio.wait_for(replica.task, 10)
        assert seen and not any(TOKEN.encode() in said for said in seen)

    run(story())


def test_the_certificate_alone_is_not_enough(run: Run) -> None:
    async def story() -> None:
        async with secure_hall() as hall:
            for token in ("", "another"):
                async with tls.channel(hall.address, OPTIONS, CERTIFICATE) as channel:
                    call = ControlStub(channel).Stop(pb.StopRequest(), metadata=auth.metadata(token))
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(story())


def test_the_command_line_asks_a_masters_status_with_its_certificate(run: Run) -> None:
    async def story() -> None:
        async with secure_hall() as hall:
            assert (await MasterClient(hall.address, TOKEN, CERTIFICATE).status(5.0)).version >= 1
            with pytest.raises(Unreachable):
                await MasterClient(hall.address, TOKEN).status(0.5)

    run(story())


def test_a_thread_without_a_loop_gets_through_too(run: Run) -> None:
    async def story() -> None:
        async with secure_hall() as hall:

            def ask() -> pb.Status:
                with tls.blocking_channel(hall.address, OPTIONS, CERTIFICATE) as channel:
                    return next(ControlStub(channel).Watch(pb.WatchRequest(), metadata=auth.metadata(TOKEN), timeout=5))

            assert (await asyncio.to_thread(ask)).version >= 1

    run(story())


@contextlib.asynccontextmanager
async def listening(env: Mapping[str, str], address: str = "127.0.0.1:0") -> AsyncIterator[int]:
    server = grpc.aio.server()
    try:
        yield tls.listen(server, address, env)
    finally:
        await server.stop(0)


def test_a_certificate_without_its_key_is_never_taken_for_plain_text(run: Run) -> None:
    async def story() -> None:
        with pytest.raises(UsageError, match="there is a certificate but no key"):
            async with listening({names.ENV_TLS_CERT: CERTIFICATE}):
                pass

    run(story())


@pytest.mark.parametrize("env", [{}, GIVEN], ids=["plain text", "TLS"])
def test_an_address_that_cannot_be_had_is_named(run: Run, env: Mapping[str, str]) -> None:
    async def story() -> None:
        async with listening(env) as port:
            with pytest.raises(JobFailed, match=f"the master cannot listen at 192.0.2.1:{port}"):
                async with listening(env, f"192.0.2.1:{port}"):
                    pass

    run(story())


def test_a_certificate_carries_the_masters_own_name_however_long(run: Run) -> None:
    from cryptography import x509

    long = "elasticdl-" + "j" * 50 + "-master"
    made = x509.load_pem_x509_certificate(tls.make(long)[0].encode())
    found = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == [long, tls.ANY_MASTER]

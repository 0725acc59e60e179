"""Requests to a running job's master: its status, scaling, stopping."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from elasticdl.errors import Refused, Unreachable
from elasticdl.job.names import JobPaths
from elasticdl.job.outcome import Outcome
from elasticdl.wire import auth, tls
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.control_service import ControlStub
from elasticdl.wire.link import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, NO, OPTIONS

# In a cluster a process starts in the master's pod for each connection: an attempt may take seconds on a busy node.
_PATIENT = (*OPTIONS, ("grpc.min_reconnect_backoff_ms", 20_000))


@dataclass(frozen=True)
class MasterClient:
    """The master's address, which every master of the job listens on, and the job's token."""

    address: str
    token: str
    certificate: str | None = None  # of a master in a cluster

    @classmethod
    def of(cls, paths: JobPaths) -> MasterClient:
        """The client of a job that runs on this machine."""
        try:
            return cls(paths.master_address.read_text().strip(), paths.token.read_text().strip())
        except OSError as error:
            raise Unreachable(f"the master of {paths.job_name} has not started yet: {error.strerror}") from error

    async def watch(self) -> AsyncGenerator[pb.Status | None, None]:
        """The job's status after each change; None when the master does not answer, until one does.

        Ends after the status that says how the job ended.
        """
        wait = FIRST_RETRY_SECONDS
        async with tls.channel(self.address, _PATIENT, self.certificate) as channel:
            while True:
                ended = False
                stub = ControlStub(channel)
                call = stub.Watch(pb.WatchRequest(), metadata=auth.metadata(self.token))
                try:
                    async for status in call:
                        wait = FIRST_RETRY_SECONDS
                        yield status
                        ended = status.phase in tuple(Outcome)
                    if ended:
                        return
                except grpc.aio.AioRpcError as error:
                    _raise_if_final(error)
                finally:
                    call.cancel()
                yield None
                await asyncio.sleep(wait)  # between two attempts to connect
                wait = min(2 * wait, LAST_RETRY_SECONDS)

    async def status(self, deadline_seconds: float) -> pb.Status:
        """The present status; raises Unreachable when no master answers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds), contextlib.aclosing(self.watch()) as statuses:
                async for status in statuses:
                    if status is not None:
                        return status
        raise Unreachable(f"no answer from the master at {self.address} within {deadline_seconds:g} s")

    async def scale(self, role: str, count: int, deadline_seconds: float) -> str:
        """Request this number of replicas of a role; the reason of a refusal, or empty."""
        reply = await self._ask("Scale", pb.ScaleRequest(role=role, count=count), deadline_seconds)
        return str(reply.refused)

    async def stop(self, reason: str, deadline_seconds: float) -> None:
        """Stop the job with a checkpoint; returns when the master has recorded the request."""
        await self._ask("Stop", pb.StopRequest(reason=reason), deadline_seconds)

    async def _ask(self, method: str, request: Message, deadline_seconds: float) -> Any:
        async with tls.channel(self.address, _PATIENT, self.certificate) as channel:
            call, token = getattr(ControlStub(channel), method), auth.metadata(self.token)
            try:
                return await call(request, metadata=token, wait_for_ready=True, timeout=deadline_seconds)
            except grpc.aio.AioRpcError as error:
                _raise_if_final(error)
                raise Unreachable(f"the master at {self.address} did not answer: {error.details()}") from error


def _raise_if_final(error: grpc.aio.AioRpcError) -> None:
    if error.code() in NO:
        raise Refused(f"the master refused: {error.details()}") from error

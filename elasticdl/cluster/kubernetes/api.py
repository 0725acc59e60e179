"""A small Kubernetes API client: plain JSON over HTTP, with retries and deadlines."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypedDict, Unpack

import aiohttp

from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.kubernetes.reading import Object
from elasticdl.errors import Refused, Unreachable, WireError

JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"

# Status codes of a server that is starting, overloaded or changing its leader.
PASSING = frozenset({429, 500, 502, 503, 504})
SHORT_WATCH_SECONDS = 1.0  # a server ends no watch sooner; pause before another watch
_ENTER_SECONDS = 20.0  # a pod: its node starts a process in it
LOG_LINES, _LOG_BYTES = 20, 64 * 1024
_NO_LOG = "unable to retrieve container logs for "  # a kubelet's answer, with status 200, once it has removed the log
_PAUSES = (0.1, 5.0)  # the first and the longest between two attempts


class ApiRefused(Refused):
    """A refusal by the API server, with its message, status code and reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"Kubernetes refused: {message}")

    @property
    def missed(self) -> bool:
        """Whether the object with the given uid is gone or has changed (422: older servers, for a patch)."""
        return self.code in (404, 409) or (self.code == 422 and "metadata.uid" in str(self))


def labelled(labels: Mapping[str, str]) -> dict[str, str]:
    """Parameters that select objects by their labels."""
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}


def named(name: str) -> dict[str, str]:
    """Parameters that select the object of this name."""
    return {"fieldSelector": f"metadata.name={name}"}


class Pauses:
    """Growing pauses between attempts, shortened at random so that clients do not retry at the same time."""

    def __init__(self, first: float = _PAUSES[0], longest: float = _PAUSES[1]) -> None:
        self._next, self._longest = first, longest

    def next(self) -> float:
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * random.uniform(0.5, 1.0)


class Asking(TypedDict, total=False):
    """The options of a request."""

    body: Object
    params: Mapping[str, str]
    content_type: str  # of the body; default: JSON
    deadline_seconds: float  # default: the client's


class KubernetesApi:
    """A client of one API server, as one user. It repeats calls until they are answered or their deadline passes."""

    def __init__(
        self, credentials: Credentials, *, deadline_seconds: float = 30.0, attempt_seconds: float = 10.0
    ) -> None:
        self.credentials = credentials
        self._deadline_seconds, self._attempt_seconds = deadline_seconds, attempt_seconds
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | bool = True
        self._closed = False

    async def call(self, method: str, path: str, **how: Unpack[Asking]) -> Object:
        """The object in the server's answer."""
        answer: Object = self._parsed(await self.text(method, path, **how))
        return answer

    async def find(self, path: str) -> Object | None:
        """The object at this path; None if there is none."""
        try:
            return await self.call("GET", path)
        except ApiRefused as refusal:
            if refusal.code == 404:
                return None
            raise

    async def patch(self, path: str, **how: Unpack[Asking]) -> Object:
        """Merge `body` into the object."""
        how["content_type"] = MERGE_PATCH
        return await self.call("PATCH", path, **how)

    async def delete(
        self, path: str, uid: str | None = None, *, grace_seconds: int | None = None, **how: Unpack[Asking]
    ) -> Object:
        """Delete the object, if it still has this uid; the cluster removes what belongs to it afterwards."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        how["body"] = body
        return await self.call("DELETE", path, **how)

    async def remove(
        self, path: str, uid: str | None = None, *, grace_seconds: int | None = None, **how: Unpack[Asking]
    ) -> None:
        """Delete the object, unless it is gone already or another one has its name."""
        try:
            await self.delete(path, uid, grace_seconds=grace_seconds, **how)
        except ApiRefused as refusal:
            if not refusal.missed:
                raise

    async def last_lines(self, pod_path: str, container: str, deadline_seconds: float) -> list[str]:
        """The end of a container's log; empty if it is not available."""
        params = {"tailLines": str(LOG_LINES), "limitBytes": str(_LOG_BYTES), "container": container}
        try:
            text = await self.text("GET", f"{pod_path}/log", params=params, deadline_seconds=deadline_seconds)
        except WireError:
            return []
        return [] if text.startswith(_NO_LOG) else text.splitlines()[-LOG_LINES:]

    async def text(self, method: str, path: str, **how: Unpack[Asking]) -> str:
        body, params = how.get("body"), how.get("params")
        content_type, limit = how.get("content_type", JSON), how.get("deadline_seconds", self._deadline_seconds)
        loop, pauses, trouble = asyncio.get_running_loop(), Pauses(), "no attempt was made"
        deadline = loop.time() + limit
        renewed = False
        while (left := deadline - loop.time()) > 0:
            try:
                headers = await self.credentials.headers()  # a plugin has its own deadline
                async with asyncio.timeout(min(self._attempt_seconds, left)):
                    response = await self._send(method, path, headers, body, params, content_type)
                    async with response:
                        text = await response.text(errors="replace")
                if response.status == 401 and not renewed:
                    await self._renew()
                    renewed = True
                    continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                trouble = _words(error)
            else:
                if response.status < 400:
                    return text
                refusal = _refusal(response.status, text)
                # A conflict with another request, in a quota for one: the same request may now succeed.
                if response.status not in PASSING and (method, refusal.reason) != ("POST", "Conflict"):
                    raise refusal
                trouble = f"{response.status}: {refusal}"
            await asyncio.sleep(min(pauses.next(), max(0.0, deadline - loop.time())))
        raise Unreachable(f"no answer from {self.credentials.server} within {limit:g} s: {trouble}")

    async def watch(
        self, path: str, params: Mapping[str, str], *, seconds: float
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """(type, object) of each change, for this time. Not repeated: the caller must list again first.

        Raises `ApiRefused`, with code 410 when the changes since that version are no longer known, and `Unreachable`.
        """
        asked = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, int(seconds)))}
        try:
            headers = await self.credentials.headers()
            # Without a deadline, a dead connection would block forever. The caller must not wait for anything else
            # between two changes, because the deadline would end that instead.
            async with asyncio.timeout(seconds + self._attempt_seconds):
                async with await self._send("GET", path, headers, None, asked) as response:
                    async for line in self._lines_of(response):
                        event = self._parsed(line)
                        if event["type"] == "ERROR":
                            status = event["object"]
                            raise ApiRefused(status.get("code", 0), status.get("reason", ""), status.get("message", ""))
                        yield event["type"], event["object"]
        except TimeoutError:
            raise Unreachable(f"{self.credentials.server} stopped answering") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"the watch of {self.credentials.server} broke: {_words(error)}") from error

    async def lines(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[str, None]:
        """The lines of a streamed answer, such as a followed log. Not repeated, and without a deadline."""
        try:
            headers = await self.credentials.headers()
            async with asyncio.timeout(self._attempt_seconds):
                response = await self._send("GET", path, headers, None, params)
            async with response:
                async for line in self._lines_of(response):
                    yield line.decode(errors="replace")
        except TimeoutError:
            raise Unreachable(f"no answer from {self.credentials.server}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"the connection to {self.credentials.server} broke: {_words(error)}") from error

    async def websocket(self, path: str, protocol: str) -> aiohttp.ClientWebSocketResponse:
        """A connection into the cluster, for example to a command in a pod."""
        try:
            headers = await self.credentials.headers()
            async with asyncio.timeout(_ENTER_SECONDS):
                return await self._open_session().ws_connect(
                    self.credentials.server + path,
                    protocols=(protocol,),
                    headers=headers,
                    ssl=self._tls,
                    proxy=self.credentials.proxy,
                    server_hostname=self.credentials.server_name,
                    max_msg_size=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            # The error lacks the server's message; the same request without a handshake may get it.
            try:
                await self.text("GET", path, deadline_seconds=self._attempt_seconds)
            except ApiRefused as refusal:
                if refusal.code == error.status:
                    raise
            raise ApiRefused(error.status, "", f"no connection into the pod: {error.status}") from error
        except TimeoutError:
            raise Unreachable(f"no answer from {self.credentials.server}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"the connection to {self.credentials.server} broke: {_words(error)}") from error

    async def _lines_of(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The lines of an answer as they arrive; raises `ApiRefused` if it is a refusal."""
        if response.status == 401:
            await self._renew()
        if response.status >= 400:
            raise _refusal(response.status, await response.text(errors="replace"))
        async for line in _lines(response.content):
            yield line

    def _parsed(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:  # from a proxy's login page, for example
            shown = text if isinstance(text, str) else text.decode(errors="replace")
            what = f"{self.credentials.server} did not answer with JSON: {shown.strip()[:80]}"
            raise Unreachable(what) from error

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _send(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Object | None,
        params: Mapping[str, str] | None,
        content_type: str = JSON,
    ) -> aiohttp.ClientResponse:
        session = self._open_session()
        if body is not None:
            headers = {**headers, "Content-Type": content_type}
        return await session.request(
            method,
            self.credentials.server + path,
            params=params,
            data=None if body is None else json.dumps(body),
            headers=headers,
            ssl=self._tls,
            proxy=self.credentials.proxy,
            server_hostname=self.credentials.server_name,
            allow_redirects=False,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Unreachable("the cluster is closed")
        if self._session is None:
            if self.credentials.server.startswith("https"):
                self._tls = self.credentials.tls()  # first: a failure must leave no session
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self._session

    async def _renew(self) -> None:
        await self.credentials.renew()
        if self.credentials.server.startswith("https"):
            self._tls = self.credentials.tls()  # a plugin may have returned a new certificate


def _words(error: Exception) -> str:
    """The error message, without aiohttp's description of its own objects."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error)  # otherwise a name that does not resolve
    return str(error) or type(error).__name__


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length: a pod with its environment may exceed aiohttp's limit."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():  # a log may end within a line
        yield rest


def _refusal(code: int, text: str) -> ApiRefused:
    try:
        status = json.loads(text)
        return ApiRefused(code, str(status.get("reason", "")), str(status["message"]))
    except (ValueError, KeyError, AttributeError, TypeError):
        return ApiRefused(code, "", f"{code}: {text.strip()[:500]}")

"""The Docker engine: found as the `docker` command finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ImageError

if TYPE_CHECKING:
    from docker import APIClient

ANSWER_SECONDS = 20
SILENCE_SECONDS = 1800  # a step that downloads or compiles prints nothing for long


def connect() -> APIClient:
    """The engine of DOCKER_HOST, else of the current Docker context; an ImageError says why there is none."""
    import docker  # here, so that `elasticdl --help` does not wait for it
    from docker.context import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    class Engine(docker.APIClient):  # type: ignore[misc]
        def merge_environment_settings(self, url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            # Else REQUESTS_CA_BUNDLE, meant for the web, would replace the engine's own authority.
            verify = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, verify, cert)

    try:
        where = kwargs_from_env()
        if "base_url" not in where:
            where |= ContextAPI.kwargs_from_context()
        client = Engine(timeout=ANSWER_SECONDS, **where)  # asks for its version
    except (DockerException, OSError) as error:
        raise ImageError(*_why_not(error)) from error
    client.timeout = SILENCE_SECONDS
    return client


def _why_not(error: BaseException) -> tuple[str, str]:
    where = _where()
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        what = f"this user has no access to the Docker engine at {where}"
        return what, "Join its group (sudo usermod -aG docker $USER, then log in again), or run as root."
    if os.environ.get("DOCKER_TLS_VERIFY") or os.environ.get("DOCKER_CERT_PATH"):
        said = str(causes[-1])
        what = f"cannot use the Docker engine at {where}: {said}"
        return what, "DOCKER_HOST, DOCKER_CERT_PATH and DOCKER_TLS_VERIFY belong together: eval $(minikube docker-env)."
    if any(isinstance(cause, (FileNotFoundError, ConnectionRefusedError)) for cause in causes):
        reason = ""
    else:
        reason = f" ({causes[-1]})"
    remedy = "Start Docker, or name another engine in DOCKER_HOST; for Minikube's: eval $(minikube docker-env)."
    return f"no Docker engine answers at {where}{reason}", remedy


def _where() -> str:
    from docker.constants import DEFAULT_UNIX_SOCKET
    from docker.context import ContextAPI
    from docker.errors import DockerException

    host = os.environ.get("DOCKER_HOST")
    if not host:
        try:
            context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
            host = context.Host if context else None
        except DockerException:
            host = None
    return (host or DEFAULT_UNIX_SOCKET).replace("http+unix://", "unix://")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all that is inside it: HTTP libraries wrap the system's errors several times, also as arguments."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        at = waiting.pop()
        if at is None or at in seen:
            continue
        seen.append(at)
        yield at
        waiting += [at.__cause__, at.__context__, *(a for a in at.args if isinstance(a, BaseException))]


def troubles() -> tuple[type[Exception], ...]:
    """All that a call of the engine raises: its refusals, a login helper's failures, a connection that breaks."""
    from docker.credentials.errors import StoreError
    from docker.errors import DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError  # not turned into one of requests while a stream is read

    return DockerException, StoreError, RequestException, HTTPError


def explained(error: Exception) -> tuple[str, str]:
    """What went wrong, and the remedy; none for a message of the engine."""
    from docker.credentials.errors import StoreError
    from docker.errors import DockerException

    said = str(getattr(error, "explanation", None) or error).strip()
    if isinstance(error, StoreError) or isinstance(error.__cause__, StoreError):
        return said, "The login helper of ~/.docker/config.json fails: install it, or docker login again."
    if isinstance(error, DockerException):
        return said, ""
    return f"the Docker engine at {_where()} stopped answering ({said})", "Check that it is running, and try again."


def failure(event: dict[str, Any]) -> str:
    """What went wrong, if the event says so."""
    detail = event.get("errorDetail")
    return str((detail or {}).get("message") or event.get("error") or "").strip()

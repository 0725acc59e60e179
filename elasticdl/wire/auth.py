"""The job's token, which every call carries, and the keys of an encrypted data plane."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.job import names

if TYPE_CHECKING:
    import zmq

TOKEN_KEY = "elasticdl-token"


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    return ((TOKEN_KEY, token),)


def authentic(token: str, received: Sequence[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call has the job's token."""
    given = next((v for k, v in received or () if k == TOKEN_KEY), "")
    if isinstance(given, bytes):
        given = given.decode("utf-8", "replace")
    return hmac.compare_digest(given.encode(), token.encode())


@dataclass(frozen=True)
class Keys:
    """The CURVE keys of a job's parameter servers, as text. Servers have both, clients the public one."""

    public: str
    secret: str = ""

    @classmethod
    def new(cls) -> Keys:
        return cls(*_pair())

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Keys | None:
        """From the environment of a process; None if the data plane is not encrypted."""
        public = env.get(names.ENV_DATA_KEY)
        return cls(public, env.get(names.ENV_DATA_SECRET, "")) if public else None

    def env(self, servers: bool) -> dict[str, str]:
        """The environment variables for a process."""
        return {names.ENV_DATA_KEY: self.public, **({names.ENV_DATA_SECRET: self.secret} if servers else {})}

    def serve(self, socket: zmq.Socket[Any]) -> None:
        """Before the socket binds: accept only clients with the public key."""
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()

    def connect(self, socket: zmq.Socket[Any]) -> None:
        """Before the socket connects: accept only a server with the secret key."""
        public, secret = _pair()
        socket.curve_serverkey = self.public.encode()
        socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()


def _pair() -> tuple[str, str]:
    import zmq  # here, since the command line imports this module and needs no socket

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()

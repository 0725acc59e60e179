"""The job's token: every call carries it, nothing is answered without it."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

TOKEN_KEY = "elasticdl-token"


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    return ((TOKEN_KEY, token),)


def authentic(token: str, received: Sequence[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call came with the job's token."""
    given = next((v for k, v in received or () if k == TOKEN_KEY), "")
    if isinstance(given, bytes):
        given = given.decode("utf-8", "replace")
    return hmac.compare_digest(given.encode(), token.encode())

"""The Lease of a job. Its holder is the job's master, which takes it before it opens the journal, renews it and
releases it at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.kubernetes.api import ApiRefused, KubernetesApi, Pauses
from elasticdl.errors import Refused, Unreachable, WireError
from elasticdl.job import names

log = logging.getLogger(__name__)

# The Lease expires after LEASE_SECONDS; its master gives up earlier, after GIVE_UP_SECONDS without the API server.
LEASE_SECONDS, GIVE_UP_SECONDS, RENEW_SECONDS = 40, 30.0, 5.0
LOOK_SECONDS, RELEASE_SECONDS = 1.0, 5.0


class Lease:
    """One holder's view of the Lease. Clocks of two machines are never compared: a Lease has expired when a waiting
    process has seen it unchanged for its whole duration."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        job_name: str,
        holder: str,
        owner: Mapping[str, Any],
        *,
        lease_seconds: int = LEASE_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        """`holder`: the uid of its pod; `owner`: the job's ConfigMap, which owns the Lease."""
        self._api, self._holder, self._owner = api, holder, dict(owner)
        self._home = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._home}/{names.config_name(job_name)}"
        self._name, self._labels = names.config_name(job_name), names.labels(job_name)
        self._lease_seconds, self._give_up_seconds = lease_seconds, give_up_seconds
        self._renew_seconds = renew_seconds
        self._taken = ""  # when this holder acquired it
        self._version = ""

    async def acquire(self) -> None:
        """Wait until this holder has it. A master releases it when it ends; the Lease of a lost master expires."""
        loop, pauses = asyncio.get_running_loop(), Pauses()
        seen: tuple[str, str] | None = None
        since = loop.time()
        while True:
            there = await self._api.find(self._path)
            holder = _holder(there)
            if there is not None and holder not in ("", self._holder) and self._ours(there):
                if (mark := (holder, str(there["spec"].get("renewTime", "")))) != seen:
                    seen, since = mark, loop.time()
                    log.info("Waiting for the lease of %s: another master holds it or did not release it", self._name)
                left = since + there["spec"].get("leaseDurationSeconds", self._lease_seconds) - loop.time()
                if left > 0:
                    await asyncio.sleep(min(LOOK_SECONDS, left))  # a watch would need another right
                    continue
                log.info("The lease expired: the other master did not renew it")
            self._taken = _now()
            try:
                await self._write(there, self._holder)
                return
            except ApiRefused as refusal:
                if refusal.code not in (404, 409):
                    raise
            await asyncio.sleep(pauses.next())  # another process was faster: look again

    async def keep(self) -> None:
        """Renew it forever; raises Refused if another holder has it, Unreachable if the API server does not answer."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._renew_seconds)
            asked = loop.time()  # not when the answer came: a waiting process may count from any moment after this
            left = renewed + self._give_up_seconds - asked
            try:
                async with asyncio.timeout(max(0.1, left)):
                    await self._renew()
                renewed = asked
            except (Unreachable, TimeoutError, ApiRefused) as error:
                # 401, 403: a token or a role is just being replaced, which says nothing about the Lease.
                if isinstance(error, ApiRefused) and error.code not in (401, 403):
                    raise
                if loop.time() - renewed >= self._give_up_seconds:
                    what = f"the lease of {self._name} could not be renewed for {loop.time() - renewed:.0f} s"
                    raise Unreachable(f"{what}: {error or 'no answer'}") from error

    async def release(self) -> None:
        """Release it for the next master; if this fails, it expires."""
        with contextlib.suppress(WireError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                there = await self._api.find(self._path)
                if there is not None and _holder(there) == self._holder:
                    await self._write(there, "")

    async def held(self) -> bool:
        """Whether this holder has it, or had it last and did not release it."""
        return _holder(await self._api.find(self._path)) == self._holder

    async def _renew(self) -> None:
        try:
            await self._write({"metadata": {"resourceVersion": self._version}}, self._holder)
        except ApiRefused as refusal:
            if refusal.code not in (404, 409):
                raise
            there = await self._api.find(self._path)
            if there is not None and _holder(there) != self._holder:
                raise Refused(f"another master has taken the lease of {self._name}") from refusal
            await self._write(there, self._holder)

    async def _write(self, there: Mapping[str, Any] | None, holder: str) -> None:
        meta: dict[str, Any] = {"name": self._name, "labels": self._labels, "ownerReferences": [self._owner]}
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._lease_seconds,
            "acquireTime": self._taken or _now(),
            "renewTime": _now(),
        }
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": spec,
        }
        if there is None:
            # Repeated after a lost answer, this is refused; the next read finds our Lease.
            answer = await self._api.call("POST", self._home, body=body)
        else:
            meta["resourceVersion"] = there["metadata"]["resourceVersion"]
            answer = await self._api.call("PUT", self._path, body=body)
        self._version = str(answer["metadata"]["resourceVersion"])

    def _ours(self, there: Mapping[str, Any]) -> bool:
        """Whether it belongs to this submission of the job; the garbage collector removes that of an earlier one."""
        owners = there["metadata"].get("ownerReferences", [])
        return any(owner.get("uid") == self._owner["uid"] for owner in owners)


def _holder(lease: Mapping[str, Any] | None) -> str:
    return "" if lease is None else str(lease.get("spec", {}).get("holderIdentity") or "")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

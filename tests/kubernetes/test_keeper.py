"""The keeper on a real cluster, run here with the rights of its pod."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.keeper import LEAVING_SECONDS, Keeper
from elasticdl.cluster.kubernetes.lease import Lease
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from tests.cluster.kubernetes_stage import CONTEXT, kubectl
from tests.kubernetes.submitted_jobs import (
    CRASHES,
    DEAF,
    ENDS,
    MASTER,
    Make,
    end_master,
    master,
    phase,
    reach,
    run,
    submitted,
    there,
    until,
)

pytestmark = pytest.mark.kubernetes


@contextlib.asynccontextmanager
async def kept(namespace: str, spec: JobSpec) -> AsyncIterator[asyncio.Task[None]]:
    async with reach() as api:
        await submitted(api, spec)
    async with reach(names.SERVICE_ACCOUNT, namespace) as api:
        keeping = asyncio.create_task(Keeper(api, namespace, "j").run())
        try:
            yield keeping
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


def test_a_deleted_master_is_made_again_as_it_was(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(DEAF)):
            await until(lambda: phase(namespace) == "Running")
            before = await asyncio.to_thread(master, namespace)
            uid, owner = before["metadata"]["uid"], before["metadata"]["ownerReferences"][0]
            async with reach(names.SERVICE_ACCOUNT, namespace) as api:
                lease = Lease(api, namespace, "j", uid, owner)
                await lease.acquire()
                kubectl("delete", "pod", MASTER, "--wait=false", namespace=namespace)
                await asyncio.sleep(2.5 * LEAVING_SECONDS)  # the keeper looks at the Lease meanwhile, twice
                assert (await asyncio.to_thread(master, namespace))["metadata"]["uid"] == uid, "it has its grace"
                await lease.release()
            # From here on the keeper does not wait for its pod, which ignores SIGTERM.
            await until(lambda: master(namespace).get("metadata", {}).get("uid", uid) != uid, 20.0)
            await until(lambda: phase(namespace) == "Running")
            after = await asyncio.to_thread(master, namespace)
            assert after["spec"]["containers"][0]["env"] == before["spec"]["containers"][0]["env"]
            assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
            assert after["metadata"]["annotations"][names.ANNOTATION_CRASHES] == "0"
            events = kubectl("get", "events", "-o", "jsonpath={.items[*].reason}", namespace=namespace)
            assert "MasterStarted" in events

    run(story(), 280)


def test_a_master_that_fails_again_and_again_fails_the_job_and_only_its_pod_is_left(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(CRASHES)) as keeping:
            await asyncio.wait_for(keeping, 200)
        await until(lambda: there(namespace) == [f"Pod/{MASTER}"])
        pod = await asyncio.to_thread(master, namespace)
        assert "ownerReferences" not in pod["metadata"]
        result = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_RESULT])
        assert (result["outcome"], result["exit_code"]) == ("failed", 1)
        assert result["reason"] == "the master failed 4 times: exit code 3\nlast words"
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert kubectl("logs", MASTER, namespace=namespace) == "last words\n"

    run(story(), 280)


def test_a_killed_master_costs_no_attempt_and_its_lease_is_released_at_once(namespace: str, make: Make) -> None:
    async def story() -> None:
        spec = make()
        async with kept(namespace, spec):
            await until(lambda: phase(namespace) == "Running")
            pod = await asyncio.to_thread(master, namespace)
            async with reach(names.SERVICE_ACCOUNT, namespace) as api:
                owner = pod["metadata"]["ownerReferences"][0]
                await Lease(api, namespace, "j", pod["metadata"]["uid"], owner).acquire()
                kill = "(sleep 0.2; kill -9 $(cat /tmp/pid)) > /dev/null 2>&1 &"
                kubectl("exec", MASTER, "--", "sh", "-c", kill, namespace=namespace)
                uid = pod["metadata"]["uid"]
                await until(lambda: phase(namespace) == "Running" and master(namespace)["metadata"]["uid"] != uid)
                after = await asyncio.to_thread(master, namespace)
                assert after["metadata"]["annotations"][names.ANNOTATION_CRASHES] == "0"
                async with asyncio.timeout(5):  # without waiting for its 40 s
                    await Lease(api, namespace, "j", after["metadata"]["uid"], owner).acquire()

    run(story(), 280)


def test_a_job_with_a_result_leaves_its_masters_pod_with_exit_status_and_log(namespace: str, make: Make) -> None:
    async def story() -> None:
        async with kept(namespace, make(ENDS)) as keeping:
            await until(lambda: phase(namespace) == "Running")
            note = json.dumps({"outcome": "succeeded", "reason": ""})
            kubectl("annotate", "pod", MASTER, f"{names.ANNOTATION_RESULT}={note}", namespace=namespace)
            await end_master(namespace)
            await asyncio.wait_for(keeping, 120)
        await until(lambda: there(namespace) == [f"Pod/{MASTER}"])
        assert phase(namespace) == "Succeeded"
        assert kubectl("logs", MASTER, namespace=namespace) == "Evaluation metrics\n"

    run(story(), 280)


def test_a_keeper_that_is_terminated_together_with_its_master_restarts_it_first(
    namespace: str, make: Make, tmp_path: Path
) -> None:
    env = dict(os.environ)

    async def story() -> None:
        async with reach() as api:
            await submitted(api, make())
        await until(lambda: phase(namespace) == "Running")
        uid = (await asyncio.to_thread(master, namespace))["metadata"]["uid"]
        words = ("-m", "elasticdl.cluster.kubernetes.keeper", "j", namespace)
        if CONTEXT is not None:  # a keeper knows no contexts: give it a kubeconfig whose current one it is
            text = kubectl("config", "view", "--raw", "--flatten", "--minify")
            (tmp_path / "config").write_text(text)
            env["KUBECONFIG"] = str(tmp_path / "config")
        keeper = await asyncio.create_subprocess_exec(sys.executable, *words, env=env, stderr=asyncio.subprocess.PIPE)
        assert keeper.stderr is not None
        try:
            await until(lambda: heeds_sigterm(keeper.pid), 30.0)
            kubectl("delete", "pod", MASTER, "--wait=false", "--grace-period=2", namespace=namespace)
            keeper.send_signal(signal.SIGTERM)
            _, said = await asyncio.wait_for(keeper.communicate(), 40)
        finally:
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()
        assert keeper.returncode == 0
        assert "Received SIGTERM" in said.decode() and "Started the master again." in said.decode()
        assert (await asyncio.to_thread(master, namespace))["metadata"]["uid"] != uid

    run(story(), 280)


def heeds_sigterm(pid: int) -> bool:
    """Whether the process handles SIGTERM: its bit is set among the signals that it catches."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_keeper_of_a_job_that_is_gone_ends(namespace: str) -> None:
    async def story() -> None:
        async with reach(names.SERVICE_ACCOUNT, namespace) as api:
            await Keeper(api, namespace, "j").run()

    run(story(), 10)

"""A master in a pod: what it needs when it returns, which pods it makes again, and what it writes on its own."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.api import KubernetesApi
from elasticdl.cluster.kubernetes.credentials import Credentials
from elasticdl.cluster.protocol import Exit, ReplicaRequest
from elasticdl.errors import SentAway, UsageError, VolumeAway
from elasticdl.job import names
from elasticdl.job.names import JobPaths
from elasticdl.job.spec import JobSpec
from elasticdl.master import in_cluster
from elasticdl.master.master import Master
from elasticdl.master.running import lead
from elasticdl.wire import control_pb2 as pb
from tests.cluster.memory import MemoryCluster
from tests.master.replicas import Stage


def test_a_result_fits_into_an_annotation_and_keeps_what_matters_most() -> None:
    decisions = [{"at": n, "text": f"{n} " + "x" * 4000} for n in range(200)]
    replicas = [{"name": f"worker-{n}", "detail": "y" * 900} for n in range(200)]
    status = {"records_done": "960", "audit": "all of them", "decisions": decisions, "replicas": replicas}
    result = {"outcome": "failed", "reason": "z" * 200_000 + " in the end", "status": status, "exit_code": 1}
    short = in_cluster._short(result)
    assert len(json.dumps(short)) <= 3 * in_cluster.RESULT_BYTES < 256 << 10
    assert (short["outcome"], short["exit_code"], short["status"]["records_done"]) == ("failed", 1, "960")
    assert short["reason"].endswith(" in the end")
    assert status["decisions"] == decisions, "the file on the volume has it all"
    few = {**result, "reason": "why", "status": {**status, "replicas": [], "decisions": decisions[:3]}}
    assert in_cluster._short(few) == few


def test_a_place_that_cannot_be_written_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    spec = JobSpec.model_validate({"job_name": "j", "state_dir": str(tmp_path / "state")})
    with pytest.raises(UsageError) as refused:
        in_cluster.make_home(spec, JobPaths(tmp_path / "state", "default-1"))
    (problem,) = refused.value.problems
    assert problem.where == "--state_dir" and "cannot write the job's state to" in problem.what
    assert "or choose a path on one with --state_dir" in problem.remedy


def test_a_volume_that_is_away_when_a_master_returns_does_not_fail_the_job(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    spec = JobSpec.model_validate({"job_name": "j", "state_dir": str(tmp_path / "state"), "namespace": "n"})

    def place(**annotations: str) -> in_cluster.Place:
        pod = {"metadata": {"name": "elasticdl-j-master", "annotations": annotations}}
        return in_cluster.Place(spec, KubernetesApi(Credentials("https://nowhere.example")), {"uid": "1"}, pod)

    with pytest.raises(UsageError, match="cannot write the job's state to"):
        asyncio.run(in_cluster._make_home(place()))
    with pytest.raises(VolumeAway, match="cannot write the job's state to"):  # which costs no attempt
        asyncio.run(in_cluster._make_home(place(**{names.ANNOTATION_CRASHES: "0"})))


def test_a_master_that_returns_waits_for_its_checkpoints_and_does_not_share_them(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path, "default-1")
    paths.root.mkdir()
    spec = JobSpec.model_validate({"job_name": "j", "checkpoint_dir": str(tmp_path / "checkpoints")})
    paths.datasets.write_text("{}")
    paths.job_file.write_text(spec.to_json())
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / ".job").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with contextlib.ExitStack() as held, pytest.raises(VolumeAway, match="another running job stores its"):
            asyncio.run(in_cluster._ready(spec, paths, held, claim_seconds=0.3))

        async def story() -> JobSpec:
            asyncio.get_running_loop().call_later(0.2, fcntl.flock, other, fcntl.LOCK_UN)
            with contextlib.ExitStack() as held:
                return await in_cluster._ready(spec, paths, held, claim_seconds=10)

        assert asyncio.run(story()) == spec


class TurnedAway(MemoryCluster):
    """A cluster whose node turns every keeper away."""

    launched: list[float]

    async def launch(self, request: ReplicaRequest) -> None:
        await super().launch(request)
        self.launched.append(time.monotonic())
        self.exit(request.name, Exit(None, None, oom=False, reason="rejected by its node"))


def test_a_keeper_that_is_turned_away_is_made_again_more_and_more_slowly() -> None:
    cluster = TurnedAway()
    cluster.launched = []

    async def story() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(in_cluster._replace_keepers(cluster, "keeper"), 1.3)

    asyncio.run(story())
    first, second, third, *_ = cluster.launched
    assert second - first < 0.4 and third - second > 0.4
    assert len(cluster.launched) <= 4


# Sent away.


@contextlib.asynccontextmanager
async def sent_away(stage: Stage, stay_seconds: tuple[float, float]) -> AsyncIterator[Master]:
    """A master that has trained a little and got SIGTERM; at the end it is gone."""
    async with stage.mastered() as master:
        leading = asyncio.create_task(lead(master, lambda m: in_cluster._sent_away(m, stay_seconds)))
        async with asyncio.timeout(20):
            await master.until(lambda job: job.progress().version > 10)
            os.kill(os.getpid(), signal.SIGTERM)
            await master.until(lambda _: master.going)
        yield master
        with pytest.raises(SentAway):
            await leading


async def finished(stage: Stage) -> pb.Status:
    """The next master leads the job to its end, and every batch was trained once."""
    async with stage.mastered() as master:
        await asyncio.wait_for(master.run(), 30)
        await master.end()
        assert master.machine.outcome == "succeeded", master.machine.reason
        stage.check_exactly_once()
        return master.status()


def test_a_master_that_is_sent_away_with_all_others_saves_what_servers_hold_and_launches_no_replica(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=4) as stage:
            async with sent_away(stage, (0.1, 20.0)) as master:
                stage.cluster.preempt("elasticdl-j-worker-0")
                for server in stage.servers.values():
                    server.link.send(pb.FromReplica(leaving=pb.Leaving()))
                await asyncio.wait_for(master.until(lambda job: bool(job.replicas.losses)), 20)
            assert "elasticdl-j-worker-2" not in stage.cluster.requests, "the next master does that"
            assert list((tmp_path / "checkpoint").glob("version-*"))
            status = await finished(stage)
            assert "elasticdl-j-worker-2" in stage.workers
            assert (status.repeated_batches, status.master_starts) == (0, 2)

    asyncio.run(story())


def test_a_master_that_is_sent_away_alone_stays_for_a_moment_only(tmp_path: Path) -> None:
    async def story() -> None:
        with Stage(tmp_path, num_epochs=400) as stage:
            began = time.monotonic()
            async with sent_away(stage, (0.1, 60.0)):
                pass
            assert time.monotonic() - began < 30
            assert stage.master is not None and stage.master.status().losses == 0

    asyncio.run(story())

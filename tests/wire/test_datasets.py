"""How a worker learns what the data consists of: from the file beside the job's, or from the master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.errors import Refused, Unreachable
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.wire import tls
from elasticdl.wire.datasets import asked, described
from tests.wire.loopback import TOKEN, Hall

Run = Callable[..., None]
IN_PODS = JobSpec.model_validate({"runtime": "kubernetes", "image_name": "i:1", "master_grace_seconds": 10})


def be_a_worker_of(patch: pytest.MonkeyPatch, address: str, token: str = TOKEN, certificate: str = "") -> None:
    for name, value in (
        (names.ENV_MASTER_ADDR, address), (names.ENV_TOKEN, token), (names.ENV_TLS_CERT, certificate),
    ):  # fmt: skip
        patch.setenv(name, value)


def test_a_worker_in_a_pod_asks_its_master_over_tls(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tls.make("elasticdl-j-master")

    async def story() -> None:
        async with Hall(env={names.ENV_TLS_CERT: certificate, names.ENV_TLS_KEY: key}) as hall:
            be_a_worker_of(monkeypatch, hall.address, certificate=certificate)
            found = await asyncio.to_thread(described, tmp_path / "job.json", IN_PODS)
            assert found == {"training": "described"}

    run(story())


def test_it_waits_for_a_master_that_is_not_there_yet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        hall = Hall()
        await hall.start()
        await hall.stop()
        be_a_worker_of(monkeypatch, hall.address)
        asking = asyncio.create_task(asyncio.to_thread(asked, 10.0))
        await asyncio.sleep(0.3)
        assert not asking.done()
        await hall.start()
        assert await asking == '{"training": "described"}'
        await hall.stop()

    run(story())


def test_an_absent_master_and_one_that_refuses_raise_different_errors(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Hall() as hall:
            be_a_worker_of(monkeypatch, hall.address, token="another")
            with pytest.raises(Refused, match="not the token of this job"):
                await asyncio.to_thread(asked, 10.0)
        be_a_worker_of(monkeypatch, hall.address)
        with pytest.raises(Unreachable, match=rf"no master at {hall.address} for 0.5 s"):
            await asyncio.to_thread(asked, 0.5)

    run(story())


def test_a_file_beside_the_jobs_is_enough_and_locally_there_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "datasets.json").write_text('{"evaluation": "x"}')
    assert described(tmp_path / "job.json", IN_PODS) == {"evaluation": "x"}
    assert described(tmp_path / "elsewhere" / "job.json", JobSpec()) == {}

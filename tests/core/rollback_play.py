"""A job with servers that has a checkpoint to go back to."""

from __future__ import annotations

from typing import Any

from elasticdl.core import commands as c
from elasticdl.core.checkpoints import Schedule
from tests.core.playing import Play, of

EVERY_4 = Schedule(steps=4)
SOON = Schedule(seconds=10.0)


def texts(commands: list[c.Command]) -> str:
    return "\n".join(x.text for x in of(c.Announce, commands))


def saved_at_4(records: int = 40, servers: int = 2, **more: Any) -> Play:
    """A job with a checkpoint of version 4 that has gone on to version 6: shard a is done, b is at 1, c untouched."""
    play = Play(records=records, per_shard=3, servers=servers, workers=1, schedule=EVERY_4, **more)
    play.join_all()
    play.commit("train/0/0", 3)
    play.commit("train/0/1", 1)
    play.save()
    play.commit("train/0/1", 3)
    assert play.job.servers.checkpoints.newest.position.version == 4 and play.job.shards.version == 6
    return play


def finish(play: Play) -> None:
    """Train what is left, with all checkpoints that come on the way."""
    for _ in range(100):
        play.train_out()
        if play.job.servers.cuts.active is None:
            return
        play.save()
    raise AssertionError("the job does not end")

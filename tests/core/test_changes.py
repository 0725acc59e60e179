"""How long each part of a change of the world took, told once the new world has made a step."""

from __future__ import annotations

from pydantic import TypeAdapter

from elasticdl.core import commands as c
from elasticdl.core import events as e
from elasticdl.core.replicas import PREEMPTED
from elasticdl.strategies.allreduce.core.machine import AllreduceMachine
from tests.core.allreduce_play import Play, W, of


def settled(*workers: str) -> Play:
    """They train, and the first step is heard of."""
    play = Play(workers=len(workers), records=400)
    play.trains(*workers)
    play.hear(e.StepsCommitted(W[0], 1, 4, 0.5, first_step_seconds=0.25), after=1.0)
    return play


def shown(play: Play, out: list[c.Command]) -> list[str]:
    return [text for text in play.told(out) if "first step" in text]


def formed(play: Play, after: float, copy: float = 0.0, left: float = 0.0) -> None:
    """All confirm, having taken `left` seconds to leave, and forms the world `after` seconds later."""
    m = play.job.membership
    for name in m.members:
        play.hear(e.WorldConfirmed(name, m.generation, (1, 4), left))
    play.now += after
    for name in m.members:
        play.hear(e.WorldFormed(name, m.generation, 0.0, copy, 1000 if copy else 0))


def test_after_a_kill_the_log_says_how_long_each_part_of_the_recovery_took() -> None:
    play = settled(W[0], W[1])
    ended = play.now
    play.hear(e.ReplicaGone(W[1], f"uid-{W[1]}", PREEMPTED, "killed by SIGKILL", at=ended), after=0.125)
    play.now += 0.5
    formed(play, after=0.25, left=0.375)
    assert [change.generation for change in play.job.changes.done] == [1], "no step was made yet"
    out = play.hear(e.StepsCommitted(W[0], 2, 5, 0.5, first_step_seconds=1.0), after=3.0)
    assert shown(play, out) == [
        f"Generation 2: without {W[1]} ({W[1]} is gone): detect 125 ms, abort 375 ms, agree 125 ms, "
        "rebuild 250 ms, copy 0 ms, first step 1000 ms; 1875 ms in total"
    ]
    assert play.replayed() == play.job
    adapter = TypeAdapter(AllreduceMachine)
    assert adapter.validate_json(adapter.dump_json(play.job)) == play.job


def test_a_join_is_told_with_the_copy_and_the_step_that_was_finished_first() -> None:
    play = Play(workers=2, records=400)
    play.trains(W[0])
    play.hear(e.StepsCommitted(W[0], 1, 4, 0.5, first_step_seconds=0.25), after=1.0)
    play.join(W[1])
    play.now += 0.5
    formed(play, after=0.75, copy=0.5, left=0.5)
    (text,) = shown(play, play.hear(e.StepsCommitted(W[0], 2, 6, 0.5, first_step_seconds=0.125)))
    assert text == (
        f"Generation 2: with {W[1]} ({W[1]} is joining): detect 0 ms, abort 500 ms, agree 0 ms, rebuild 250 ms, "
        "copy 500 ms, first step 125 ms; 1375 ms in total"
    )
    (first, second) = play.job.changes.done
    assert first.difference == f"with {W[0]}" and second.copied_bytes == 1000 and not second.lost


def test_a_world_that_breaks_while_it_is_built_belongs_to_the_same_change() -> None:
    play = settled(W[0], W[1], W[2])
    play.end(W[1])
    play.now += 0.25
    formed(play, after=0.25)
    play.end(W[2])
    play.now += 0.5
    formed(play, after=0.25)
    (text,) = shown(play, play.hear(e.StepsCommitted(W[0], 3, 5, 0.5, first_step_seconds=0.25)))
    assert text.startswith(f"Generation 3: without {W[1]}, {W[2]} ({W[1]} is gone; {W[2]} is gone): detect 0 ms")
    assert text.endswith("agree 1000 ms, rebuild 250 ms, copy 0 ms, first step 250 ms; 1500 ms in total")


def test_a_hang_is_detected_from_when_the_worker_stood_still() -> None:
    play = settled(W[0], W[1])
    play.hear(e.WorkerHung(W[1], "compute of step 4 lasts 5.0 s already", since=play.now), after=5.0)
    formed(play, after=0.0)
    play.hear(e.StepsCommitted(W[0], 2, 5, 0.5, first_step_seconds=0.25))
    assert play.job.changes.done[-1].parts["detect"] == 5.0


def test_a_report_of_a_world_that_is_over_is_no_sign_of_the_next_loss() -> None:
    play = settled(W[0], W[1])
    play.hear(e.WorldBroken(W[0], 0, 4, "reset"))
    play.hear(e.ReplicaDropped(W[1], f"inc-{W[1]}"))
    play.hear(e.ReplicaJoined(W[1], f"inc-{W[1]}", capacity=1, generation=1, fingerprint="cpu"), after=2.0)
    assert of(c.ProposeWorld, play.end(W[1]))
    formed(play, after=0.0)
    play.hear(e.StepsCommitted(W[0], play.job.membership.generation, 5, 0.5, first_step_seconds=0.25))
    assert play.job.changes.done[-1].parts["detect"] == 0.0

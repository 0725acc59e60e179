"""What the training thread does: phases, step times and losses, as the pulses report them."""

from __future__ import annotations

from elasticdl.collective.activity import REMEMBERED_STEPS, Activity


def test_the_time_of_each_phase_adds_up() -> None:
    it = Activity()
    for phase, now in (("data", 1.0), ("compute", 3.0), ("data", 7.0), ("compute", 7.5), ("compute", 8.0)):
        it.begin(phase, now)
    assert it.seconds == {"wait": 1.0, "data": 2.5, "compute": 4.5}
    assert it.pulse(1, 2, 3, 10.0).seconds == 2.0, "the same phase began again at 8.0"


def test_only_the_first_step_of_a_world_is_the_first() -> None:
    it = Activity()
    assert [it.stepped(0.5, 2.0), it.stepped(0.5, 1.0)] == [True, False]
    assert it.pulse(1, 2, 3, 0.0).first_step_seconds == 2.0


def test_a_late_loss_leaves_the_last_one_known() -> None:
    it = Activity()
    assert not it.pulse(1, 0, 0, 0.0).has_loss
    it.stepped(0.5, 1.0)
    it.stepped(None, 1.0)
    pulse = it.pulse(1, 2, 3, 0.0)
    assert pulse.has_loss and pulse.loss == 0.5


def test_the_step_time_is_the_median_of_the_last_steps() -> None:
    it = Activity()
    assert it.pulse(1, 0, 0, 0.0).step_seconds == 0.0
    for seconds in [100.0] * REMEMBERED_STEPS + [1.0] * (REMEMBERED_STEPS // 2 + 1):
        it.stepped(0.5, seconds)
    assert it.pulse(1, 0, 0, 0.0).step_seconds == 1.0

"""The control thread of an all-reduce worker: pulses, interruptions, and an end when the master stays away."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from elasticdl.collective.control import Alone, SharedSession, WorldControl
from elasticdl.collective.session import Todo, WorldSession
from elasticdl.errors import CalledOff, Unreachable
from elasticdl.job.spec import JobSpec
from elasticdl.wire import control_pb2 as pb
from tests.collective.conductor import TOKEN, Conductor, Worker

ME = "elasticdl-j-worker-0"
GRACE_SECONDS = 1.0


class Interruption:
    """It can be waited for."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._came = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self._came.set()

    def wait(self, seconds: float) -> bool:
        return self._came.wait(seconds)


@pytest.fixture
def conductor(tmp_path: Path):
    with Conductor(None, tmp_path, JobSpec()) as it:
        yield it


@pytest.fixture
def worker(conductor: Conductor) -> Worker:
    return conductor.expect(ME)


@pytest.fixture
def control(conductor: Conductor, worker: Worker):
    it = WorldControl(WorldSession(ME, "one", GRACE_SECONDS), f"127.0.0.1:{conductor.port}", TOKEN)
    it.start()
    yield it
    it.close()


def enter(control: WorldControl) -> None:
    """Into the world that the conductor makes."""
    control.wait(idle=False)
    assert control.todo(idle=False) is Todo.CONFIRM
    control.send(lambda s: s.world.confirm())
    control.wait(idle=False)
    assert control.todo(idle=False) is Todo.BUILD
    control.call(lambda s: s.enter())
    control.send(lambda s: s.form(pb.Formed()))


def test_a_worker_enters_the_world_that_the_master_starts(
    control: WorldControl, conductor: Conductor, worker: Worker
) -> None:
    enter(control)
    assert control.todo(idle=False) is Todo.TRAIN
    conductor.wait(lambda: worker.kinds("formed"), "the report that the world is formed")


def test_pulses_report_what_the_training_thread_does(
    control: WorldControl, conductor: Conductor, worker: Worker
) -> None:
    enter(control)
    control.doing("compute")
    control.commit(0.25, 0.1, stop=False)

    def computing() -> bool:
        pulse = worker.pulse
        return pulse is not None and pulse.phase == "compute" and pulse.seconds > 0.3 and pulse.step == 1

    conductor.wait(computing, "a pulse of 0.3 s of computing", 10)
    control.doing("exchange")
    assert control.call(lambda s: s.activity.seconds["compute"]) > 0.3


def test_progress_counts_only_during_its_own_phase() -> None:
    now = [0.0]
    session = WorldSession(ME, "one", 30.0)
    control = SharedSession(session, lambda: now[0])
    control.doing("copy")
    now[0] = 20.0
    control.moved("copy")
    now[0] = 25.0
    assert session.pulse(25.0).pulse.seconds == 5.0 and session.activity.seconds["copy"] == 20.0
    control.doing("wait")
    now[0] = 30.0
    control.moved("copy")  # from the communication thread of a world that was left meanwhile
    assert (session.pulse(30.0).pulse.phase, session.pulse(30.0).pulse.seconds) == ("wait", 5.0)


def test_an_urgent_proposal_interrupts_at_once(control: WorldControl, conductor: Conductor) -> None:
    enter(control)
    conductor.automatic = False
    interrupted = Interruption()
    with control.interruptible(interrupted):
        conductor.propose(ME, urgent=False)
        conductor.wait(lambda: conductor.generation == 2, "the proposal")
        assert not interrupted.wait(0.2), "another proposal waits for the end of the step"
        began = time.monotonic()
        conductor.propose(ME, urgent=True, reason="a member died")
        assert interrupted.wait(5)
    assert interrupted.reasons[0] == "a member died" and time.monotonic() - began < 1.0
    with pytest.raises(CalledOff, match="a member died"):
        control.check()
    later = Interruption()
    with control.interruptible(later):
        assert later.reasons == ["a member died"], "an operation that begins later is interrupted, too"


def test_a_shutdown_interrupts_and_ends(control: WorldControl, conductor: Conductor) -> None:
    enter(control)
    interrupted = Interruption()
    with control.interruptible(interrupted):
        conductor.send(ME, shutdown=pb.Shutdown(reason="the job is over"))
        assert interrupted.wait(5)
    assert control.todo(idle=False) is Todo.END and control.call(lambda s: s.shutdown) == "the job is over"


def test_values_of_other_members_reach_the_group_that_is_being_built(
    control: WorldControl, conductor: Conductor, worker: Worker
) -> None:
    enter(control)
    got: dict[str, bytes] = {}
    conductor.send(ME, stored=pb.Stored(generation=1, key="early", value=b"1"))
    conductor.send(ME, save=pb.Save(cut=1, directory="d"))
    control.wait(idle=True)  # the save shows that the messages before it have arrived
    with control.delivering(1, lambda key, value: got.update({key: value})):
        assert got == {"early": b"1"}
        conductor.send(ME, stored=pb.Stored(generation=1, key="late", value=b"2"))
        conductor.send(ME, export=pb.Export(directory="e"))
        conductor.wait(lambda: control.call(lambda s: s.saving.export) is not None and "late" in got, "the key", 10)


def test_without_a_master_a_worker_continues_for_its_grace_period_and_then_stops(
    control: WorldControl, conductor: Conductor, worker: Worker
) -> None:
    enter(control)
    conductor.wait(lambda: worker.pulse is not None, "a pulse")
    interrupted = Interruption()
    with control.interruptible(interrupted):
        conductor.stop()
        began = time.monotonic()
        assert control.todo(idle=False) is Todo.TRAIN
        control.may_commit()
        assert interrupted.wait(10)
    assert GRACE_SECONDS * 0.9 < time.monotonic() - began < GRACE_SECONDS + 1.5
    with pytest.raises(Unreachable, match="the master was away for 1 s"):
        control.may_commit()
    with pytest.raises(Unreachable):
        control.todo(idle=False)


def test_a_worker_that_received_sigterm_reports_that_it_leaves(
    control: WorldControl, conductor: Conductor, worker: Worker
) -> None:
    enter(control)
    conductor.automatic = False
    control.leave()
    conductor.wait(lambda: worker.kinds("leaving"), "the report that it leaves")


def test_a_slow_control_thread_does_not_turn_a_leave_into_a_crash(
    control: WorldControl, conductor: Conductor, caplog: pytest.LogCaptureFixture
) -> None:
    enter(control)
    busy, free = threading.Event(), threading.Event()

    def hold_up(_reason: str) -> None:
        busy.set()
        free.wait(20)

    with control.interruptible(hold_up):
        conductor.send(ME, shutdown=pb.Shutdown(reason="the job is over"))
        assert busy.wait(5)
        control.close(0.1)
    assert "Could not close the control stream within 1.1 s" in caplog.text
    free.set()
    control._thread.join(10)


def test_alone_a_worker_is_its_own_world_until_every_step_is_done() -> None:
    alone = Alone(WorldSession("alone", "one", GRACE_SECONDS))
    assert alone.todo(idle=False) is Todo.CONFIRM
    alone.send(lambda s: s.world.confirm())
    assert alone.todo(idle=False) is Todo.BUILD
    alone.call(lambda s: s.enter())
    alone.send(lambda s: s.form(pb.Formed()))
    assert alone.todo(idle=False) is Todo.TRAIN
    alone.wait(idle=True)
    assert alone.todo(idle=True) is Todo.END

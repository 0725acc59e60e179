"""What a worker's training thread does, and how fast: the contents of its pulses."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from elasticdl.wire import control_pb2 as pb

REMEMBERED_STEPS = 15  # the pulses report the median of their times


@dataclass
class Activity:
    phase: str = "wait"
    since: float = 0.0
    loss: float | None = None
    first_step_seconds: float = 0.0  # of the current world
    seconds: dict[str, float] = field(default_factory=dict)  # spent so far, by phase
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))

    def begin(self, phase: str, now: float) -> None:
        """The training thread begins another phase, or the same one again."""
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    def stepped(self, loss: float | None, seconds: float) -> bool:
        """A step is committed; whether it is the first of the current world. A loss may be known later (None)."""
        self.loss = self.loss if loss is None else loss
        self._step_seconds.append(seconds)
        first = not self.first_step_seconds
        if first:
            self.first_step_seconds = seconds
        return first

    def pulse(self, generation: int, step: int, records: int, now: float) -> pb.Pulse:
        return pb.Pulse(
            generation=generation,
            step=step,
            phase=self.phase,
            seconds=max(0.0, now - self.since),
            step_seconds=statistics.median(self._step_seconds) if self._step_seconds else 0.0,
            first_step_seconds=self.first_step_seconds,
            records=records,
            loss=self.loss or 0.0,
            has_loss=self.loss is not None,
        )

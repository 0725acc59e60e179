"""Simulated links: an ordered stream that may break, and datagrams that may be lost, repeated and overtaken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.clock import Clock


@dataclass(frozen=True)
class Weather:
    """How bad the network is."""

    delay: float = 0.002
    loss: float = 0.0
    repeat: float = 0.0
    break_every: float = 0.0  # mean seconds between broken streams; 0: never


class Stream:
    """One control stream: in order in each direction; breaking it loses what is under way."""

    def __init__(self, clock: Clock, random: Random, weather: Weather) -> None:
        self.clock, self.random, self.weather = clock, random, weather
        self.open = True
        self._free = {"up": 0.0, "down": 0.0}

    def send(self, direction: str, deliver: Callable[[Any], None], message: Any) -> None:
        if not self.open:
            return
        at = max(self._free[direction], self.clock.now + self.random.expovariate(1 / self.weather.delay))
        self._free[direction] = at
        self.clock.after(at - self.clock.now, lambda: deliver(message) if self.open else None)

    def close(self) -> None:
        self.open = False


class Datagrams:
    """The data plane as a worker sees it when servers come and go: no promise at all."""

    def __init__(self, clock: Clock, random: Random, weather: Weather, faults: Counter[str]) -> None:
        self.clock, self.random, self.weather, self.faults = clock, random, weather, faults

    def send(self, deliver: Callable[[], None]) -> None:
        if self.random.random() < self.weather.loss:
            self.faults["message lost"] += 1
            return
        copies = 1
        if self.random.random() < self.weather.repeat:
            self.faults["message repeated"] += 1
            copies = 2
        for _ in range(copies):
            self.clock.after(self.random.expovariate(1 / self.weather.delay), deliver)

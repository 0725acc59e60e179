"""Signals to the launcher as events: the first asks for a graceful end, the second for one at once."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType

GRACEFUL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AT_ONCE = signal.SIGQUIT


class Interrupts:
    """While entered, signals set events. A graceful one that was ignored before (nohup) stays so.

    SIGQUIT is always heard: `elasticdl stop --now` uses it, and shells ignore it for what they start in the background.
    """

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        self.signal: signal.Signals | None = None  # the first that came
        self._caught: list[signal.Signals] = []

    @property
    def exit_code(self) -> int:
        """As shells count: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signal if self.signal is not None else 0

    def __enter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        for number in (*GRACEFUL, AT_ONCE):
            if number is AT_ONCE or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._caught_one, number)
                self._caught.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._caught:
            loop.remove_signal_handler(number)

    def _caught_one(self, number: signal.Signals) -> None:
        if self.first.is_set() or number is AT_ONCE:
            self.second.set()
        self.signal = self.signal or number
        self.first.set()

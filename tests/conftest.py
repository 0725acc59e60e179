"""Signals for the processes that tests start."""

from __future__ import annotations

import signal
from types import FrameType


def _nothing(number: int, frame: FrameType | None) -> None:
    """pytest itself goes on, as it would with the signal ignored."""


# nohup and shells that start a command in the background make it ignore these signals. Children inherit that, and the
# launcher leaves an ignored signal alone. A handler, in contrast, becomes the default action in every child.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _nothing)

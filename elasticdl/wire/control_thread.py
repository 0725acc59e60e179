"""The control thread of a worker: it keeps the stream to the master open while another thread trains."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from elasticdl.errors import ElasticDLError
from elasticdl.wire import control_pb2 as pb
from elasticdl.wire.link import Link

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0


class ControlThread(threading.Thread):
    """Runs a link, and what goes on beside it, in an event loop of its own. Its methods are for other threads."""

    def __init__(
        self, link: Link, failed: Callable[[BaseException], None], *beside: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._link, self._failed, self._beside = link, failed, beside
        self._loop = asyncio.new_event_loop()

    def call(self, what: Callable[..., object], *arguments: object) -> None:
        """Call this in the control thread."""
        self._loop.call_soon_threadsafe(what, *arguments)

    def send(self, messages: Iterable[pb.FromReplica]) -> None:
        for message in messages:
            self.call(self._link.send, message)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is waiting to be sent, then stop."""
        if self.is_alive():
            closing = asyncio.run_coroutine_threadsafe(self._link.close(seconds), self._loop)
            try:
                closing.result(seconds + 1)
            except TimeoutError:  # the worker leaves in order all the same: it has not crashed
                log.warning("Could not close the control stream within %g s", seconds + 1)
            self.call(self._loop.stop)
            self.join(seconds)

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        link = self._loop.create_task(self._link.run())
        link.add_done_callback(self._ended)
        tasks = [link, *(self._loop.create_task(other()) for other in self._beside)]
        self._loop.run_forever()
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed(task.exception() or ElasticDLError("the control stream ended"))

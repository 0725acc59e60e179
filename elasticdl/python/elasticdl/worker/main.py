"""A worker, started by hand: everything but the master's address it learns from the master."""

from __future__ import annotations

import sys

from elasticdl.cli import by_hand


def work(words: list[str]) -> int:
    from elasticdl.worker import joining

    own = by_hand.worker_job(words)
    return joining.work(own, by_hand.read_token(own))


if __name__ == "__main__":
    sys.exit(by_hand.run("worker", work))

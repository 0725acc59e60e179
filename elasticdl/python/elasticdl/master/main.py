"""The master, started by hand."""

from __future__ import annotations

import sys

from elasticdl.cli import by_hand

if __name__ == "__main__":
    sys.exit(by_hand.run("master", by_hand.master))

"""Appends numbered events to a journal until it is killed; says after each group how many are safe."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticdl.core import events as e
from elasticdl.master.journal import Journal
from elasticdl.strategies.parameter_servers.core.machine import ParameterServerMachine
from tests.master.stories import TERMS

journal = Journal(Path(sys.argv[1]))
journal.recover(ParameterServerMachine.new(TERMS))
number = 0
while True:
    group: list[tuple[e.Event, float]] = [(e.StopRequested(f"{number + i}"), float(number + i)) for i in range(7)]
    journal.append(group)
    number += 7
    print(number, flush=True)

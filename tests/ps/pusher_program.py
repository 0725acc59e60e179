"""A worker that pushes batches to the servers of its arguments until a fault point kills it."""

from __future__ import annotations

import sys

import numpy as np

from elasticdl import faults
from elasticdl.ps.client import Batch, Client
from tests.ps.servers import TIMELINE, TOKEN, model
from tests.ps.stores import OPTIMIZERS

faults.arm("pusher")
client = Client(sys.argv[1:], TOKEN, model(OPTIMIZERS["sgd"]), TIMELINE)
zeros, state = np.zeros(client.trainable_size, np.float32), np.zeros(client.state_size, np.float32)
client.declare(zeros, state)
for number in range(5):
    client.push(Batch(0, 0, 1, number), zeros + 1, state, {})

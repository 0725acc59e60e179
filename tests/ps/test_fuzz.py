"""Random messages to a real server: it refuses them, lives, and answers the next good request as if nothing was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl.wire import frames
from elasticdl.wire.frames import FRAME_BYTES, MAGIC
from tests.ps.servers import TIMELINE, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS
from tests.ps.test_service import Raw

SPEC = model(OPTIMIZERS["sgd"])
JSON = SPEC.model_dump_json().encode()

u16, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
small = st.integers(0, 3)
number = st.integers(1 << 40, 2**64 - 1)  # never taken for an answer to the good request
timeline = st.sampled_from([TIMELINE, 0, 2**64 - 1])
index = st.integers(5, 9) | st.integers(5, 2**32 - 1)  # not the shard that the good batches belong to
FIELDS: dict[type[frames.Message], list[st.SearchStrategy[Any]]] = {
    frames.Greet: [],
    frames.Declare: [],
    frames.Pull: [small | u64, small | u64, st.booleans()],
    frames.Rows: [small | u16, small | u64, st.booleans()],
    frames.Push: [
        small, index, small, small, small | u64, small | u64, st.sampled_from([0.0, 0.5]) | st.floats(allow_nan=True)
    ],
    frames.Confirm: [small, index],
    frames.Export: [small | u16, small | u64],
    frames.Done: [u64],
    frames.Pushed: [u64, st.booleans()],
    frames.Resend: [small],
    frames.Stale: [u64],
    frames.Refused: [],
    frames.Over: [],
}  # fmt: skip
headers = st.sampled_from(sorted(FIELDS, key=lambda k: k.code)).flatmap(
    lambda k: st.tuples(number, timeline, *FIELDS[k]).map(lambda values: k.layout.pack(MAGIC, k.code, *values))
)
bodies = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 12).map(lambda n: bytes(8 * n)),
    st.sampled_from([JSON, JSON[:-1], bytes(FRAME_BYTES), bytes(FRAME_BYTES - 1), b"[" * 5000]),
)
first = st.one_of(headers, headers.flatmap(lambda h: st.integers(0, 70).map(lambda n: h[:n])), st.binary(max_size=70))
messages = st.lists(st.tuples(first, st.lists(bodies, max_size=8)), max_size=8)


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[Trainer, Raw, Raw]]:
    with serving(1, unknown_seconds=0.2) as servers, training(servers, SPEC) as trainer:
        servers.open(batches=10**6)
        greeted, stranger = Raw(servers.addresses[0]), Raw(servers.addresses[0], greet=False)
        try:
            yield trainer, greeted, stranger
        finally:
            greeted.close()
            stranger.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages, st.booleans())
def test_no_message_harms_the_server_or_the_parameters(
    attacked: tuple[Trainer, Raw, Raw], sent: list[tuple[bytes, list[bytes]]], known: bool
) -> None:
    trainer, greeted, stranger = attacked
    sender = greeted if known else stranger
    for header, body in sent:
        sender.socket.send_multipart([header, *body])
    trainer.step(ids=5)
    weights, state, version = trainer.client.pull()
    np.testing.assert_array_equal(weights, trainer.truth.weights)
    np.testing.assert_array_equal(state, trainer.truth.state)
    assert version == trainer.truth.version
    assert isinstance(greeted.ask(frames.Pull())[0], frames.Done)
    for name, table in trainer.truth.tables.items():
        known_ids = np.array(sorted(table.rows), np.int64)
        np.testing.assert_array_equal(trainer.client.rows(name, known_ids, create=False), table.peek(known_ids, 0))

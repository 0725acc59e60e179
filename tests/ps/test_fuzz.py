"""Random messages to a real server: it refuses them, lives, and answers the next good request as if nothing was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl.wire.frames import FRAME_BYTES, Answer, Header, Op
from tests.ps.servers import TIMELINE, Trainer, model, serving, training
from tests.ps.stores import OPTIMIZERS
from tests.ps.test_service import Raw

SPEC = model(OPTIMIZERS["sgd"])
JSON = SPEC.model_dump_json().encode()

u64 = st.integers(0, 2**64 - 1)
small = st.integers(0, 3)
headers = st.builds(
    Header,
    op=st.sampled_from(Op),
    request=st.integers(1 << 40, 2**64 - 1),  # never taken for an answer to the good request
    timeline=st.sampled_from([TIMELINE, 0, 2**64 - 1]),
    answer=st.sampled_from(Answer),
    table=small | st.integers(0, 2**16 - 1),
    epoch=small,
    index=st.integers(5, 9) | st.integers(5, 2**32 - 1),  # not the shard that the good batches belong to
    attempt=small,
    batch=small,
    view=small | u64,
    start=small | u64,
    rate=st.sampled_from([0.0, 0.5]) | st.floats(allow_nan=True),
).map(lambda h: h.pack())
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
    who = greeted if known else stranger
    for header, body in sent:
        who.socket.send_multipart([header, *body])
    trainer.step(ids=5)
    weights, state, version = trainer.client.pull()
    np.testing.assert_array_equal(weights, trainer.truth.weights)
    np.testing.assert_array_equal(state, trainer.truth.state)
    assert version == trainer.truth.version
    answered, _ = greeted.ask(Op.PULL, timeline=TIMELINE)
    assert answered.answer is Answer.OK
    for name, table in trainer.truth.tables.items():
        known_ids = np.array(sorted(table.rows), np.int64)
        np.testing.assert_array_equal(trainer.client.rows(name, known_ids, create=False), table.peek(known_ids, 0))

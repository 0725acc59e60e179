"""What the workers of a parameter-server job do."""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Callable, Mapping
from types import FrameType

from elasticdl.errors import JobFailed
from elasticdl.frameworks.arrays import Arrays
from elasticdl.frameworks.loading import load_trainable
from elasticdl.frameworks.model_file import ModelFile
from elasticdl.frameworks.trainable import Trainable
from elasticdl.job import names
from elasticdl.job.spec import JobSpec
from elasticdl.ps.client import Client
from elasticdl.strategies.parameter_servers import audit
from elasticdl.strategies.parameter_servers.training import Worker
from elasticdl.wire.auth import Keys
from elasticdl.worker.batches import Source, load
from elasticdl.worker.control import Control
from elasticdl.worker.session import Session
from elasticdl.worker.trainer import Trainer

log = logging.getLogger(__name__)

CAPACITY = 2  # the lease being trained, and the one read ahead


class ServerTrainer:
    def build(self, spec: JobSpec, code: ModelFile, sample: Callable[[], Arrays]) -> Trainable:
        return load_trainable(code, spec.seed, sample)

    def work(self, spec: JobSpec, replica: str, code: ModelFile, sources: Mapping[str, Source]) -> int:
        training = sources["training"]

        def sample() -> Arrays:
            """Features of the first records, for models that learn their shapes from data."""
            count = min(spec.minibatch_size, training.dataset.records)
            return load(training, 0, 0, count, (), code.feed).features

        model = self.build(spec, code, sample)
        session = Session(replica, uuid.uuid4().hex, CAPACITY, in_order=not spec.asynchronous)
        token, address = os.environ[names.ENV_TOKEN], os.environ[names.ENV_MASTER_ADDR]
        certificate = os.environ.get(names.ENV_TLS_CERT)
        control = Control(session, address, token, spec.master_grace_seconds, certificate)

        def leave(_signum: int, _frame: FrameType | None) -> None:
            control.leave()

        signal.signal(signal.SIGTERM, leave)
        control.start()
        held = model.parameters
        for note in model.notes:
            log.info("%s", note)
        log.info("Ready: %d dense values, %d tables", sum(v.size for v in held.variables), len(held.tables))
        found = control.wait_for_servers()
        if found is not None:
            held = audit.added(held) if spec.audit else held
            client = Client(found[0], token, held, found[1], keys=Keys.of(os.environ))
            control.on_change(client.interrupt)
            try:
                Worker(spec, code, model, training, sources.get("evaluation"), control, client).run()
            except JobFailed:
                control.close()  # the master gets the reason
                raise
            finally:
                client.close()
        control.close()
        log.info("Done: %s", session.shutdown or "leaving")
        # Leaving on SIGTERM is no normal end, and the master may not know why.
        return 0 if session.shutdown else 128 + signal.SIGTERM


WORKER: Trainer = ServerTrainer()

"""A program with a loop of its own, as a user writes it: what tests of the elastic loop run, alone and as workers.

The model has dropout, batch norm and momentum, and a scheduler: all that must not depend on which worker computes what.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import elasticdl.api as elasticdl
from elasticdl.collective.buckets import BUCKET_FLOATS

RECORDS, VALIDATION = 202, 50  # an epoch does not divide into steps, nor steps into parts
SECONDS = float(os.environ.get("LOOP_SECONDS", "0"))  # that a part takes at least
AFTER = os.environ.get("LOOP_AFTER", "")  # a named pipe: what the program does after its first step ends with its text
FLOATS = int(os.environ.get("LOOP_BUCKET_FLOATS", BUCKET_FLOATS))  # of what leaves during the backward pass
PLAIN = bool(os.environ.get("LOOP_PLAIN"))  # nothing in the model depends on which records are in one pass
SEED = int(os.environ.get("LOOP_SEED", "0"))  # of the initial weights; workers may differ, the first one's count

torch.set_num_threads(1)
features = torch.randn(RECORDS + VALIDATION, 12, generator=torch.Generator().manual_seed(7))
labels = (features[:, :4].sum(1) > features[:, 4:8].sum(1)).long()


def run(job: elasticdl.JoinedJob, plain: bool = PLAIN, **more: object) -> tuple[elasticdl.Elastic, list[int]]:
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 32),
        torch.nn.Identity() if plain else torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.0 if plain else 0.3),
        torch.nn.Linear(32, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)

    def evaluate(numbers):
        model.eval()
        with torch.no_grad():
            right = (model(features[RECORDS + numbers]).argmax(1) == labels[RECORDS + numbers]).float()
        model.train()
        return {"accuracy": right.mean()}

    trained = []
    elastic = job.elastic(
        model, optimizer, records=RECORDS, scheduler=scheduler, evaluate=evaluate, validation_records=VALIDATION,
        before_update=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), bucket_floats=FLOATS, **more,
    )  # fmt: skip
    for part in elastic.parts():
        began = time.monotonic()
        loss = torch.nn.functional.cross_entropy(model(features[part.records]), labels[part.records])
        loss.backward()
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
        trained += part.records.tolist()
        if elastic.step(loss):
            print("committed", elastic.committed_steps, "of a world of", elastic.world_size, flush=True)
            if AFTER and elastic.committed_steps == 1:
                Path(AFTER).read_text()
    return elastic, trained


if __name__ == "__main__":
    if "LOOP_GATE" in os.environ:  # a named pipe: a test lets a worker in once it has imported everything
        Path(os.environ["LOOP_GATE"]).read_text()
    loop, _ = run(elasticdl.join())
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(f"{loop.committed_steps} {loop.records_trained}\n")

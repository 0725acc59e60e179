"""A loop that exports its model in its own way, to files and a folder; the environment says how it fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

import elasticdl.api as elasticdl

HOW = os.environ.get("EXPORT_HOW", "")  # "raise", or "die" unless another worker has
MARK = Path(os.environ.get("EXPORT_MARK", "/nowhere"))  # that a worker died
GATE = os.environ.get("EXPORT_GATE", "")  # a named pipe: a test says when to go on

torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)


def export(folder: Path) -> None:
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "vocabulary" / "words.txt").write_text("one\ntwo\n")
    (folder / "replica.txt").write_text(os.environ.get("ELASTICDL_REPLICA", "none"))
    if GATE:
        Path(GATE).read_text()
    if HOW == "raise":
        raise ValueError("layer pool has no config")
    if HOW == "die" and not MARK.exists():
        MARK.write_text("in the middle")
        os.kill(os.getpid(), signal.SIGKILL)
    torch.save(model.state_dict(), folder / "weights.pt")


def main() -> None:
    job = elasticdl.join()
    elastic = job.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), records=64, export=export)
    for part in elastic.parts():
        loss = model(torch.as_tensor(part.records)[:, None] / torch.tensor([64.0, -64.0])).square().mean()
        loss.backward()
        elastic.step(loss)


if __name__ == "__main__":
    main()

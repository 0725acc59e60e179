"""The toy under torchrun: DistributedDataParallel, a checkpoint every so many steps, and a start from the newest one.

    torchrun --standalone --nproc-per-node 2 --max-restarts 100 torchrun_train.py --model conv --minibatch_size 64 \
        --checkpoint /tmp/toy.pt
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import StepLog, Toy, arguments, prepare


def save(path: Path, step: int, toy: Toy) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"step": step, "model": toy.model.state_dict(), "optimizer": toy.optimizer.state_dict()}, partial)
    partial.rename(path)


def world_number() -> int:
    """The same for all of this world, and higher than any before on this machine: rank 0's clock.

    TORCHELASTIC_RESTART_COUNT does not tell worlds apart: an agent counts the failures of its own workers, not that it
    started them again because another agent came or went.
    """
    number = torch.tensor([time.monotonic_ns()])
    dist.broadcast(number, 0)
    return int(number)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--checkpoint_steps", type=int, default=20)
    args = parser.parse_args()
    prepare()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log, generation = StepLog(), world_number()
    toy, step = Toy(args.model, args.hidden), 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        toy.model.load_state_dict(state["model"])
        toy.optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(toy.model)
    log.write("ready", generation)
    while True:
        inputs, labels = toy.batch(step, args.minibatch_size * world, rank, world)
        toy.optimizer.zero_grad()
        toy.code.loss(labels, model(inputs)).backward()
        toy.optimizer.step()
        step += 1
        log.write(step, generation)
        if rank == 0 and step % args.checkpoint_steps == 0:
            save(args.checkpoint, step, toy)


if __name__ == "__main__":
    main()

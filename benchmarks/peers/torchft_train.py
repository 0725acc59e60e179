"""The toy under torchft: one replica group of one process, with its Manager, DistributedDataParallel and Gloo.

The loop is that of torchft's own example: each turn takes the next batch, whether or not the last step was committed.
Wants TORCHFT_LIGHTHOUSE, the lighthouse's address, in the environment.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from toy import StepLog, Toy, arguments, prepare


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--replica", type=int, required=True, help="number of this replica group")
    parser.add_argument("--replicas", type=int, required=True, help="into how many shards the records are cut")
    parser.add_argument("--heartbeat_interval_ms", type=int, default=100)
    parser.add_argument("--group_timeout_seconds", type=float, default=5.0)
    parser.add_argument("--timeout_seconds", type=float, default=60.0)
    args = parser.parse_args()
    prepare()
    logging.basicConfig(level=logging.WARNING)
    log, toy = StepLog(), Toy(args.model, args.hidden)

    def load_state_dict(state: dict[str, Any]) -> None:
        toy.model.load_state_dict(state["model"])
        toy.optimizer.load_state_dict(state["optimizer"])

    def state_dict() -> dict[str, Any]:
        return {"model": toy.model.state_dict(), "optimizer": toy.optimizer.state_dict()}

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=args.group_timeout_seconds)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"toy_{args.replica}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        heartbeat_interval=timedelta(milliseconds=args.heartbeat_interval_ms),
        timeout=timedelta(seconds=args.timeout_seconds),
    )
    model, optimizer = DistributedDataParallel(manager, toy.model), Optimizer(manager, toy.optimizer)
    log.write("ready", 0)
    number = 0
    while True:
        share = args.replica % args.replicas
        inputs, labels = toy.batch(number, args.minibatch_size * args.replicas, share, args.replicas)
        number += 1
        before = manager.current_step()
        optimizer.zero_grad()
        toy.code.loss(labels, model(inputs)).backward()
        optimizer.step()
        # A newcomer's step jumps to the others' while it is healed; what says no is the same number as before.
        committed = manager.current_step() != before
        log.write(manager.current_step() if committed else "skipped", manager._quorum_id)


if __name__ == "__main__":
    main()

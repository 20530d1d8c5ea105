"""A small DDP training run in which everything that a resume can get wrong matters.

Dropout (torch's random state), augmentation with Python's and numpy's random state, a shuffled order,
momentum, a schedule that changes every step, a GradScaler, a buffer, an uneven last batch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cotenant import checkpoint, gradaccum


class Noisy(Dataset[Any]):
    """Each sample is augmented differently every time it is looked at."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(rows, 12, generator=generator)
        self.y = torch.randint(0, 3, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.gauss(0, 0.1) + float(numpy.random.normal(0, 0.1)) + 0.1 * torch.randn(())
        return self.x[index] + noise, self.y[index]


class Counting(torch.nn.Module):
    """Carries a saved buffer and scales by it, so that losing the buffer changes the result."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=101)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--skip", default="auto")
    parser.add_argument("--dist", action="store_true")
    parser.add_argument("--save-at", type=int, default=0)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--exit-after", type=int, default=0)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--leash", type=Path)
    return parser.parse_args()


def wait_on(leash: Path, step: int) -> None:
    """Before the next step: until the file allows more than those that are done."""
    while step >= int(leash.read_text()):
        time.sleep(0.005)


def batches(args: argparse.Namespace) -> tuple[Any, Any]:
    """The sampler, if any, and the loader."""
    data = Noisy(args.rows)
    sampler: Any = DistributedSampler(data, seed=5) if args.dist else None
    loader = DataLoader(
        data,
        args.batch,
        shuffle=sampler is None,
        sampler=sampler,
        generator=None if args.dist else torch.Generator().manual_seed(9),
        num_workers=args.workers,
    )
    return sampler, loader


def main() -> None:
    args = options()
    if args.dist:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    rank = dist.get_rank() if args.dist else 0
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    numpy.random.seed(300 + rank)
    sampler, loader = batches(args)
    torch.manual_seed(1)
    carrier = Counting()
    net = nn.Sequential(
        nn.Linear(12, args.width), nn.ReLU(), nn.Dropout(0.3), carrier, nn.Linear(args.width, 3)
    )
    torch.manual_seed(100 + rank)
    model = DistributedDataParallel(net) if args.dist else net
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=200)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
    best = {"loss": float("inf"), "seen": 0}
    state = checkpoint.Session(
        model, optimizer, schedule, scaler, sampler, best, idle_s_max=args.idle, staging=args.width < 4000
    )
    if args.exit_after:
        torch.randn(rank + 3)  # what a script draws before its loop must not matter to a resume
    order = []
    for _ in state.epochs(args.epochs):
        for x, y in state.batches(loader, skip=args.skip):
            if args.leash is not None:
                wait_on(args.leash, state.step)
            order.append(round(float(x.sum()), 4))
            optimizer.zero_grad()
            loss = gradaccum.backward(
                model, lambda a, b: torch.nn.functional.cross_entropy(model(a), b), x, y, scaler=scaler
            )
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            best["loss"] = min(best["loss"], float(loss))
            best["seen"] += len(x)
            carrier.scale.mul_(1.001)
            if args.step_s:
                time.sleep(args.step_s)
            if state.step + 1 == args.save_at:
                state.save(wait=args.wait)
            if state.step >= args.exit_after > 0:
                state.close()
                print_result(net, state, best=best, order=order, scale=float(carrier.scale))
                os._exit(0)  # as abruptly as a preempted process, but at a known step
        random.random()  # something at the end of an epoch draws numbers, too
    print_result(net, state, best=best, order=order, scale=float(carrier.scale))
    if args.dist:
        dist.destroy_process_group()


def print_result(net: nn.Module, state: checkpoint.Session, **more: Any) -> None:
    result = {
        "sha256": checkpoint.parameters_sha256(net),
        "step": state.step,
        **more,
        "resumed": vars(state.resumed) if state.resumed else None,
        "history": state.accumulation_history,
        "draw": [random.random(), float(torch.rand(())), float(numpy.random.random())],
    }
    print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()

"""The training loop that the suite's models share: one process, one device, the job-side library.

Rule: the numbers of a step depend on seed and step alone, not on when it was resumed, so that a job that was
preempted sees what it would have seen. Nothing here waits for the device; the library does, when it reports.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cotenant import checkpoint, gradaccum

Batch = tuple[Tensor, ...]
POOL = 8
"""Batches that are made once and used in turn: making them must not be what is measured."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, where its batches come from, and its loss."""

    model: nn.Module
    make: Callable[[torch.Generator, int], Batch]
    """(generator, rows) -> one batch, on the CPU."""
    loss: Callable[..., Tensor]
    """(model, *batch) -> the mean over the rows."""
    stream: Callable[[int, int], Iterator[Batch]] | None = None
    """(rows, first step) -> batches, for a model that is fed by its data loader."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asked for."""

    device: str = "cuda"
    steps: int = 100
    batch_size: int = 32
    precision: str = "bf16"
    """`bf16` (autocast) or `fp32`."""
    seed: int = 0
    deterministic: bool = False
    ddp: bool = False
    """One rank of DDP, over NCCL on a GPU."""
    until: Path | None = None
    """Stop, as after the last step, once this file is there."""
    losses: Path | None = None
    """One line per step: its number and its loss. Reading the loss waits for the device."""


@dataclass(kw_only=True)
class Result:
    """What the last step left."""

    steps: int
    loss: float
    memory_mib: float | None
    losses: list[float] = field(default_factory=list)
    """Of this run's own steps; empty unless they were asked for."""


def train(workload: Workload, options: Options) -> Result:
    device = torch.device(options.device)
    model = workload.model.to(device)
    with joined(model, options) as wrapped:
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        state = checkpoint.Session(wrapped, optimizer)
        batches = stream_of(workload, options, device, state.step)
        losses: list[float] = []
        loss = torch.zeros(())
        while state.step < options.steps and not (options.until is not None and options.until.exists()):
            loss = one_step(workload, wrapped, optimizer, next(batches), options)
            if options.losses is not None:
                losses.append(float(loss))
                with options.losses.open("a") as out:
                    out.write(f"{state.step} {float(loss):.9g}\n")
            state.step_done()
        final = float(loss)
        state.close()
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    return Result(steps=state.step, loss=final, memory_mib=peak, losses=losses)


def one_step(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, options: Options
) -> Tensor:
    """Forward, backward (in micro-batches if the scheduler says so), and the optimizer."""
    optimizer.zero_grad(set_to_none=True)

    def loss_of(*part: Tensor) -> Tensor:
        # Inside, so that the library's own check of a few rows runs in the same precision.
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            return workload.loss(model, *part)

    loss = gradaccum.backward(model, loss_of, *batch)
    optimizer.step()
    return loss


def stream_of(workload: Workload, options: Options, device: torch.device, first: int) -> Iterator[Batch]:
    """The batches from a step on."""
    if workload.stream is not None:
        for batch in workload.stream(options.batch_size, first):
            yield tuple(part.to(device, non_blocking=True) for part in batch)
        return
    generator = torch.Generator().manual_seed(options.seed)
    pool = [
        tuple(part.to(device) for part in workload.make(generator, options.batch_size)) for _ in range(POOL)
    ]
    step = first
    while True:
        yield pool[step % POOL]
        step += 1


@contextlib.contextmanager
def joined(model: nn.Module, options: Options) -> Iterator[nn.Module]:
    """The model, inside DDP where that was asked for."""
    if not options.ddp:
        yield model
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", timeout=timedelta(seconds=120))
    try:
        yield DistributedDataParallel(model)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def seeded(options: Options) -> None:
    """The same weights and batches in every run. cuBLAS wants its workspace fixed early."""
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # These two add up in whatever order they come to it, and a warning is all that forbids it.
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)
    torch.manual_seed(options.seed)


def build(name: str, small: bool) -> Workload:
    """A model by its name. `small`: for a CPU, to see that it trains."""
    import importlib

    module: Any = importlib.import_module(f"hwtests.models.{name}")
    made: Workload = module.build(small)
    return made

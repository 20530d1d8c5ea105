"""What the demo's training scripts have in common: one DDP rank from start to result file; and handwritten
digits to train on: the 1,797 images of 8 x 8 pixels that scikit-learn ships.

Rule: nothing here knows whether the demo runs it. `python memory_heavy.py --steps 10` on its own is the
same program; started as one of several ranks it takes RANK, WORLD_SIZE and the rendezvous from the
environment like any DDP script. The result depends only on the options, the number of ranks and the
schedule of accumulation steps. The digits are read where scikit-learn installed them, without importing
scikit-learn (which would add a second to every worker's load time). Which samples are held out depends on
nothing but their number.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import importlib.util
import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from cotenant import checkpoint, gradaccum

_RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
_HELD_OUT_BATCH = 32

SIDE_PIXELS = 8
CLASS_COUNT = 10
_HOLD_OUT_EVERY = 18


@dataclass(frozen=True)
class DemoOptions:
    """What the command line asked for. `batch_size` is that of one rank."""

    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    result: Path | None
    scale: int = 1
    """A model is so many times wider, and deeper where that makes sense; 1 suits a core of a CPU."""
    precision: str = "fp32"
    """`fp32`, or `bf16` (autocast)."""
    losses: Path | None = None
    """Rank 0 writes a line per step: its number and its loss. Reading the loss waits for the device."""
    slow_disk: bool = False
    """Samples come from a slow disk, for the scripts that otherwise have them in memory."""
    until: Path | None = None
    """Stop, as after the last step, once this file is there."""


@dataclass(frozen=True)
class TrainingTask:
    """The model, the data and the loss that one script trains with."""

    model: nn.Module
    train: Dataset[Any]
    held_out: TensorDataset
    loss: Callable[[Tensor, Tensor], Tensor]


def main(
    build: Callable[[DemoOptions], TrainingTask],
    *,
    batch_size: int,
    steps: int,
    learning_rate: float,
    about: str | None,
) -> None:
    """Parse the options, train, and write the result file on rank 0."""
    options = parse_options(batch_size=batch_size, steps=steps, learning_rate=learning_rate, about=about)
    keep_freed_memory()
    device = join_ranks()
    try:
        seed_everything(options.seed)
        task = build(options)
        result = train(task, options, device)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
            if options.result is not None:
                write_result(options.result, result)
    finally:
        if dist.is_initialized():  # Asked to stop, the session has left the group together with its peers.
            dist.destroy_process_group()


def parse_options(*, batch_size: int, steps: int, learning_rate: float, about: str | None) -> DemoOptions:
    parser = argparse.ArgumentParser(description=about)
    # From the environment, so that jobs of one command may be of different length.
    steps = int(os.environ.get("DEMO_STEPS", steps))
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps in all")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="samples per rank and step")
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, default=None, help="where rank 0 writes the result (JSON)")
    parser.add_argument("--scale", type=int, default=1, help="so many times wider; 1 suits a CPU")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--losses", type=Path, help="where rank 0 writes the loss of each step")
    parser.add_argument("--slow-disk", action="store_true", help="read samples from a slow disk")
    parser.add_argument("--until", type=Path, help="stop once this file is there")
    options = DemoOptions(**vars(parser.parse_args()))
    if options.steps < 1 or options.batch_size < 1:
        parser.error("--steps and --batch-size must be at least 1")
    return options


def join_ranks() -> torch.device:
    """Join the process group the environment describes; alone, be the only rank."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=_RENDEZVOUS_TIMEOUT)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=_RENDEZVOUS_TIMEOUT)
    return device


def keep_freed_memory() -> None:
    """Have the C library reuse freed blocks, as torch does on a GPU, instead of handing them back.

    Large activations would otherwise be mapped and cleared anew at every step, which takes more time than
    the training. Resident memory then stays at its peak, again as on a GPU. Elsewhere than with glibc
    this does nothing, and where the environment says from which size on blocks are mapped: it decides.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def seed_everything(seed: int) -> None:
    """Seeds every generator, for the same numbers on every rank and every run. CUBLAS needs its workspace
    fixed before the first CUDA call."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # On CUDA it adds up in no fixed order, and is merely warned about.
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def train(task: TrainingTask, options: DemoOptions, device: torch.device) -> dict[str, object]:
    model = DistributedDataParallel(task.model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    sampler: DistributedSampler[Any] = DistributedSampler(task.train, seed=options.seed, drop_last=True)
    rows = gradaccum.batch_size(options.batch_size)
    loader = DataLoader(task.train, batch_size=rows, sampler=sampler, drop_last=True)
    if len(loader) == 0:
        raise SystemExit(f"--batch-size {options.batch_size}: only {len(sampler)} samples for each rank")

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            return task.loss(model(x), y)

    first_loss = held_out_loss(task, device)
    state = checkpoint.Session(model, optimizer, sampler=sampler)
    for _ in state.epochs(math.ceil(options.steps / len(loader))):
        if is_over(state.step, options):
            break  # `--until` may end the training in the middle of an epoch.
        for x, y in state.batches(loader):
            if is_over(state.step, options):
                break
            optimizer.zero_grad()
            loss = gradaccum.backward(model, loss_of, x.to(device), y.to(device))
            optimizer.step()
            if options.losses is not None and dist.get_rank() == 0:
                with options.losses.open("a") as losses:
                    losses.write(f"{state.step} {float(loss):.9g}\n")
    return {
        "steps": state.step,
        "first_loss": first_loss,
        "final_loss": held_out_loss(task, device),
        "parameters_sha256": parameters_sha256(task.model),
    }


def is_over(step: int, options: DemoOptions) -> bool:
    return step >= options.steps or (options.until is not None and options.until.exists())


@torch.no_grad()
def held_out_loss(task: TrainingTask, device: torch.device) -> float:
    """The mean loss on data that was never trained on, in small batches so that memory stays that of
    training.
    """
    task.model.eval()
    total = 0.0
    count = 0
    for x, y in DataLoader(task.held_out, batch_size=_HELD_OUT_BATCH):
        total += float(task.loss(task.model(x.to(device)), y.to(device))) * len(x)
        count += len(x)
    task.model.train()
    return total / count


def parameters_sha256(model: nn.Module) -> str:
    """The hash over names, types, shapes and the exact bits of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_result(path: Path, result: dict[str, object]) -> None:
    """Written beside and renamed: a reader sees a whole result or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
    partial.replace(path)


def find_digits() -> Path:
    """The file of the digits: the one that DEMO_DIGITS names, else scikit-learn's."""
    if named := os.environ.get("DEMO_DIGITS"):
        return Path(named)
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed here: pip install scikit-learn"
        )
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def load_digits() -> tuple[Tensor, Tensor]:
    """All images as (count, 1, 8, 8) in 0..1, and their labels."""
    path = find_digits()
    if not path.is_file():
        raise SystemExit(f"{path}: the digits are missing: reinstall scikit-learn, or correct DEMO_DIGITS")
    with gzip.open(path, "rt", encoding="ascii") as lines:
        table = torch.from_numpy(numpy.loadtxt(lines, delimiter=",", dtype=numpy.float32))
    images = table[:, :-1].reshape(-1, 1, SIDE_PIXELS, SIDE_PIXELS) / 16.0
    return images, table[:, -1].long()


def split_held_out(images: Tensor, labels: Tensor) -> tuple[TensorDataset, TensorDataset]:
    """Every eighteenth sample is kept for measuring the loss; the rest trains."""
    held_out = torch.arange(len(labels)) % _HOLD_OUT_EVERY == 0
    return TensorDataset(images[~held_out], labels[~held_out]), TensorDataset(
        images[held_out], labels[held_out]
    )

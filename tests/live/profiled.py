"""A small training for the test of the profile in place: it keeps its temporaries no longer than a step.

`python profiled.py --result FILE [--seconds S] [--steps N]`: trains until `--steps`, or (without) for
`--seconds`, in float32, so that another s is another result; writes its parameters' hash, the steps it made
and the schedule of s that they were made with.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cotenant import checkpoint, gradaccum

BATCH = 16


class Wide(nn.Module):
    """512 KiB a row, as activations are: what a micro-batch needs is its share of the batch's."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Any:
        wide = self.layers[0](x).unsqueeze(1).expand(-1, 512, -1) * 1.0
        return self.layers[2](torch.tanh(wide).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model: Any = Wide(layers)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    state = checkpoint.Session(model, optimizer)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    began_s = time.monotonic()
    while state.step < options.steps and time.monotonic() - began_s < options.seconds:
        generator = torch.Generator().manual_seed(1000 * rank + state.step)
        x = torch.randn(BATCH, 64, generator=generator)
        y = torch.randint(0, 8, (BATCH,), generator=generator)
        optimizer.zero_grad()
        gradaccum.backward(model, loss_of, x, y)
        optimizer.step()
        state.step_done()
    result = {
        "parameters_sha256": checkpoint.parameters_sha256(layers),
        "steps": state.step,
        "history": state.accumulation_history,
        "profiling": os.environ.get("COTENANT_PROFILING", ""),
    }
    if rank == 0:
        options.result.write_text(json.dumps(result))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

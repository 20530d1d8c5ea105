"""Run training scripts, one after the other, and tell each's parameters after its first steps.

    python trained.py STEPS , PORT SCRIPT [WORD ...] [, PORT SCRIPT [WORD ...] ...]

A script runs as it is, as the main program, until its optimizer has made so many steps. Each line on stdout
is a rank, the script, and a hash over the exact bits of what the optimizer trains.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

SETTLE_S = 0.05
"""Between the last backward pass and the end of the process group: see `checkpoint/talk/gang.py`."""


def run(steps: int, port: str, script: str, *words: str) -> None:
    os.environ["MASTER_PORT"] = port
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).parent)
    made = itertools.count(1)

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        if next(made) == steps:
            os.write(1, f"{dist.get_rank()} {Path(script).stem} {hash_of(optimizer)}\n".encode())
            time.sleep(SETTLE_S)
            raise SystemExit

    hook = register_optimizer_step_post_hook(stepped)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        hook.remove()
        if dist.is_initialized():
            dist.destroy_process_group()


def hash_of(optimizer: Optimizer) -> str:
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for each in group["params"]:
            digest.update(each.detach().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    for is_comma, several in itertools.groupby(rest, lambda word: word == ","):
        if not is_comma:
            run(int(first), *several)
    os._exit(0)  # To take torch down takes longer than the training.

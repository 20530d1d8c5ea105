"""What the default costs a script whose batches are never split: `--accumulate never` beside the default.

    python bench/default_split.py [--rows 128 512] [--blocks 40]

Two processes per size train the same model with the job's start-up hook, one as `--accumulate never` has it
(steps are counted), one as a plain submission has it (the check is over, s is 1). They take turns, block by
block, so that the machine's mood hits both; a third, again `never`, shows what this way of measuring can tell
apart. CPU time of the training thread. A supervisor's socket is read, as in a cluster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import torch
from job_side import supervisor

from cotenant.gradaccum.launch import STARTUP

WARM_UP = 40
STEPS = 20
CHILD = """
import sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
rows = int(sys.argv[1])
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(rows, 256), torch.randint(0, 10, (rows,))
def block(steps):
    began = time.thread_time()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return (time.thread_time() - began) / steps
block(int(sys.argv[2]))
for line in sys.stdin:
    print(block(int(line)), flush=True)
"""


class Child:
    def __init__(self, words: str, rows: int, env: dict[str, str]) -> None:
        path = os.pathsep.join((str(STARTUP), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, "-c", CHILD, str(rows), str(WARM_UP)]
        env = {**os.environ, **env, "PYTHONPATH": path, "COTENANT_ZERO_CODE": words}
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def block_s(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{STEPS}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 512], help="of a batch")
    parser.add_argument("--blocks", type=int, default=40)
    options = parser.parse_args()
    print(machine.sentences(torch=torch.__version__))
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as folder, supervisor(Path(folder)) as env:
            never, default = "progress", "accumulate,quiet,progress"
            children = [Child(words, rows, env) for words in (never, default, never)]
            for child in children:
                child.block_s()
            blocks = [
                [children[(turn + n) % 3].block_s() for n in range(3)] for turn in range(options.blocks)
            ]
            for child in children:
                child.close()
        turned = [[block[(n - turn) % 3] for n in range(3)] for turn, block in enumerate(blocks)]
        step_ms = 1e3 * statistics.median(block[0] for block in turned)
        ratios = [statistics.median(block[n] / block[0] - 1 for block in turned) for n in (1, 2)]
        print(f"a step of {step_ms:.2f} ms: the default {ratios[0]:+.2%}, never once more {ratios[1]:+.2%}")


if __name__ == "__main__":
    main()

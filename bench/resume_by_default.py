"""What it costs a plain script that it could be saved: per step, and from its start to its first step.

    python bench/resume_by_default.py [--rounds 9] [--write PAGE]

The same scripts run in turns on a CPU slot of one core, as they are submitted without a flag (driven: their
loop is read, and its variables are found) and with `--checkpoint never`. A script tells its processor time
from the end of its second epoch to its last step, which starts nothing and ends nothing, and that to its
first step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import machine

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import warm_up
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, JobId
from cotenant.controller.wire import clients as wire

COTENANT: Final = (sys.executable, "-m", "cotenant.controller.cli.main")
KEPT_MEMORY: Final = ("MALLOC_TRIM_THRESHOLD_=4000000000", "MALLOC_MMAP_THRESHOLD_=4000000000")
"""glibc gives no memory back: whether it does after a step is luck, and weighs more than what is measured."""
PATIENCE_S: Final = 300.0
SCRIPT: Final = """
import json, sys, time
began = time.process_time()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, epochs, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(3200, 64), torch.randn(3200, 1)), batch_size=32, shuffle=True)
inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), inner, nn.Linear(width, 1))
optimizer = torch.optim.Adam(model.parameters())
history, steps, first, since = [], 0, None, None
for epoch in range(epochs):
    total = 0.0
    if epoch == 2:
        since = time.process_time()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        steps += 1
        if first is None:
            first = time.process_time() - began
    history.append(total)
step_ms = 1e3 * (time.process_time() - since) / (steps - 200)
with open(out, "w") as file:
    json.dump({"step_ms": step_ms, "first_s": first}, file)
"""
SIZES: Final = {"1 ms": (128, 12), "10 ms": (1024, 6)}
"""About a step's time: the width of the model, and epochs of 100 steps."""
WAYS: Final = {"never": ("--checkpoint", "never"), "default": ()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        with (
            PrivateCluster(folder / "cluster", "cpu:1", 4096) as cluster,
            Client(cluster.endpoint, timeout_s=PATIENCE_S) as client,
        ):
            warm_up(client, 1)
            for _ in range(options.rounds):
                for size in SIZES:
                    for way in WAYS:
                        told = one(client, cluster.endpoint, folder, size, way)
                        found.setdefault((size, way), []).append(told)
    text = page(found, options.rounds)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


def one(client: Client, endpoint: str, folder: Path, size: str, way: str) -> dict[str, float]:
    """What the script tells of itself."""
    out = folder / "told.json"
    out.unlink(missing_ok=True)
    width, epochs = SIZES[size]
    kept = [word for each in KEPT_MEMORY for word in ("--env", each)]
    words = ("submit", "--endpoint", endpoint, *WAYS[way], *kept, "--profile", "never", "--")
    done = subprocess.run(
        [*COTENANT, *words, "python", "train.py", str(width), str(epochs), str(out)],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    job_id = JobId(done.stdout.strip())
    deadline_s = time.monotonic() + PATIENCE_S
    while any(each.phase not in ENDED for each in client.ask(wire.WaitJobs(job_ids=(job_id,))).jobs):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"job {job_id} has not ended within {PATIENCE_S:.0f} s")
    shown = client.ask(wire.ShowJob(job_id=job_id))
    if not out.exists() or (way == "default" and shown.job.resumable_note):
        raise SystemExit(f"job {job_id}: {shown.job.reason}; {shown.job.resumable_note}")
    told: dict[str, float] = json.loads(out.read_text())
    return told


def page(found: dict[tuple[str, str], list[dict[str, float]]], rounds: int) -> str:
    lines = [
        "# What it costs that a plain script could be saved",
        "",
        "That a plain script could be saved changes the processor time of {changes}.",
        "",
        "The table has medians on a CPU slot of one core after warm starts, and the median of the",
        "differences within a round.",
        "",
        "| a step of about | never | default | more | first step, never | default |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    changes = []
    for size in SIZES:
        plain, driven = found[size, "never"], found[size, "default"]
        more = [100 * (b["step_ms"] / a["step_ms"] - 1) for a, b in zip(plain, driven, strict=True)]
        changes.append(f"a step of about {size} by {statistics.median(more):+.1f} %")
        cells = (
            size,
            f"{statistics.median(each['step_ms'] for each in plain):.3f} ms",
            f"{statistics.median(each['step_ms'] for each in driven):.3f} ms",
            f"{statistics.median(more):+.1f} %",
            f"{statistics.median(each['first_s'] for each in plain):.2f} s",
            f"{statistics.median(each['first_s'] for each in driven):.2f} s",
        )
        lines.append("| " + " | ".join(cells) + " |")
    command = f"Command: `python bench/resume_by_default.py --rounds {rounds}`"
    lines[2] = lines[2].format(changes=" and ".join(changes))
    return "\n".join([*lines, "", command, machine.sentences(), ""])


if __name__ == "__main__":
    main()

"""A checkpoint beside a plain write + fsync of as many bytes, and what a save in the background costs.

    python bench/checkpoint.py [--mib 1024] [--rounds 7] [--folder DIR] [--json FILE]

The state is a model with Adam (a third parameters, two thirds moments). Each round does, in turn: the
plain write; a save that is waited for (manifest, checksums, read back and compared), as when a job is
stopped; a save in the background, with its stall and the step time of a small loop while it is written.
The first round is not counted: fresh memory is slow to write to.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import torch
from torch import nn

from cotenant.checkpoint import Session
from cotenant.checkpoint.training.state import bytes_of

AIMS = {"ratio": 1.5, "stall_s": 0.1}
BLOCK_BYTES = 8 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; by default a temporary one"
    )
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-", dir=options.folder) as folder:
        rows = measure(Path(folder), options.mib, options.rounds)
    ratios = [row["save_s"] / row["plain_s"] for row in rows]
    result = {
        "machine": machine.facts(torch=torch.__version__, threads=str(torch.get_num_threads())),
        "mib": options.mib,
        "rounds": options.rounds,
        "aims": AIMS,
        "ratio": spread(ratios),
        **{key: spread([row[key] for row in rows]) for key in rows[0]},
    }
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(folder: Path, mib: int, rounds: int) -> list[dict[str, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(max(1, mib // 12))))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = Session(model, optimizer, root=folder, keep=1)
    state.step_done()  # the buffers for background saves are prepared after the first step
    rows = []
    for _ in range(rounds + 1):
        row = {"plain_s": timed(lambda: plain_write(folder / "plain", model, optimizer))}
        (folder / "plain").unlink()
        state.step_done()
        row["save_s"] = timed(lambda: succeed(save_as_at_a_stop(state)))
        row.update(background(state))
        rows.append(row)
    state.close()
    return rows[1:]


def plain_write(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The same tensors' bytes, one after the other, in large blocks, and one fsync."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for tensor in [*model.parameters(), *moments]:
        data = memoryview(bytes_of(tensor.detach())).cast("B", (tensor.numel() * tensor.element_size(),))
        for start in range(0, len(data), BLOCK_BYTES):
            os.write(fd, data[start : start + BLOCK_BYTES])
    os.fsync(fd)
    os.close(fd)


def save_as_at_a_stop(state: Session) -> bool:
    """Until durable: older checkpoints are deleted by the next save."""
    assert state._saver is not None
    return state._save(wait=True, tidy=False)


def background(state: Session) -> dict[str, float]:
    """Stall of a background save, time until durable, and step times meanwhile."""
    alone = steps_for(0.5)
    state.step_done()
    started_s = time.perf_counter()
    succeed(state.save(wait=False))
    stall_s = time.perf_counter() - started_s
    meanwhile: list[float] = []
    assert state._saver is not None and state._saver._running is not None
    while state._saver._running.is_alive():
        meanwhile.append(timed(one_step))
    return {
        "stall_s": stall_s,
        "background_s": time.perf_counter() - started_s,
        "step_alone_s": statistics.median(alone),
        "step_meanwhile_s": statistics.median(meanwhile),
    }


LEFT, RIGHT = torch.rand(512, 512), torch.rand(512, 512)


def one_step() -> None:
    """A few milliseconds of one thread's arithmetic."""
    for _ in range(4):
        torch.mm(LEFT, RIGHT)


def steps_for(duration_s: float) -> list[float]:
    until_s = time.perf_counter() + duration_s
    found = []
    while time.perf_counter() < until_s:
        found.append(timed(one_step))
    return found


def timed(call: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def succeed(saved: bool) -> None:
    if not saved:
        raise SystemExit("the save failed")


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(result: dict[str, Any]) -> None:
    print(f"{result['machine']}\n{result['mib']} MiB, {result['rounds']} rounds; median (min .. max)")
    names = {
        "plain_s": "plain write + fsync, s",
        "save_s": "checkpoint, durable and verified, s",
        "ratio": f"checkpoint / plain (aim: {AIMS['ratio']})",
        "stall_s": f"stall of a background save, s (aim: {AIMS['stall_s']})",
        "background_s": "background save until durable, s",
        "step_alone_s": "a small step alone, s",
        "step_meanwhile_s": "the same step during the save, s",
    }
    for key, name in names.items():
        value = result[key]
        print(f"  {name:48} {value['median']:.4f}  ({value['min']:.4f} .. {value['max']:.4f})")


if __name__ == "__main__":
    main()

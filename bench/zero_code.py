"""What it costs an unchanged script to be a job: per step, and from its launch on.

    python bench/zero_code.py [--pairs 20] [--steps-ms 1 10] [--write PAGE]

The same script runs bare and as a job, with the environment, the hook and the supervisor of a plain
submission. A pair starts one after the other, in turns the one or the other first, and trains block by block
in turns: the machine's mood hits both. A second bare process takes part as if it were a job; what it seems to
cost is what this way of measuring can tell apart. Both keep freed memory: whether glibc returns it after a
step is luck, and weighs more than the hook.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import machine
import torch

from cotenant.agent.host.jobside import prepare_jobside

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `tests`

from tests.agent.supervisor.attempts import Attempt, default_words, user_environment

AIM_SHARE: Final = 0.01
AIM_START_S: Final = 0.1
BLOCK_S: Final = 1.0
"""As long as the time between two reports of steps: a block has one, as a second of training has."""
BLOCKS: Final = 3
FIRST_STEPS: Final = 20
"""What is done once is done by then."""
PATIENCE_S: Final = 120.0
KEPT_MEMORY: Final = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
STEPS_MS: Final = (1, 10)
LAYERS: Final = (4, 40)
"""Of the models that are timed to tell how many make a step of so many milliseconds."""
WAYS: Final = ("bare", "job", "bare again")
SCRIPT: Final = """
import time
now = lambda: {"wall_s": time.monotonic(), "cpu_s": time.process_time()}
said = {"its first line": now()}
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
said["its imports"] = now()

def turn(word):
    print(json.dumps(word), flush=True)
    return sys.stdin.readline().strip()

depth, steps, first_steps = map(int, sys.argv[1:])
torch.manual_seed(0)
data = TensorDataset(torch.randn(32 * steps, 64), torch.randn(32 * steps, 1))
loader = DataLoader(data, batch_size=32, shuffle=True)
hidden = [nn.Sequential(nn.Linear(112, 112), nn.ReLU()) for _ in range(depth)]
model = nn.Sequential(nn.Linear(64, 112), nn.ReLU(), *hidden, nn.Linear(112, 1))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
done = 0
for epoch in range(1000):
    began = now()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total = loss.item()
        done += 1
        if done == 1:
            said["its first step"] = now()
        elif done == first_steps:
            said["its step %d" % first_steps] = now()
    ended = now()
    if not turn({"said": said, **{clock: (ended[clock] - began[clock]) / steps for clock in ended}}):
        break
"""
CLOCKS: Final = {"wall_s": "wall time", "cpu_s": "processor time"}


class Run:
    """A process of the script. It waits after each block."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], folder: Path) -> None:
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            argv, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def told(self, attempt: Attempt | None) -> dict[str, Any]:
        """What it says next; meanwhile the supervisor, if there is one, does its work."""
        said = self.process.stdout
        assert said is not None
        lines: list[str] = []

        def read() -> bool:
            if select.select([said], [], [], 0)[0]:
                lines.append(said.readline())
            return bool(lines)

        if attempt is None:
            lines.append(said.readline())
        else:
            attempt.attend_until(read, said, PATIENCE_S)
        if not lines or not lines[0]:
            raise SystemExit(f"the script says nothing; its code is {self.process.poll()}")
        found: dict[str, Any] = json.loads(lines[0])
        return found

    def block(self, attempt: Attempt | None) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        return self.told(attempt)

    def close(self) -> None:
        self.process.communicate()
        if self.process.returncode:
            raise SystemExit(f"the script ended with {self.process.returncode}")


class Cost(NamedTuple):
    """What one pair has found, of each way."""

    steps_s: dict[str, dict[str, float]]
    """A step's time, by clock."""
    starts_s: dict[str, dict[str, dict[str, float]]]
    """From the launch to each of its moments, by moment and clock."""


def prepare(folder: Path, depth: int, steps: int) -> tuple[list[str], dict[str, str]]:
    """The command of a script whose model has so many hidden layers and that trains so many steps in a block,
    and its environment."""
    (folder / "home" / "tmp").mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, str(script), str(depth), str(steps), str(FIRST_STEPS)]
    return argv, {**user_environment(folder / "home"), **KEPT_MEMORY}


def depths(folder: Path) -> dict[int, int]:
    """How many hidden layers make a step of each size on this machine."""
    steps_s = []
    for depth in LAYERS:
        argv, env = prepare(folder / str(depth), depth, 10 * FIRST_STEPS)
        run = Run(argv, env, folder)
        run.told(None)
        steps_s.append(min(run.block(None)["wall_s"] for _ in range(BLOCKS)))
        run.close()
    few, many = LAYERS
    layer_s = (steps_s[1] - steps_s[0]) / (many - few)
    return {each: max(1, round(few + (each * 1e-3 - steps_s[0]) / layer_s)) for each in STEPS_MS}


def cost(folder: Path, jobside: Path, step_ms: int, pair: int, depth: int) -> Cost:
    """One pair, and the second bare process."""
    argv, bare = prepare(folder, depth, max(FIRST_STEPS, round(BLOCK_S * 1e3 / step_ms)))
    attempt = Attempt(folder / "side", argv, folder, bare, jobside, profile_s=0.0)
    order = [WAYS[(pair + n) % len(WAYS)] for n in range(len(WAYS))]
    with ExitStack() as stack:
        stack.callback(attempt.close)
        runs: dict[str, Run] = {}
        starts: dict[str, dict[str, dict[str, float]]] = {}
        for way in order:
            run = runs[way] = Run(argv, attempt.env if way == "job" else bare, folder)
            stack.callback(run.close)
            if way == "job":
                attempt.began()
            starts[way] = run.told(attempt)["said"]
            for at in starts[way].values():
                at["wall_s"] -= run.began_s
        blocks = [
            {way: runs[way].block(attempt) for way in (order if turn % 2 else reversed(order))}
            for turn in range(BLOCKS)
        ]
        hello = [each for each in attempt.heard if hasattr(each, "resumable")]
        if not hello or not hello[-1].resumable:
            raise SystemExit(f"the job would not be resumed: {hello[-1:]}")
    medians = {
        way: {clock: statistics.median(block[way][clock] for block in blocks) for clock in CLOCKS}
        for way in WAYS
    }
    return Cost(medians, starts)


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """The median, and the order statistics between which that of the population lies."""
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0
    while k < n // 2 and below + math.comb(n, k) / 2**n <= (1 - level) / 2:
        below += math.comb(n, k) / 2**n
        k += 1
    k = max(0, k - 1)
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


def rows(step_ms: int, costs: Sequence[Cost]) -> Iterator[str]:
    step_s = statistics.median(each.steps_s["bare"]["wall_s"] for each in costs)
    for clock, name in CLOCKS.items():
        cells = []
        for way in WAYS[1:]:
            more = interval([each.steps_s[way][clock] / each.steps_s["bare"][clock] - 1 for each in costs])
            cells.append("{:+.2%} ({:+.2%} to {:+.2%})".format(*more))
        yield f"| a step of {1e3 * step_s:.2f} ms, {name} | {AIM_SHARE:.0%} | {cells[0]} | {cells[1]} |"


def start_rows(costs: Sequence[Cost]) -> Iterator[str]:
    for clock, moment in itertools.product(CLOCKS, costs[0].starts_s["bare"]):
        taken_s = {way: [each.starts_s[way][moment][clock] for each in costs] for way in WAYS}
        cells = []
        for way in WAYS[1:]:
            more = interval([one - bare for one, bare in zip(taken_s[way], taken_s["bare"], strict=True)])
            cells.append("{:+.3f} s ({:+.3f} to {:+.3f})".format(*more))
        name = f"launch to {moment}, {CLOCKS[clock]}; bare {statistics.median(taken_s['bare']):.2f} s"
        yield f"| {name} | {AIM_START_S} s | {cells[0]} | {cells[1]} |"


def page(found: dict[int, list[Cost]], words: str) -> str:
    every = [each for costs in found.values() for each in costs]
    return "\n".join([
        "# What it costs an unchanged script to be a job",
        "",
        f"Medians of {len(every) // len(found)} pairs with their 95 % intervals; the starts are those of all",
        f"sizes. The hook's parts are the default's: {', '.join(default_words())}.",
        "",
        "| | aim | a job | a second bare process |",
        "| --- | ---: | ---: | ---: |",
        *(row for step_ms, costs in found.items() for row in rows(step_ms, costs)),
        *start_rows(every),
        "",
        f"Command: `python bench/zero_code.py {words}`",
        machine.sentences(torch=str(torch.__version__)),
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps-ms", type=int, nargs="+", choices=STEPS_MS, default=STEPS_MS)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    found: dict[int, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        jobside = prepare_jobside(Path(name, "jobside"))
        layers = depths(Path(name, "depths"))
        for step_ms in options.steps_ms:
            costs = [
                cost(Path(name, f"{step_ms}-{pair}"), jobside, step_ms, pair, layers[step_ms])
                for pair in range(options.pairs + 1)
            ]
            found[step_ms] = costs[1:]  # The first has filled the caches.
    text = page(found, f"--pairs {options.pairs} --steps-ms {' '.join(map(str, options.steps_ms))}")
    print(text)
    if options.write is not None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()

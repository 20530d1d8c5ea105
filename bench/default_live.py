"""Twenty plain scripts of four users on four CPU slots, with no flag at all: the default beside strict fifo.

    python bench/default_live.py [--rounds 3] [--write PAGE]

Each round plays the same submissions under the default policy and under fifo, in turns. The scripts know
nothing of cotenant: five kinds of loops (at the top level, in functions, in a class, over slices and steps),
most of them wait for their data as from a slow disk. Where there are fewer than four cores the slots share
them, alike under both policies. Four long ones come first and take all slots; ten short
and six middle ones follow within twenty seconds. Every job that was preempted is trained once more by itself,
as a plain process: the parameters must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import machine

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.wire import clients as wire

COTENANT: Final = (sys.executable, "-m", "cotenant.controller.cli.main")
SLOTS: Final = 4
PROFILE_S: Final = 60.0
"""The setting's default."""
WITHIN_S: Final = 1800.0
SLOW_DISK_S: Final = 0.02
"""A batch of the long ones, and of every other one of those that follow, waits for so long."""
DEFAULT, FIFO = "the default", "fifo"

BEGINNING = """
import argparse, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--wait", type=float, default=0.0, help="seconds for a batch, as from a slow disk")
parser.add_argument("--out", default="model.pt")
args = parser.parse_args()
torch.manual_seed(args.seed)
x = torch.randn(1280, 128)
y = (x @ torch.randn(128, 10)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.ReLU(),
                      nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
KINDS: Final = {
    "top": """
best = float("inf")
for epoch in range(args.epochs):
    total = 0.0
    for inputs, targets in loader:
        time.sleep(args.wait)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    best = min(best, total)
    print(f"epoch {epoch}: {total / len(loader):.4f}, best {best / len(loader):.4f}", flush=True)
""",
    "functions": """
def train_one_epoch(model, loader, optimizer):
    model.train()
    running, seen = 0.0, 0
    for i, (inputs, targets) in enumerate(loader):
        time.sleep(args.wait)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(inputs)
        seen += len(inputs)
        if i % 20 == 19:
            print(f"  batch {i + 1}: {running / seen:.4f}", flush=True)
    return running / seen

@torch.no_grad()
def evaluate(model):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()

scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
history = []
for epoch in range(args.epochs):
    loss = train_one_epoch(model, loader, optimizer)
    history.append({"loss": loss, "accuracy": evaluate(model)})
    scheduler.step()
    print(epoch, history[-1], flush=True)
""",
    "class": """
class Trainer:
    def __init__(self, model, loader, optimizer):
        self.model, self.loader, self.optimizer = model, loader, optimizer
        self.steps, self.losses = 0, []
    def step(self, inputs, targets):
        time.sleep(args.wait)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.steps += 1
    def fit(self, epochs):
        for epoch in range(epochs):
            for inputs, targets in self.loader:
                self.step(inputs, targets)
            print(f"epoch {epoch}: step {self.steps}, {self.losses[-1]:.4f}", flush=True)
Trainer(model, loader, optimizer).fit(args.epochs)
""",
    "slices": """
for epoch in range(args.epochs):
    order = torch.randperm(len(x))
    for first in range(0, len(x), 32):
        time.sleep(args.wait)
        rows = order[first:first + 32]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
""",
    "steps": """
def get_batch():
    rows = torch.randint(len(x), (32,))
    return x[rows], y[rows]
for step in range(args.epochs * 40):
    time.sleep(args.wait)
    inputs, targets = get_batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: {loss.item():.4f}", flush=True)
""",
}
END = """
torch.save(model.state_dict(), args.out)
"""


class Submission(NamedTuple):
    at_s: float
    user: str
    kind: str
    epochs: int
    wait_s: float
    seed: int

    @property
    def size(self) -> str:
        return {LONG: "long", MIDDLE: "middle", SHORT: "short"}[self.epochs]

    def argv(self, out: Path) -> list[str]:
        words = {"epochs": self.epochs, "seed": self.seed, "wait": self.wait_s, "out": out}
        return [
            f"{self.kind}.py",
            *(word for name, value in words.items() for word in (f"--{name}", str(value))),
        ]


LONG, MIDDLE, SHORT = 360, 16, 5
"""Epochs. A long one needs seven minutes or more: a job of unknown length is expected to need five, and
preempts nobody who needs less."""


def submissions() -> list[Submission]:
    """The long ones of one user at once, then those of all four in turns."""
    kinds, waits = itertools.cycle(KINDS), itertools.cycle((0.0, SLOW_DISK_S))
    users = itertools.cycle(("ben", "cleo", "dan", "ada"))
    found = [Submission(0.0, "ada", next(kinds), LONG, SLOW_DISK_S, seed) for seed in range(4)]
    later = [MIDDLE if number % 8 in (2, 5, 7) else SHORT for number in range(16)]
    for number, epochs in enumerate(later):
        at_s = 4.0 + number
        found.append(Submission(at_s, next(users), next(kinds), epochs, next(waits), 4 + number))
    return found


class Round(NamedTuple):
    """What came of the twenty under one policy."""

    policy: str
    all_s: float
    """From the first submission to the last end."""
    completion_s: dict[int, float]
    """From submission to end, by number."""
    preempted: int
    shared: int
    resumable: int
    different: list[str]
    """Jobs that were preempted and have other parameters than an undisturbed run."""
    split: list[str]
    """Jobs that trained with their batch in parts, and were not compared."""


def play(policy: str, plan: list[Submission], references: References) -> Round:
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        folder = Path(name)
        for kind, text in KINDS.items():
            (folder / f"{kind}.py").write_text(BEGINNING + text + END)
        with (
            PrivateCluster(folder / "cluster", f"cpu:{SLOTS}", profile_s=PROFILE_S) as cluster,
            Client(cluster.endpoint, timeout_s=WITHIN_S) as client,
        ):
            if policy == FIFO:
                client.ask(wire.SetPolicy(name="fifo"))
            submitted = submit_all(cluster.endpoint, folder, plan)
            wait_for(client, submitted)
            shown = [client.ask(wire.ShowJob(job_id=job_id)) for job_id in submitted]
            ended = {job.job_id: job for job in client.ask(wire.ListJobs(include_ended=True)).jobs}
        failed = [f"job {s.job.job_id}: {s.job.reason}" for s in shown if s.job.phase is not Phase.DONE]
        if failed:
            raise SystemExit(f"under {policy} not all ended well: {'; '.join(failed)}")
        times = {number: ended_after_s(s) for number, s in enumerate(shown)}
        first_s = min(s.job.submitted_s for s in shown)
        different, split = [], []
        for number, s in enumerate(shown):
            if s.job.preemptions == 0:
                continue
            if max(attempt.accumulation_steps for attempt in s.attempts) > 1:
                split.append(f"{plan[number].kind} ({number})")
            elif digest(folder / f"{number}.pt") != references.of(number, plan[number]):
                different.append(f"{plan[number].kind} ({number})")
        return Round(
            policy=policy,
            all_s=max(s.job.submitted_s + times[n] for n, s in enumerate(shown)) - first_s,
            completion_s=times,
            preempted=sum(job.preemptions for job in ended.values()),
            shared=sum(bool(s.job.co_tenants_ever) for s in shown),
            resumable=sum(bool(s.job.resumable) for s in shown),
            different=different,
            split=split,
        )


def submit_all(endpoint: str, folder: Path, plan: list[Submission]) -> list[JobId]:
    """At their times, by the command that a user types."""
    begun_s, found = time.monotonic(), []
    for number, each in enumerate(plan):
        time.sleep(max(0.0, begun_s + each.at_s - time.monotonic()))
        words = each.argv(folder / f"{number}.pt")
        done = subprocess.run(
            [*COTENANT, "submit", "--endpoint", endpoint, "--", "python", *words],
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found.append(JobId(done.stdout.strip()))
    return found


def wait_for(client: Client, submitted: Sequence[JobId]) -> None:
    """Raises TimeoutError: they take longer than `WITHIN_S`."""
    deadline_s = time.monotonic() + WITHIN_S
    while any(each.phase not in ENDED for each in client.ask(wire.WaitJobs(job_ids=tuple(submitted))).jobs):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the jobs have not ended within {WITHIN_S:.0f} s")


def ended_after_s(shown: wire.Shown) -> float:
    ended = [attempt.ended_s for attempt in shown.attempts if attempt.ended_s is not None]
    return max(ended) - shown.job.submitted_s


def digest(path: Path) -> str:
    import torch

    content = hashlib.sha256()
    for name, tensor in sorted(torch.load(path, weights_only=True).items()):
        content.update(name.encode() + tensor.numpy().tobytes())
    return content.hexdigest()


class References:
    """What the scripts make without anybody: each is run once, as a plain process of one thread."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, number: int, each: Submission) -> str:
        if number not in self._known:
            with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
                folder = Path(name)
                (folder / f"{each.kind}.py").write_text(BEGINNING + KINDS[each.kind] + END)
                words = each._replace(wait_s=0.0).argv(folder / "model.pt")
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                quiet = subprocess.DEVNULL
                subprocess.run([sys.executable, *words], cwd=folder, env=env, stdout=quiet, check=True)
                self._known[number] = digest(folder / "model.pt")
        return self._known[number]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    os.environ["COTENANT_AGENT__OVERSUBSCRIBE"] = "true"  # Four slots, also on a machine with fewer cores.
    plan, references = submissions(), References()
    rounds: list[Round] = []
    for _ in range(options.rounds):
        for policy in (DEFAULT, FIFO):
            rounds.append(play(policy, plan, references))
            print(row(rounds[-1], plan), flush=True)
    text = page(rounds, plan, options.rounds)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


HEADINGS: Final = (
    "policy", "all done", "mean completion", "median of the short", "mean of the middle", "mean of the long",
    "shared", "preemptions", "resumable", "not exact",
)  # fmt: skip


def row(found: Round, plan: list[Submission]) -> str:
    def of(size: str) -> list[float]:
        return [found.completion_s[number] for number, each in enumerate(plan) if each.size == size]

    cells = (
        found.policy,
        f"{found.all_s:.0f} s",
        f"{statistics.fmean(found.completion_s.values()):.1f} s",
        f"{statistics.median(of('short')):.1f} s",
        f"{statistics.fmean(of('middle')):.1f} s",
        f"{statistics.fmean(of('long')):.1f} s",
        str(found.shared),
        str(found.preempted),
        f"{found.resumable} of {len(plan)}",
        ", ".join(found.different) or "none",
    )
    return "| " + " | ".join(cells) + " |"


def page(rounds: list[Round], plan: list[Submission], count: int) -> str:
    def over(policy: str, of: str) -> float:
        values = []
        for each in rounds:
            if each.policy == policy:
                short = [each.completion_s[n] for n, job in enumerate(plan) if job.size == "short"]
                every = list(each.completion_s.values())
                values.append(
                    {"all": each.all_s, "mean": statistics.fmean(every), "short": statistics.median(short)}[
                        of
                    ]
                )
        return statistics.median(values)

    ratios = {of: over(DEFAULT, of) / over(FIFO, of) for of in ("all", "mean", "short")}
    split = sorted({each for one in rounds for each in one.split})
    won = (
        f"**{ratios['all']:.2f} of the time, with {ratios['mean']:.2f} of the mean completion time and "
        f"{ratios['short']:.2f} of the median of the short ones**."
    )
    lines = [
        "# The default, live: twenty plain scripts",
        "",
        "Beside `fifo`, the default runs twenty plain scripts to their ends in",
        won,
        "No script knows of cotenant or was submitted with a flag.",
        "",
        "Four long scripts take all four CPU slots, then ten short and six middle ones of four users come",
        "within twenty seconds. A row is a round; the ratios above are of medians over the rounds.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + " --- |" * len(HEADINGS),
        *(row(each, plan) for each in rounds),
        "",
        "We trained each preempted script again by itself, as a plain process; `not exact` names the scripts",
        "whose parameters differ in a bit.",
        *([f"Not compared, because their batches were split: {', '.join(split)}."] if split else []),
        "",
        f"Command: `python bench/default_live.py --rounds {count}`",
        machine.sentences(),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

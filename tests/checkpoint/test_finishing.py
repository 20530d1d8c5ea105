"""A job whose budget is used leaves its loop at an agreed step, saved, and its script goes on after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.ranks import Supervisor, Warm, launch

SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
from cotenant import checkpoint

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = checkpoint.Session(model, optimizer)
tails = []

def step(_):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.01)

if sys.argv[1] == "batches":
    for epoch in session.epochs(1000):
        for batch in session.batches([0] * 1000):
            step(batch)
        tails.append(epoch)
elif sys.argv[1] == "iterations":
    for number in session.iterations(100000):
        step(number)
else:
    for number in range(100000):
        step(number)
        session.step_done()
print(json.dumps({"result": {"step": session.step, "tails": tails}}))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("loop", ["batches", "iterations", "step_done"])
def test_a_loop_of_ours_ends_on_all_ranks_and_another_one_stops(
    warm: Warm, tmp_path: Path, loop: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = tmp_path / "root"
    with Supervisor(tmp_path / "s", ranks=2) as supervisor:
        gang = launch(warm, script, tmp_path / "run", loop, ranks=2, env=supervisor.env(root, 1))
        supervisor.wait_for("first_step", 2, gang=gang)
        step = supervisor.agree("stop_at", 20, finish=True)
        supervisor.wait_for("durable", step=step, gang=gang)
        results = gang.wait()
        if loop == "step_done":
            supervisor.wait_for("stopped", 2, step=step)
            assert results == [{}, {}]
        else:
            assert results == [{"step": step, "tails": [0] if loop == "batches" else []}] * 2
    assert [each.name for each in root.glob("a1-s*")] == [f"a1-s{step}"]

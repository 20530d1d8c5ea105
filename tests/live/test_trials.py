"""`cotenant checkpoint verify` with scripts that train in torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from cotenant.controller.cli.main import main

SCRIPT = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
source, sink = os.pipe()
os.write(sink, bytes(range(1, 200)))
loader = DataLoader(TensorDataset(torch.randn(40, 3), torch.randn(40, 1)), batch_size=10, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
seen = 0
for epoch in range(2):
    for x, y in loader:
        seen = os.read(source, 1)[0] if sys.argv[1] == "pipe" else seen + 1
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) * seen).backward()
        optimizer.step()
torch.save({"model": model.state_dict(), "seen": seen}, "model.pt")
"""


LAUNCHER: Final = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


@pytest.mark.parametrize("kind", ["counted", "pipe"])
def test_a_stop_between_two_epochs_is_proven_or_the_value_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    code = main(["checkpoint", "verify", "--json", "--", sys.executable, "train.py", kind])
    told = json.loads(capfd.readouterr().out)
    assert (told["steps"], [stop["step"] for stop in told["stops"]]) == (8, [4])
    assert told["stops"][0]["epoch_end"]
    if kind == "counted":
        assert (code, told["reason"], told["compared"]) == (0, "", ["exit code 0", "model.pt"])
        assert told["stops"][0]["proven_steps"] == 2
    else:
        assert code == 1
        assert "`seen` was 5, now 1" in told["reason"]
    assert not (tmp_path / "model.pt").exists()


def test_a_launcher_ends_well_though_it_comes_to_no_loop_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("torch.randn(40, ", "torch.randn(2000, "))
    monkeypatch.chdir(tmp_path)
    code = main(["checkpoint", "verify", "--json", "--", sys.executable, *LAUNCHER, "train.py", "counted"])
    told = json.loads(capfd.readouterr().out)
    assert (code, told.get("reason"), told.get("compared")) == (0, "", ["exit code 0", "model.pt"]), told
    assert all(stop["proven_steps"] == 2 for stop in told["stops"])

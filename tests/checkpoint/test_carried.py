"""Which variables of a script's own loop a resume would lose, and what its author hears of it."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

import pytest

from cotenant.checkpoint.carried import forgotten

LOOP = """
for epoch in state.epochs(3):
    BEFORE
    for x, y in tqdm(state.batches(loader)):
        loss = model(x, y)
        INSIDE
    AFTER
"""


def found(before: str = "pass", inside: str = "pass", after: str = "pass") -> list[tuple[str, int]]:
    return forgotten(LOOP.replace("BEFORE", before).replace("INSIDE", inside).replace("AFTER", after), line=2)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({}, []),
        ({"inside": "best = min(best, loss)"}, [("best", 6)]),
        ({"before": "running = 0.0", "inside": "running += loss"}, [("running", 3)]),
        ({"after": "history = [*history, loss]"}, [("history", 7)]),
        ({"inside": "kept['best'] = min(kept['best'], loss)"}, []),
        ({"before": "began = time.perf_counter()", "after": "print(time.perf_counter() - began)"}, []),
        ({"inside": "accuracy = judge(x)", "after": "print(loss, accuracy)"}, []),
    ],
    ids=str,
)
def test_names_that_outlive_a_step_are_found_with_the_line_that_changes_them(
    parts: dict[str, str], names: list[tuple[str, int]]
) -> None:
    assert found(**parts) == names


def test_another_loop_is_none_of_ours() -> None:
    assert forgotten(LOOP.replace("INSIDE", "best = min(best, loss)"), line=4) == []
    assert forgotten("for epoch in range(3):\n    best = epoch", line=1) == []


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from cotenant import checkpoint

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(4, 2)), 2)
best, kept = 9.0, {"steps": 0}
state = checkpoint.Session(model, optimizer, extra=kept, root=ROOT)
for epoch in state.epochs(2):
    for (x,) in state.batches(loader):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        best = min(best, loss.item())
        kept["steps"] += 1
state.close()
"""


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "saves nothing"])
def test_the_author_hears_it_once_and_how_to_keep_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    for name in ("COTENANT_SOCKET", "COTENANT_CHECKPOINT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("ROOT", repr(str(tmp_path / "root")) if saves else "None"))
    with caplog.at_level(logging.WARNING, "cotenant.checkpoint"):
        runpy.run_path(str(script))
    warned = [record.getMessage() for record in caplog.records if "begins anew" in record.getMessage()]
    assert len(warned) == int(saves)
    assert all("best (line 17)" in each and 'kept = {"best": ...}' in each for each in warned)
    assert not any("steps" in each for each in warned)

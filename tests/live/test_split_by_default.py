"""Two plain scripts, submitted without any flag, on a slot that does not hold both with whole batches: the
second starts with its batch in parts, whose needs follow from the first one's by a model, and ends as if
nobody had been there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.ranks import Warm, launch
from tests.live.person import PATIENCE_S, Person, at_home

COMPARED = Path(__file__).with_name("compared.py")
EPOCHS, BATCH = 3, 34
"""A half is still more than the 32 MiB up to which the C library may hold on to freed memory."""
TOLERANCE = 1e-12
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
"""What is freed goes back at once: else a peak depends on how much of the heap lies in pieces."""
SCRIPT = """
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1].partition("=")[2]


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 256), nn.Linear(256, 4)

    def forward(self, x):
        wide = self.first(x).unsqueeze(1).expand(-1, 1024, -1) * 1.0
        return self.last(torch.relu(wide).mean(1))


torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = Wide()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(BATCH * 2, 16), torch.randint(0, 4, (BATCH * 2,)))
loader = DataLoader(data, batch_size=BATCH, shuffle=True)
epochs = 100_000 if out == "first.pt" else EPOCHS
for epoch in range(epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if out == "first.pt" and os.path.exists("go"):
            sys.exit()
torch.save(model.state_dict(), out)
with open("/proc/self/status") as status:
    sizes = {line.split()[0]: int(line.split()[1]) for line in status if line.endswith(" kB\\n")}
print((sizes["VmHWM:"] - sizes["RssFile:"]) // 1024)
""".replace("BATCH", str(BATCH)).replace("EPOCHS", str(EPOCHS))


def peak_mib(person: Path, *words: str) -> int:
    """Of the script, started as it is or in parts, without cotenant around it."""
    command = [sys.executable, *words]
    env = {**os.environ, **AT_ONCE}
    done = subprocess.run(
        command, cwd=person, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return int(done.stdout.split()[-1])


def test_the_second_starts_in_parts_that_were_never_asked_for(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, warm: Warm
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    whole = peak_mib(tmp_path, str(script), "--out=whole.pt")
    parts = peak_mib(tmp_path, "-m", "cotenant.gradaccum.launch", "--steps", "2", str(script), "--out=x.pt")
    assert parts < whole, "there is nothing to be saved"
    settings = {
        "agent__devices": "cpu:1",
        "agent__heartbeat_s": "0.3",
        "agent__slot_memory_mib": str(whole + (whole + parts) // 2),
        "policy__name": "castor",
        "profiler__seconds": "40",
    }
    with at_home(tmp_path_factory.mktemp("b"), **settings) as person:
        first, second = started(person)
        seen = person.show(first)
        assert (seen["batch_rows"], seen["accumulates"]) == (BATCH, True)
        assert f"{BATCH}, read from its loader, train.py line 30" in person("show", first).out
        found = person.until_state(second, "done")
        (attempt,) = person.show(second)["attempts"]
        assert attempt["accumulation_steps"] > 1 and attempt["co_tenants"] == [first]
        assert [point["accumulation_steps"] for point in person.show(first)["profile"]["points"]] == [1]
        assert found["batch_note"] == "read from its loader, train.py line 30"
        said = person.logs(second)
        person.write("go", "")
        person.until_state(first, "done")
        ours = person.work / "ours.pt"
    assert said.split() == said.split()[:1], "only what the script prints itself"
    (compared,) = launch(warm, COMPARED, tmp_path / "compared", str(ours), str(tmp_path / "whole.pt")).wait()
    assert 0.0 < compared["apart"] <= TOLERANCE, "equal to the bit: nothing was split"


def started(person: Person) -> tuple[str, str]:
    script = person.write("train.py", SCRIPT)
    variables = {"OMP_NUM_THREADS": "1", **AT_ONCE}.items()
    given = [word for name, value in variables for word in ("--env", f"{name}={value}")]
    command = (*given, "--", sys.executable, str(script))
    first = person.submit(*command, "--out=first.pt")
    person.until(first, lambda found: found["batch_rows"])
    second = person.submit(*command, "--out=ours.pt")
    person.until_state(second, "running")
    return first, second

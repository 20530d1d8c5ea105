"""What a job that nobody disturbs is spared: torch's own imports are not traced, its tensors are not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cotenant.gradaccum.launch import environment
from tests.checkpoint.ranks import DEADLINE_S, Supervisor

SCRIPT = """
import sys
import torch
from cotenant.checkpoint.picture import arrays, digest
from cotenant.checkpoint.zerocode.tracing import tracer

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("torch._dynamo."):
            traced.add(tracer() is not None)

def digest_tensor(tensor, take=digest.digest_tensor):
    sizes.add(tensor.numel() * tensor.element_size() > arrays.KEPT_BYTES_MAX)
    return take(tensor)

traced, sizes = set(), set()
digest.digest_tensor = arrays.digest_tensor = digest_tensor
model, x = torch.nn.Linear(1024, 512), torch.randn(2, 1024)
sys.meta_path.insert(0, Finder)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
print("torch's own imports:", traced, "the loop's begin:", tracer() is not None)
for step in range(3):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print("large tensors:", sizes, "traced to the end:", tracer() is not None)
"""


def test_an_undisturbed_job_is_traced_from_its_optimizer_to_its_loop_and_its_large_tensors_are_not_read(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Supervisor(tmp_path / "s", 1) as supervisor:
        env = supervisor.env(tmp_path / "root", 1)
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**environment(os.environ, "accumulate,quiet,leave,progress"), **env},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        hellos = [each for each in supervisor.hear_all() if each["m"] == "hello"]
    assert done.returncode == 0, done.stderr
    assert hellos[-1]["resumable"], hellos
    assert done.stdout.splitlines() == [
        "torch's own imports: {False} the loop's begin: True",
        "large tensors: {False} traced to the end: False",
    ]

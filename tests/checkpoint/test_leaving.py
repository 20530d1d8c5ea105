"""How a process leaves its group at its end: not before gloo's thread has dropped what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.checkpoint.talk.gang import SETTLE_S
from tests.checkpoint.ranks import Warm, launch

SCRIPT = """
import atexit, json, sys
import torch, torch.distributed as dist
from cotenant import checkpoint
from cotenant.checkpoint.talk import gang

slept = []
atexit.register(lambda: print(json.dumps({"result": {"slept": slept, "in_group": dist.is_initialized()}})))
if "alone" not in sys.argv:
    dist.init_process_group("gloo")
for _ in range(2):
    model = torch.nn.Linear(2, 2)
    session = checkpoint.Session(model, torch.optim.SGD(model.parameters(), lr=0.1))
gang.sleep = slept.append
if "destroys" in sys.argv:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("word", "pauses"),
    [("leaves it", 1), ("destroys", 0), ("alone", 0)],
    ids=("leaves the group to the interpreter", "has destroyed it", "has none"),
)
def test_a_script_that_is_still_in_its_group_at_the_end_pauses_once(
    warm: Warm, tmp_path: Path, word: str, pauses: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    [result] = launch(warm, script, tmp_path / "run", word).wait()
    assert result == {"slept": [SETTLE_S] * pauses, "in_group": pauses == 1}

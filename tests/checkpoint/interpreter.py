"""`interpreter.py FOLDER SEED SCRIPT ARGS`: what `python SCRIPT ARGS` does in a folder, in a process that has
torch already.

Rule: the start of a job's interpreter is the real one. Random numbers that a script does not seed are
different in each interpreter; here they follow SEED, so that a test can say which interpreters are alike.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cotenant.checkpoint.progress.main_optimizer import MainOptimizer
from cotenant.checkpoint.talk.agreement import StepVerdict
from cotenant.checkpoint.talk.channel import SupervisorChannel
from cotenant.gradaccum.launch import STARTUP

HOLD = "HABITS_HOLD"
"""Set: the first step is not over before a stop has been proposed, so that a short script cannot be too
fast."""
HOLD_S = 300.0
INSTALLED = Path(__file__).parent / "scripts" / "installed"


def hold_for_a_proposal() -> None:
    """At the first step boundary at which the script can be saved. The supervisor has heard of that step."""
    arrive = SupervisorChannel.arrive

    def held(channel: SupervisorChannel, step: int) -> StepVerdict:
        agreement = channel._agreement
        if agreement.can_save:
            SupervisorChannel.arrive = arrive  # type: ignore[method-assign]
            with channel._changed:
                channel._changed.wait_for(lambda: agreement._promises, HOLD_S)
        return arrive(channel, step)

    SupervisorChannel.arrive = held  # type: ignore[method-assign, assignment]


class StepCount:
    """Steps of the optimizer that counts: how far a run can be asked to stop."""

    def __init__(self) -> None:
        self.count = 0
        self._main: MainOptimizer | None = None

    def stepped(self, optimizer: Any, *_: Any) -> None:
        self._main = self._main or MainOptimizer()  # Not in a job, in which faults may be planted.
        self.count += self._main.counts(optimizer)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    folder, seed, *sys.argv = sys.argv[1:]
    os.chdir(folder)
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    sys.path.append(str(INSTALLED))
    seed_all(int(seed))
    script = types.ModuleType("__main__")
    script.__file__, sys.modules["__main__"] = sys.argv[0], script
    steps = StepCount()
    if os.environ.get(HOLD):
        hold_for_a_proposal()
    make_code: Any = None
    if os.environ.get("COTENANT_ZERO_CODE"):
        make_code = runpy.run_path(str(STARTUP / "sitecustomize.py"))["compile_script"]
    else:
        register_optimizer_step_post_hook(steps.stepped)
    try:
        source = Path(sys.argv[0]).read_bytes()
        make_code = make_code or (lambda source, file: compile(source, file, "exec"))
        exec(make_code(source, sys.argv[0]), vars(script))
    finally:
        # The script may have left its last line open.
        print("\n" + json.dumps({"result": {"steps": steps.count}}), flush=True)


if __name__ == "__main__":
    main()

"""`cotenant demo`: what it needs is checked, and room is made, before anything starts.

Rule: of what belongs to the user it ends one thing only, a cluster of `cotenant run` that has nothing to do;
the next `cotenant run` starts that again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.setup import owners
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.units import plural
from cotenant.controller.system.paths import client_endpoint
from cotenant.controller.wire import clients as wire


def demo(
    out: Annotated[
        str, option("--out", metavar="DIR", help="report.json and timeline.svg go here.")
    ] = "demo-out",
) -> int:
    """Real PyTorch jobs on this machine: two share a device, one is preempted and resumes exactly.

    Starts a controller and an agent of its own, which end with it. Takes a few minutes; needs torch
    and scikit-learn.

    For example:

      cotenant demo --out demo-out
    """
    problem = cannot_train()
    if problem is not None:
        raise problem
    make_room(client_endpoint(loaded_settings().settings))
    from cotenant.controller.cli.demo.run import run_demo

    return run_demo(Path(out))


DEMO_NEEDS: Final = {"torch": "torch", "sklearn": "scikit-learn"}
"""What the demo's jobs import, and what to install for it."""


def cannot_train(find: Callable[[str], object | None] = find_spec) -> Problem | None:
    """What the demo lacks, and the command that installs it; nothing is imported."""
    lacking = [package for module, package in DEMO_NEEDS.items() if find(module) is None]
    if not lacking:
        return None
    return Problem(
        "failed",
        f"the demo's jobs need {' and '.join(lacking)}, which {sys.executable} does not have",
        f"{sys.executable} -m pip install {' '.join(lacking)}",
    )


def make_room(where: str) -> None:
    """End the user's own cluster at this endpoint if it holds CPU slots, which the demo needs, was started by
    `cotenant run` and has no job that has not ended.

    Raises:
        Problem: it holds CPU slots, and a person started it, or it has jobs.
    """
    found = owners.owner(where)
    if found is None:
        return
    try:
        with asking(where, timeout_s=5.0) as client:
            devices = [device for node in client.ask(wire.ListNodes()).nodes for device in node.devices]
            jobs = client.ask(wire.ListJobs()).jobs
    except Problem as problem:  # It starts or ends; who has the devices is then seen by the demo's own agent.
        if problem.code != "unreachable":
            raise
        return
    if not any(device.kind == "cpu" and device.healthy for device in devices):
        return
    whose = f"your cluster of `cotenant {found.verb}` (pid {found.pid})"
    if found.verb == "run" and not jobs:
        tell(f"{whose} is idle and ends, to make room; the next `cotenant run` starts it again")
        owners.end(found)
        return
    busy = f", for {plural(len(jobs), 'job')}" if jobs else ""
    raise Problem(
        "refused",
        f"{whose} holds the CPU slots that the demo needs{busy}",
        "end it, and try again: cotenant down" + (" --cancel" if jobs else ""),
    )

"""`cotenant demo`: real jobs share, one is preempted and resumes, all on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.problem import Problem


def demo(
    out: Annotated[
        str, option("--out", metavar="DIR", help="report.json and timeline.svg go here.")
    ] = "demo-out",
) -> int:
    """Real PyTorch jobs on this machine: two share a device, one is preempted and resumes exactly.

    Starts a controller and an agent of its own, which end with it. Takes a few minutes; needs torch
    and scikit-learn (pip install 'cotenant[train,demo]').

    For example:

      cotenant demo --out demo-out
    """
    try:
        from cotenant.controller.cli.demo.run import run_demo
    except ModuleNotFoundError as error:
        raise Problem(
            "failed", f"the demo needs {error.name}", "pip install 'cotenant[train,demo]'"
        ) from None
    return run_demo(Path(out))

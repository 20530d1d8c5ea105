"""What a check of `doctor` is given, and what it says.

Rule: a check looks at `DoctorFacts` and changes nothing. One that does not apply here says nothing (None).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cotenant.controller.cli.doctor.agent_link import AgentAnswer
from cotenant.controller.cli.doctor.gpu_host import HostFiles
from cotenant.controller.cli.doctor.surroundings import Surroundings
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire.clients import ControllerStatus, Nodes
from cotenant.mps.detection import DetectedHost
from cotenant.profiler.driver.facts import DriverFacts
from cotenant.profiler.indicators.choice import Explanation

Verdict = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    name: str
    verdict: Verdict
    found: str
    todo: str = ""
    command: str = ""
    """One line to paste that does it."""


class DoctorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What several checks need, asked for once."""

    loaded: LoadedSettings
    status: ControllerStatus | None
    nodes: Nodes | None
    why_unreachable: Problem | None
    driver: DriverFacts = DriverFacts()
    files: HostFiles = HostFiles()
    mps: DetectedHost | None = None
    """What was found of MPS; None: not looked."""
    indicators: Explanation | None = None
    """The sources that were tried for the GPUs; None: there are none."""
    around: Surroundings = Surroundings()
    link: AgentAnswer | None = None
    """What its controller says to this host's agent; None: they meet on the user's own socket."""

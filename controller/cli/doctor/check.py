"""What a check of `doctor` gets, what it returns, and how it words several GPUs at once.

Rule: a check looks at `DoctorFacts` and changes nothing. One that does not apply here says nothing (None).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cotenant.controller.cli.doctor.agent_link import AgentAnswer
from cotenant.controller.cli.doctor.containers import TriedContainer
from cotenant.controller.cli.doctor.enabling import EnablingStep
from cotenant.controller.cli.doctor.gpu_host import HostFiles
from cotenant.controller.cli.doctor.surroundings import Surroundings
from cotenant.controller.present.problem import Problem
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire import clients as wire
from cotenant.mps.detection import DetectedHost
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts
from cotenant.profiler.indicators.device_process import Explanation

CheckResult = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    name: str
    verdict: CheckResult
    found: str
    todo: str = ""
    command: str = ""
    """One line to paste that does it."""


class DoctorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What several checks need, asked for once."""

    loaded: LoadedSettings
    status: wire.ControllerStatus | None
    nodes: wire.Nodes | None
    why_unreachable: Problem | None
    controllers: wire.ControllersView | None = None
    """Who leads and who follows; None: a controller has not said."""
    ways: dict[str, str] = {}
    """What came of the last message by each of the controller's ways; empty: it has none, or has not said."""
    driver: DriverFacts = DriverFacts()
    files: HostFiles = HostFiles()
    mps: DetectedHost | None = None
    """What was found of MPS; None: nobody has looked."""
    indicators: Explanation | None = None
    """The sources that were tried for the GPUs; None: there are none."""
    around: Surroundings = Surroundings()
    link: AgentAnswer | None = None
    """Whether the controller accepts this host's agent; None: they use the user's own socket."""
    host: str = ""
    """What an agent here is called."""
    container: TriedContainer | None = None
    """None: this host has no program for containers."""
    no_names: str = ""
    """Why podman gives containers no GPUs."""

    @property
    def here(self) -> wire.NodeView | None:
        """The node that is this machine, as the controller knows it; None: it does not, or did not answer."""
        nodes = self.nodes.nodes if self.nodes is not None else ()
        return next((node for node in nodes if node.host == self.host), None)


def answering(facts: DoctorFacts) -> list[GpuFacts]:
    return [gpu for gpu in facts.driver.gpus if not gpu.problem]


def uuids_of(some: Sequence[GpuFacts]) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in some)


def gpu_indices(some: Sequence[GpuFacts]) -> str:
    """`0`, `0 to 7`, or `0, 2, 5`: the indices of a group."""
    indices = [gpu.index for gpu in some]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))


def numbers(some: Sequence[GpuFacts]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in some)


def all_of(some: Sequence[GpuFacts]) -> str:
    return "this GPU" if len(some) == 1 else f"all {len(some)} GPUs"


def check_with_step(name: str, verdict: CheckResult, found: str, step: EnablingStep) -> Check:
    return Check(name, verdict, found, step.todo, step.command)

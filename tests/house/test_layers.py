"""One list of layers, the lowest first: a module sees its own layer, and those below it that its layer names.

Rule: what is not allowed is forbidden. An import upwards, a layer that is not named, a package in no layer
and a circle of modules fail. Imports inside functions and for type checkers count: laziness changes when a
module is loaded, not what depends on it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.building.sources import said

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")

TABLE = """\
# Inside the user's process: nothing of ours.
checkpoint
gradaccum                       checkpoint
# Values, messages, one machine: every process may use them.
controller.faces
controller.performance          controller.faces
controller.domain               controller.faces controller.performance
controller.knowledge            controller.faces controller.performance controller.domain
controller.planning             controller.faces controller.performance controller.domain
controller.wire                 controller.faces controller.performance controller.domain controller.knowledge
controller.system               controller.domain controller.wire
# Names of traces, to be listed without the simulator; how a value is said on a command line.
controller.trace_names
controller.flags
# What happened, drawn.
controller.timeline             controller.domain controller.wire
# Leaves: they speak with the MPS daemon, and measure.
mps
profiler.driver                 checkpoint controller.wire
profiler.indicators             profiler.driver
profiler                        controller.performance controller.domain profiler.indicators
# The agent obeys.
agent.ipc                       controller.performance controller.domain controller.wire controller.system
                                profiler.indicators
agent.host                      controller.domain controller.wire controller.system mps profiler.driver
                                profiler.indicators agent.ipc
agent.slurm.steps
agent.warm.forkserver
agent.warm                      controller.wire mps agent.ipc agent.host
agent.containers                checkpoint controller.domain agent.ipc agent.host
agent.supervisor.core           checkpoint controller.performance controller.domain controller.wire
                                profiler.indicators
                                profiler agent.ipc
agent.supervisor.processes      checkpoint controller.domain controller.wire controller.system mps
                                profiler.indicators
                                profiler agent.ipc agent.host agent.containers agent.supervisor.core
agent.supervisor                checkpoint controller.wire controller.system agent.ipc agent.host agent.warm
                                agent.containers agent.supervisor.core
                                agent.supervisor.processes
agent.daemon.core               controller.performance controller.domain controller.planning controller.wire
                                controller.system mps profiler.indicators agent.ipc
agent.gpus                      checkpoint controller.domain controller.wire controller.system mps
                                profiler.driver
                                agent.ipc agent.host agent.daemon.core
agent.daemon                    checkpoint controller.domain controller.wire controller.system profiler.driver
                                profiler.indicators agent.ipc agent.host agent.warm agent.containers
                                agent.supervisor.processes agent.daemon.core agent.gpus
agent.__main__                  controller.domain controller.system mps agent.daemon.core agent.daemon
# Deciding. The engine is given its policy.
controller.models               controller.performance controller.domain controller.wire
controller.policies.base        controller.domain controller.planning
controller.policies.entries     controller.policies.base
controller.policies.toolkit     controller.domain controller.planning controller.policies.base
controller.policies.sharing     controller.performance controller.domain controller.knowledge
                                controller.planning controller.policies.base controller.policies.toolkit
controller.policies             controller.performance controller.domain controller.planning
                                controller.policies.base controller.policies.entries
                                controller.policies.toolkit controller.policies.sharing
controller.engine.state         controller.performance controller.domain controller.knowledge
                                controller.planning controller.policies.base
controller.engine.stages        controller.domain controller.planning controller.policies.base
                                controller.engine.state
controller.engine.events        controller.performance controller.domain controller.planning
                                controller.engine.state controller.engine.stages
controller.engine               controller.performance controller.domain controller.knowledge
                                controller.planning controller.models controller.policies.base
                                controller.engine.state controller.engine.stages
                                controller.engine.events
controller.history              controller.performance controller.domain controller.knowledge
                                controller.models controller.policies.base controller.engine
# What is said to people, on the command line, the page and in messages.
controller.present              controller.performance controller.domain controller.wire
# Acting on what was decided.
controller.store                controller.domain controller.wire controller.system controller.engine
                                controller.history
controller.executors            controller.performance controller.domain controller.wire controller.system
                                controller.engine controller.store
controller.workers              controller.domain controller.wire controller.system controller.history
controller.api                  controller.performance controller.domain controller.knowledge
                                controller.planning controller.wire controller.system controller.models
                                controller.policies controller.engine controller.history controller.store
                                controller.executors
controller.notices              controller.domain controller.wire controller.system controller.engine
                                controller.history controller.present controller.store controller.executors
                                controller.api
controller.engine_settings      controller.performance controller.system controller.models controller.engine
controller.router               controller.wire controller.system
controller.redirecting          controller.wire
controller.loop                 controller.domain controller.wire controller.system controller.store
                                controller.executors controller.api
controller.server               controller.domain controller.wire controller.system controller.policies
                                controller.engine controller.engine_settings controller.history
                                controller.store controller.executors controller.workers controller.api
                                controller.notices controller.redirecting controller.router controller.loop
controller.from_journal         controller.domain controller.wire controller.system controller.policies
                                controller.engine controller.store controller.api agent.ipc agent.daemon
controller.standby              controller.wire controller.system controller.policies controller.engine
                                controller.store controller.redirecting controller.router
controller.__main__             controller.domain controller.system controller.policies controller.store
                                controller.engine_settings controller.router controller.server
                                controller.standby
# Trying out, and learning. What computes is handed to the simulator.
controller.sim                  controller.performance controller.domain controller.knowledge
                                controller.planning controller.wire controller.system controller.trace_names
                                controller.flags controller.timeline controller.models
                                controller.policies.base controller.policies controller.engine
                                controller.history controller.store
controller.training             controller.performance controller.domain controller.knowledge controller.wire
                                controller.system profiler controller.models controller.policies
                                controller.engine controller.sim
# The floor under every face, without click: what a submission is, asking a
# controller, comparing policies.
controller.submission           checkpoint controller.performance controller.domain controller.wire
                                controller.present
controller.client               checkpoint controller.performance controller.domain controller.wire
                                controller.system controller.present controller.submission
controller.whatif               controller.store controller.sim controller.present controller.submission
# The faces: none of them imports another. A verb that computes by itself, on files, is in `cli.offline`.
controller.cli                  checkpoint controller.performance controller.domain controller.wire
                                controller.system controller.flags controller.timeline mps profiler.driver
                                profiler.indicators controller.present controller.submission controller.client
controller.cli.offline          controller.performance controller.domain controller.submission
                                controller.wire controller.system
                                controller.trace_names controller.timeline controller.models
                                controller.policies controller.store controller.sim controller.training
                                controller.present controller.client controller.whatif controller.cli
controller.python               controller.domain controller.wire controller.system controller.present
                                controller.submission controller.client
controller.web                  controller.domain controller.wire controller.system controller.timeline
                                controller.present controller.submission controller.client
controller.web.simulating       controller.wire controller.sim controller.training controller.present
                                controller.whatif
# Plugins of other programs, which find them by name: nothing imports one.
controller.integrations         controller.domain controller.wire controller.submission controller.python
# Slurm, fenced: it comes in by name, and no layer above may name it.
agent.slurm                     controller.domain controller.system profiler.driver agent.ipc agent.host
controller.slurm.sbatch         controller.domain controller.present controller.submission
controller.slurm.answers        controller.domain
controller.slurm.alloc          controller.domain controller.planning controller.wire controller.system
                                controller.store controller.api controller.present controller.submission
                                controller.client controller.cli controller.slurm.answers
controller.slurm.aliases        controller.domain controller.wire controller.system controller.present
                                controller.submission controller.client controller.cli
                                controller.slurm.sbatch
controller.slurm.steer.core     controller.domain controller.planning controller.policies.base
                                controller.engine controller.submission controller.slurm.answers
controller.slurm.steer          controller.domain controller.system controller.policies.base
                                controller.policies controller.present controller.submission controller.cli
                                controller.cli.offline controller.slurm.steer.core
# Tools of others, fenced: nothing imports an integration.
controller.integrations.mcp     controller.domain controller.wire controller.system controller.present
                                controller.submission controller.client controller.cli
# Published systems, fenced: they come in by name, and no layer above may name one.
controller.papers.literature    controller.performance controller.domain controller.knowledge
                                controller.planning controller.policies.base controller.policies.entries
                                controller.policies.toolkit controller.policies.sharing controller.policies
controller.papers.lazer         controller.domain controller.planning controller.wire controller.policies.base
                                controller.policies.entries controller.policies.toolkit controller.policies
controller.papers.gfs           controller.performance controller.domain controller.planning controller.wire
                                controller.models controller.policies.base controller.policies.entries
                                controller.policies.toolkit controller.policies controller.training
controller.papers.pcs           controller.domain controller.planning controller.policies.base
                                controller.policies.entries controller.policies.toolkit controller.policies
                                controller.sim controller.training controller.papers.literature
controller.papers.pcs.verbs     controller.sim controller.training controller.present controller.whatif
                                controller.cli controller.cli.offline controller.papers.pcs
controller.papers.rltune        controller.domain controller.planning controller.policies.base
                                controller.policies.entries controller.policies.toolkit
                                controller.policies
"""
"""Layer, and what it may import from besides itself. A module belongs to the layer with the longest name."""


def layers(table: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        name, *sees = line.split() if line[0] != " " else (next(reversed(found)), *line.split())
        found.setdefault(name, []).extend(sees)
    return found


LAYERS = layers(TABLE)
ROOTS = frozenset(("agent", "controller", "controller.papers", "controller.slurm"))
"""Folders that are no layer themselves: their own `__init__` imports nothing."""


def sources() -> dict[str, Path]:
    """Every module of ours, without the surname."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()


def layer_of(module: str) -> str | None:
    """The layer with the longest name; None: in none."""
    while module and module not in LAYERS:
        module = module.rpartition(".")[0]
    return module or None


@cache
def imports_in(source: str, module: str) -> frozenset[tuple[int, str]]:
    """(line, module of ours), wherever in the source it is imported."""
    return frozenset(found_in(source, module))


def found_in(source: str, module: str) -> Iterator[tuple[int, str]]:
    for node in said(source).imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            origin = node.module or ""
            if node.level:
                origin = absolute(node, module, is_package=SOURCES.get(module, ROOT).name == "__init__.py")
            within = [f"{origin}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("cotenant.") in SOURCES else origin for name in within]
        for name in names:
            if name.startswith("cotenant."):
                yield node.lineno, name.removeprefix("cotenant.")


def absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    here = ["cotenant", *module.split(".")]
    here = here[: len(here) - node.level + is_package]
    return ".".join([*here, *([node.module] if node.module else [])])


def violations(source: str, module: str) -> list[str]:
    here = layer_of(module)
    if here is None and module not in ROOTS:
        return [f"{module} is in no layer: add its package to LAYERS"]
    sees = {here, *LAYERS[here]} if here else set()
    return [
        f"{module}:{line}: imports {target} ({layer_of(target)}), which {here or module} may not see"
        for line, target in sorted(imports_in(source, module))
        if layer_of(target) not in sees and target not in ROOTS
    ]


@cache
def edges() -> dict[str, set[str]]:
    """Who imports whom, by module."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in SOURCES.items():
        found[module] = {target for _, target in imports_in(path.read_text(), module)} - {module}
    return found


def test_a_layer_names_only_layers_below_it() -> None:
    order = list(LAYERS)
    for number, (layer, sees) in enumerate(LAYERS.items()):
        assert [each for each in sees if each not in order[:number]] == [], layer


def test_every_layer_is_there() -> None:
    assert [layer for layer in LAYERS if layer not in SOURCES] == []


def test_no_import_points_upwards() -> None:
    broken = [line for module, path in SOURCES.items() for line in violations(path.read_text(), module)]
    assert broken == [], "\n" + "\n".join(broken)


def test_no_layer_names_what_it_does_not_use() -> None:
    """Else the list would allow what nobody needs."""
    used: dict[str | None, set[str | None]] = defaultdict(set)
    for module, targets in edges().items():
        used[layer_of(module)] |= {layer_of(target) for target in targets}
    idle = {layer: set(sees) - used[layer] for layer, sees in LAYERS.items()}
    assert {layer: sorted(sees) for layer, sees in idle.items() if sees} == {}


FACES = ("controller.cli", "controller.python", "controller.web")


@pytest.mark.parametrize("face", FACES)
def test_no_face_imports_another(face: str) -> None:
    """The command line, the Python API and the page stand beside each other, on the same floor."""
    others = tuple(f"{each}." for each in FACES if each != face)
    inside = {module for module in SOURCES if f"{module}.".startswith(f"{face}.")}
    seen = {target for module in inside for target in edges()[module]}
    assert sorted(target for target in seen if f"{target}.".startswith(others)) == []


def test_no_circle_of_modules() -> None:
    try:
        TopologicalSorter(edges()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


BAD = {
    "upwards": ("controller.engine.state.ledger", "from cotenant.controller.store.core import Core"),
    "upwards, inside a function": (
        "controller.sim.simulate",
        "def f():\n    import cotenant.controller.training.kinds",
    ),
    "upwards, for type checkers": (
        "agent.ipc.files",
        "if TYPE_CHECKING:\n    from cotenant.agent.daemon import spool",
    ),
    "upwards, from the package": ("controller.store.core", "from cotenant.controller import api"),
    "sideways": ("agent.host.locks", "from cotenant.controller.engine import Engine"),
    "relative": ("controller.knowledge.pairs", "from ..engine import ledger"),
    "in no layer": ("controller.shelf.books", "import os"),
    "into a paper, from what a lab runs": (
        "controller.policies.registry",
        "from cotenant.controller.papers.lazer.policy import LAZER",
    ),
    "out of a root": ("controller", "from cotenant.controller.engine import Engine"),
}


@pytest.mark.parametrize(("module", "source"), BAD.values(), ids=BAD.keys())
def test_a_wrong_import_is_caught(module: str, source: str) -> None:
    assert violations(source, module)


def test_a_right_import_passes() -> None:
    source = "from cotenant.controller.domain import job_spec\nfrom . import ledger"
    assert violations(source, "controller.engine.engine") == []

"""Outside a package, only what its `__init__` exports is imported.

Rule: a package's face is the `__all__` of its `__init__`. Some export names, so that moving a file inside
touches nobody else. Those loaded in part export modules: an optional dependency, or one piece of what
every command and every attempt would otherwise load whole. A package's own tests may look inside.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.building.sources import said

ROOT = Path(__file__).resolve().parents[2]
SEARCHED = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
BESIDES = ("tests", "hwtests", "bench", "experiments", "examples")

EXPORT_NAMES = (
    "controller.api",
    "controller.domain",
    "controller.knowledge",
    "controller.performance",
    "controller.planning",
    "controller.engine",
    "controller.executors.agents",
    "controller.papers.gfs.forecast",
    "controller.papers.rltune",
    "controller.papers.literature.elastic",
    "controller.papers.pcs",
    "controller.policies.sharing",
    "controller.policies.toolkit",
    "controller.sim",
    "controller.sim.eta",
    "controller.store",
    "controller.system.metrics",
    "controller.timeline",
    "controller.training",
    "controller.papers.rltune.placement",
    "controller.papers.pcs.preferences",
    "controller.wire",
)

EXPORT_MODULES = {
    "agent.containers": "its readers, a daemon and a supervisor, need few of them",
    "agent.daemon": "assembly loads every part of the agent; its core is asked for without them",
    "agent.daemon.core": "watches of GPUs need its keys and events, and load no state machine",
    "agent.gpus": "an agent without GPUs needs few of them",
    "agent.host": "a supervisor, one per attempt, needs few of them",
    "agent.ipc": "a fork server needs an address of it, and no records",
    "agent.supervisor": "the agent asks for the core and the processes, never for the runtime",
    "agent.supervisor.core": "what starts processes needs few of its words",
    "agent.supervisor.processes": "the agent starts no ranks; it reads their logs and ends what is left",
    "agent.warm": "a supervisor asks a fork server, and loads nothing of what makes one",
    "checkpoint": "inside the user's process, whose start must not pay for what it does not use",
    "controller.models": "an order needs no forecast, and a forecast no ends of jobs",
    "controller.models.interference": "xgboost may be absent",
    "controller.papers.gfs.training": "torch and xgboost may be absent",
    "controller.policies": "each policy is a module or a package of its own",
    "controller.sim.past": "what it reads of a journal is no part of a simulation",
    "controller.sim.results": "plots need a package that may be absent",
    "controller.system": "the command line starts in a tenth of a second",
    "gradaccum": "inside the user's process, whose start must not pay for what it does not use",
    "mps": "few of its parts are needed at a time",
    "profiler": "its sources need packages that may be absent",
    "profiler.driver": "NVML may be absent",
    "profiler.indicators": "its sources need packages that may be absent",
}
"""Package, and why it is loaded in part."""


def sources() -> Iterator[tuple[Path, str]]:
    """Every file, with its module's name; of a test, with the package that it tests behind `tests.`."""
    for folder in (*SEARCHED, *BESIDES):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ".cache" in path.parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield path, ".".join(parts[:-1] if parts[-1] == "__init__" or folder == "tests" else parts)


MODULES = {name: path for path, name in sources() if name.partition(".")[0] in SEARCHED}


def package_of(module: str) -> str | None:
    """The innermost package with a face; None: it has none of its own."""
    while module and module not in EXPORT_NAMES and module not in EXPORT_MODULES:
        module = module.rpartition(".")[0]
    return module or None


def is_inside(importer: str, package: str) -> bool:
    """Of the package itself, or one of its tests."""
    if importer.startswith("tests."):
        tested = importer.removeprefix("tests.")
        return (tested != "controller" and f"{package}.".startswith(f"{tested}.")) or is_inside(
            tested, package
        )
    return f"{importer}.".startswith(f"{package}.")


@cache
def exported(package: str) -> frozenset[str]:
    """The names of `__all__`; of a lazy face those of its modules, and the modules that it exports itself."""
    found = set[str]()
    for node in ast.parse(MODULES[package].read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")]):
                found |= set(ast.literal_eval(node.value))
            case ast.AnnAssign(target=ast.Name("_HOMES"), value=ast.Dict() as homes):
                found |= {name for names in ast.literal_eval(homes).values() for name in names}
            case ast.AnnAssign(target=ast.Name("_MODULES"), value=ast.Tuple() as modules):
                found |= set(ast.literal_eval(modules))
    return frozenset(found)


def wrong(source: str, importer: str) -> Iterator[str]:
    """What it imports past a face."""
    for node in said(source).imports:
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").startswith("cotenant.")
        ):
            asked = [(str(node.module).removeprefix("cotenant."), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [
                alias.name.removeprefix("cotenant.") for alias in node.names if "cotenant." in alias.name
            ]
            asked = [(name.rpartition(".")[0], name.rpartition(".")[2]) for name in names]
        else:
            continue
        for origin, name in asked:
            whole = f"{origin}.{name}"
            package = package_of(whole if whole in MODULES else origin)
            if package is None or whole == package or is_inside(importer, package):
                continue
            first = whole.removeprefix(f"{package}.").partition(".")[0]
            if first in exported(package) and (package in EXPORT_MODULES or origin == package):
                continue
            yield f"line {node.lineno}: {whole}, which {package} does not export"


def test_only_what_a_package_exports_is_imported_from_outside() -> None:
    found = {str(path.relative_to(ROOT)): list(wrong(path.read_text(), name)) for path, name in sources()}
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize("package", [*EXPORT_NAMES, *EXPORT_MODULES])
def test_a_face_names_only_what_is_there(package: str) -> None:
    face = importlib.import_module(f"cotenant.{package}")
    modules = {name for name in exported(package) if f"{package}.{name}" in MODULES}
    assert [name for name in exported(package) - modules if not hasattr(face, name)] == []


@pytest.mark.parametrize(
    "source",
    [
        "from cotenant.controller.domain.job import Job",
        "import cotenant.controller.engine.state.ledger",
        "def late():\n    from cotenant.agent.host.nowhere import something",
        "from cotenant.controller.engine import reports",
    ],
)
def test_an_import_past_a_face_is_found(source: str) -> None:
    assert list(wrong(source, "controller.server")) != []


def test_a_package_and_its_tests_look_inside() -> None:
    source = "from cotenant.controller.engine.state.ledger import Ledger"
    assert list(wrong(source, "controller.engine.engine")) == []
    assert list(wrong(source, "tests.controller.engine")) == []

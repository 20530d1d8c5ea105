"""Dependencies point one way: domain <- wire <- everything, and deciding code never touches the world.

Each rule is a line of `RULES`; a violation names file and line, the rule and the reason. Imports inside
functions count as well: laziness changes when a module is loaded, not what depends on it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
SCANNED = (*OURS, "tests", "hwtests", "bench")
STDLIB = frozenset(sys.stdlib_module_names)
# fmt: off
WORLD = frozenset((
    "asyncio", "zmq", "time", "datetime", "socket", "select", "selectors", "os", "io", "pathlib", "shutil",
    "tempfile", "signal", "logging", "subprocess", "threading", "multiprocessing", "concurrent", "sqlite3",
    "psutil", "pynvml", "urllib", "http",
))
# fmt: on
"""What reads a clock, touches a file, a socket, a process or a thread."""
HEAVY = frozenset(("torch", "botorch", "gpytorch", "xgboost", "pymoo", "sklearn"))


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def top(module: str) -> str:
    return module.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Import:
    module: str
    line: int


def imports_in(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Every module the source imports. `from a import b` counts as `a.b` within ours: b may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(module=alias.name, line=node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node, module, is_package)
            names = (
                [f"{origin}.{alias.name}" for alias in node.names] if within(origin, "cotenant") else [origin]
            )
            yield from (Import(module=name, line=node.lineno) for name in names)


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    here = module.split(".") if is_package else module.split(".")[:-1]
    base = here[: len(here) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def sources() -> list[Path]:
    return sorted(path for folder in SCANNED for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("cotenant", *parts) if parts[0] in OURS else parts)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """In modules where `where` holds, each imported module must be `allowed`."""

    name: str
    why: str
    where: Callable[[str], bool]
    allowed: Callable[[str], bool]


def modules(*packages: str, but: tuple[str, ...] = ()) -> Callable[[str], bool]:
    return lambda module: within(module, *packages) and not within(module, *but)


def only(*packages: str, stdlib: bool = True) -> Callable[[str], bool]:
    return lambda module: within(module, *packages) or (stdlib and top(module) in STDLIB)


def none_of(*packages: str) -> Callable[[str], bool]:
    return lambda module: not within(module, *packages)


CONTROLLER = "cotenant.controller"
DOMAIN = f"{CONTROLLER}.domain"
WIRE = f"{CONTROLLER}.wire"
POLICIES = f"{CONTROLLER}.policies"
BASE = f"{POLICIES}.base"
# fmt: off
DRIVERS = tuple(f"{CONTROLLER}.{name}" for name in (
    "live", "sim", "tuning", "journal", "cli", "demo", "client", "endpoint", "keys", "places", "settings",
    "submission",
))
# fmt: on
"""What acts, or serves those that act. The agent shares some of it; the engine none."""
DECIDES = tuple(f"{CONTROLLER}.{name}" for name in ("live", "sim", "tuning", "journal", "cli", "demo"))
NOT_ENGINE = (DOMAIN, WIRE, POLICIES, *DRIVERS)


def engine_parts() -> tuple[str, ...]:
    """The engine's package and every module of the controller that it reaches: what `handle` runs through.

    Found by following imports, so that a part split off the engine cannot lose its purity.
    """
    folders = (ROOT / "controller", ROOT / "controller" / "engine")
    files = {module_of(path): path for folder in folders for path in folder.glob("*.py")}
    parts: set[str] = set()
    waiting = {module for module in files if within(module, f"{CONTROLLER}.engine")}
    while waiting:
        part = waiting.pop()
        parts.add(part)
        found = imports_in(files[part].read_text(), part, is_package=False) if part in files else ()
        reached = {".".join(each.module.split(".")[:3]) for each in found if within(each.module, CONTROLLER)}
        waiting |= reached - parts - {CONTROLLER, *NOT_ENGINE}
    return tuple(sorted(parts))


ENGINE = engine_parts()
WORKLOADS = f"{CONTROLLER}.demo.workloads"
# fmt: off
AGENT_PURE = tuple(f"cotenant.agent.{name}" for name in (
    "core", "attempt.core", "attempt.processes.nccl",
    "gpus.health", "gpus.held", "gpus.doubts", "gpus.faults",
    "gpus.fault_roll", "gpus.marks", "gpus.conditions", "gpus.device_states", "gpus.xid", "gpus.looks",
))
# fmt: on
PURE = (DOMAIN, *ENGINE, POLICIES, *AGENT_PURE)
JOB_SIDE = ("cotenant.checkpoint", "cotenant.gradaccum")

RULES = (
    Rule(
        name="domain stands alone",
        why="everything depends on it, so it depends on nothing of ours",
        where=modules(DOMAIN),
        allowed=only(DOMAIN, "msgspec", "sortedcontainers"),
    ),
    Rule(
        name="wire knows only the domain",
        why="payloads are the domain's types; a message must not pull in who sends it",
        where=modules(WIRE),
        allowed=only(DOMAIN, WIRE, "msgspec", "msgpack"),
    ),
    Rule(
        name="policies see values",
        why="the same policy runs live, simulated and in what-if, on any machine",
        where=modules(POLICIES),
        allowed=only(DOMAIN, POLICIES, "numpy", "msgspec", "sortedcontainers"),
    ),
    Rule(
        name="the engine is given its policy",
        why="it runs under any policy and any driver: domain, wire and policies.base are all it sees",
        where=modules(*ENGINE),
        allowed=only(DOMAIN, WIRE, BASE, *ENGINE, "msgspec", "sortedcontainers", "numpy"),
    ),
    Rule(
        name="deciding code is pure",
        why="it gets the time and the event, and returns what should happen; drivers act",
        where=modules(*PURE, but=("cotenant.agent.attempt.core.ends",)),  # It has signals' names.
        allowed=lambda module: top(module) not in WORLD | HEAVY,
    ),
    Rule(
        name="heavy libraries live in tuning",
        why="`handle` never fits, trains or loads; a controller starts without a training stack",
        where=modules(CONTROLLER, but=(f"{CONTROLLER}.tuning", WORKLOADS)),
        allowed=lambda module: top(module) not in HEAVY,
    ),
    Rule(
        name="workloads are programs",
        why="the demo starts them as a user would; nothing imports them",
        where=modules("cotenant", but=(WORKLOADS,)),
        allowed=none_of(WORKLOADS),
    ),
    Rule(
        name="the agent obeys",
        why="it never imports what decides, and it stays small on every server",
        where=modules("cotenant.agent"),
        allowed=lambda module: (
            none_of(POLICIES, *ENGINE, *DECIDES, *JOB_SIDE)(module) and top(module) not in HEAVY
        ),
    ),
    Rule(
        name="nothing imports the agent",
        why="`up`, `demo` and `run` start `python -m cotenant.agent` as a process",
        where=modules("cotenant", but=("cotenant.agent",)),
        allowed=none_of("cotenant.agent"),
    ),
    Rule(
        name="checkpoint runs inside the user's process",
        why="cotenant may not be installed there: standard library and torch only",
        where=modules("cotenant.checkpoint"),
        allowed=only("cotenant.checkpoint", "torch"),
    ),
    Rule(
        name="gradaccum runs inside the user's process",
        why="cotenant may not be installed there: standard library and torch only",
        where=modules("cotenant.gradaccum"),
        allowed=only("cotenant.gradaccum", "torch"),
    ),
    Rule(
        name="the profiler's rooms import nothing by themselves",
        why="an agent that wants one source must not load them all",
        where=lambda module: module in ("cotenant.profiler", "cotenant.profiler.indicators"),
        allowed=lambda module: module == "__future__",
    ),
    Rule(
        name="mps stands alone",
        why="an agent, doctor and a test use it; it decides nothing and knows no cluster",
        where=modules("cotenant.mps"),
        allowed=only("cotenant.mps", "psutil"),
    ),
    Rule(
        name="the profiler measures",
        why="it knows the domain's types, not who asks",
        where=modules("cotenant.profiler"),
        allowed=lambda module: none_of(CONTROLLER)(module) or within(module, DOMAIN, WIRE),
    ),
    Rule(
        name="the driver is asked in one place",
        why="any call of NVML may hang, and its errors need our words: profiler.driver has both",
        where=modules("cotenant", "hwtests", "bench", but=("cotenant.profiler.driver",)),
        allowed=none_of("pynvml"),
    ),
    Rule(
        name="our folders have a surname",
        why="a bare `import checkpoint` finds a user's own file, or ours in place of theirs",
        where=lambda module: True,
        allowed=lambda module: top(module) not in OURS,
    ),
)


def violations(source: str, module: str, path: str, is_package: bool = False) -> list[str]:
    found = sorted(set(imports_in(source, module, is_package)), key=lambda each: (each.line, each.module))
    return [
        f"{path}:{each.line}: imports {each.module}. Rule: {rule.name}, because {rule.why}"
        for rule in RULES
        if rule.where(module)
        for each in found
        if not rule.allowed(each.module)
    ]


def test_every_import_points_the_right_way() -> None:
    broken = [
        line
        for path in sources()
        for line in violations(
            path.read_text(), module_of(path), str(path.relative_to(ROOT)), path.name == "__init__.py"
        )
    ]
    assert broken == [], "\n" + "\n".join(broken)


def test_job_side_code_is_python_3_9() -> None:
    """Annotations may be newer, as long as nobody evaluates them."""
    for folder in ("checkpoint", "gradaccum"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))
            postponed = any(
                isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
            )
            annotated = any(isinstance(node, ast.AnnAssign | ast.arg) for node in ast.walk(tree))
            where = path.relative_to(ROOT)
            assert postponed or not annotated, f"{where}: needs `from __future__ import annotations`"


BAD = {
    "a domain that imports the wire": (f"{DOMAIN}.job", f"from {WIRE} import codec"),
    "a domain that imports its package's sibling by its parent": (
        f"{DOMAIN}.job",
        f"from {CONTROLLER} import engine",
    ),
    "a wire that imports zmq": (f"{WIRE}.codec", "import zmq"),
    "a policy that trains": (f"{POLICIES}.lazer.model", "import torch"),
    "a policy that trains lazily": (f"{POLICIES}.lazer.model", "def f():\n    import torch.nn"),
    "a policy that reads the clock": (f"{POLICIES}.classic", "import time"),
    "an engine with a favourite policy": (f"{CONTROLLER}.engine", f"from {POLICIES} import castor"),
    "an engine that logs": (f"{CONTROLLER}.engine", "import logging"),
    "a ledger that knows who drives it": (f"{CONTROLLER}.engine.ledger", f"import {CONTROLLER}.live"),
    "an agent state machine that sleeps": ("cotenant.agent.core.state", "from asyncio import sleep"),
    "an agent that imports a policy": ("cotenant.agent.main", f"from {POLICIES} import base"),
    "an agent that imports torch": ("cotenant.agent.attempt.supervisor", "import torch"),
    "a command line that imports the agent": (f"{CONTROLLER}.cli.up", "from cotenant import agent"),
    "a command line that imports torch": (f"{CONTROLLER}.cli.demo", "import torch"),
    "a checkpoint that needs msgspec": ("cotenant.checkpoint.disk.save", "import msgspec"),
    "a checkpoint that needs the wire": ("cotenant.checkpoint.disk.save", f"from {WIRE} import job"),
    "gradaccum that leans on checkpoint": ("cotenant.gradaccum.loop", "from cotenant.checkpoint import save"),
    "a profiler that loads all its sources": (
        "cotenant.profiler.indicators",
        "from cotenant.profiler.indicators import nvml",
    ),
    "an agent that opens the driver's library itself": (
        "cotenant.agent.gpus.nvml_watch",
        "def f():\n    import pynvml",
    ),
    "a bare name": ("tests.agent.test_state", "import agent.state"),
}


@pytest.mark.parametrize(("module", "source"), BAD.values(), ids=BAD.keys())
def test_the_rules_catch(module: str, source: str) -> None:
    assert violations(source, module, "somewhere.py")


GOOD = {
    "an engine that is given its policy": (f"{CONTROLLER}.engine", f"from {POLICIES} import base"),
    "a policy with numbers": (
        f"{POLICIES}.pcs.front",
        f"import numpy as np, math\nfrom {POLICIES}.base import Policy",
    ),
    "an agent that speaks": ("cotenant.agent.main", f"import asyncio, zmq\nfrom {WIRE} import codec"),
    "a supervisor that watches the clock": ("cotenant.agent.attempt.supervisor", "import time"),
    "a workload that trains": (f"{WORKLOADS}.digits", "import torch"),
    "a watcher that asks where all ask": (
        "cotenant.agent.gpus.nvml_watch",
        "from cotenant.profiler.driver.library import open_library",
    ),
    "tuning that trains": (f"{CONTROLLER}.tuning.fit", "import torch"),
}


@pytest.mark.parametrize(("module", "source"), GOOD.values(), ids=GOOD.keys())
def test_the_rules_let_pass(module: str, source: str) -> None:
    assert violations(source, module, "somewhere.py") == []


def test_a_relative_import_is_followed() -> None:
    assert violations("from ..gradaccum import loop", "cotenant.checkpoint.session", "session.py")
    assert not violations("from . import manifest", "cotenant.checkpoint.session", "session.py")
    assert not violations("from .save import Saver", "cotenant.checkpoint", "__init__.py", is_package=True)


def test_a_violation_says_where_which_rule_and_why() -> None:
    (line,) = violations("\nimport torch\n", f"{CONTROLLER}.live", "controller/live.py")
    assert line.startswith(
        "controller/live.py:2: imports torch. Rule: heavy libraries live in tuning, because "
    )

"""What may be imported from outside: deciding code never touches the world, heavy libraries have one home.

Rule: each line of `RULES` says where it holds; a violation names file and line, the rule and the reason.
Imports inside functions count as well: laziness changes when a module is loaded, not what depends on it.
Who may import whom among our own packages is in `test_layers.py`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building.sources import said

ROOT = Path(__file__).resolve().parents[2]
INSIDE_A_SCRIPT = tuple(
    f"cotenant.checkpoint.{module}"
    for module in (
        "guard",
        "late_log",
        "lookups",
        "ownership",
        "picture",
        "progress",
        "talk.protocol",
        "training.rng",
        "unseen",
    )
)
"""What the hooks for saving and for splitting both need of a script's process."""
OURS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
SCANNED = (*OURS, "tests", "hwtests", "bench", "experiments")
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
    for node in said(source).imports:
        if isinstance(node, ast.Import):
            yield from (Import(module=alias.name, line=node.lineno) for alias in node.names)
        else:
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
BELOW = (f"{CONTROLLER}.faces", f"{CONTROLLER}.performance")
ABOVE = (f"{CONTROLLER}.knowledge", f"{CONTROLLER}.planning")
"""Of the domain: values as well."""
WIRE = f"{CONTROLLER}.wire"
ENGINE = f"{CONTROLLER}.engine"
MODELS = f"{CONTROLLER}.models"
POLICIES = f"{CONTROLLER}.policies"
PAPERS = f"{CONTROLLER}.papers"
TRAINING = (
    f"{CONTROLLER}.training",
    f"{PAPERS}.gfs.training",
    f"{PAPERS}.lazer.deferral",
    f"{PAPERS}.pcs.preferences",
)
BESIDE_POLICIES = (*TRAINING, f"{PAPERS}.pcs.verbs")
"""Parts of a paper that decide nothing: they train, or are a verb."""
# fmt: off
AGENT_PURE = tuple(f"cotenant.agent.{name}" for name in (
    "daemon.core", "supervisor.core", "supervisor.processes.environment", "gpus.health",
    "gpus.conditions", "gpus.device_states", "gpus.xid", "gpus.probe_results", "warm.pool",
    "warm.refusals",
))
# fmt: on
PURE = (*BELOW, DOMAIN, *ABOVE, ENGINE, MODELS, POLICIES, PAPERS, *AGENT_PURE)
VALUES = (
    "cotenant.agent.warm.refusals",
    "cotenant.agent.supervisor.core.exit_classifier",
    "cotenant.agent.supervisor.processes.environment",
    "cotenant.agent.daemon.core.orders",
)
"""They use names of signals, and paths, as values."""
NAMING = frozenset(("pathlib", "signal"))
BENCHMARKS = frozenset(("bench", *(path.stem for path in (ROOT / "bench").glob("*.py"))))
"""The scripts import each other by bare names."""

RULES = (
    Rule(
        name="domain stands alone",
        why="everything depends on it",
        where=modules(*BELOW, DOMAIN, *ABOVE),
        allowed=only(*BELOW, DOMAIN, *ABOVE, "msgspec"),
    ),
    Rule(
        name="wire is values and their encoding",
        why="a message must not pull in who sends it",
        where=modules(WIRE),
        allowed=only(*BELOW, DOMAIN, *ABOVE, WIRE, "msgspec", "msgpack"),
    ),
    Rule(
        name="deciding code needs no libraries but numpy and containers",
        why="the same decisions run live, simulated and in what-if, on any machine",
        where=modules(POLICIES, PAPERS, ENGINE, MODELS, but=BESIDE_POLICIES),
        allowed=only("cotenant", "numpy", "msgspec"),
    ),
    Rule(
        name="deciding code is pure",
        why="it gets the time and the event, and returns what should happen; drivers act",
        where=modules(*PURE, but=(*VALUES, *BESIDE_POLICIES)),
        allowed=lambda module: top(module) not in WORLD | HEAVY,
    ),
    Rule(
        name="deciding code that names paths and signals does nothing with them",
        why="it gets the time and the event, and returns what should happen; drivers act",
        where=modules(*VALUES),
        allowed=lambda module: top(module) not in WORLD - NAMING | HEAVY,
    ),
    Rule(
        name="heavy libraries live in training",
        why="`handle` never fits, trains or loads; a controller or an agent starts without a training stack",
        where=modules(CONTROLLER, "cotenant.agent", but=TRAINING),
        allowed=lambda module: top(module) not in HEAVY,
    ),
    Rule(
        name="job-side code runs inside the user's process",
        why="cotenant may not be installed there: standard library and torch only",
        where=modules("cotenant.checkpoint"),
        allowed=only("cotenant.checkpoint", "torch"),
    ),
    Rule(
        name="job-side code runs inside the user's process",
        why="cotenant may not be installed there: standard library and torch only",
        where=modules("cotenant.gradaccum"),
        allowed=only("cotenant.gradaccum", *INSIDE_A_SCRIPT, "torch"),
    ),
    Rule(
        name="job-side code runs inside the user's process",
        why="cotenant may not be installed there: standard library only, and itself by relative names",
        where=modules("cotenant.agent.warm.forkserver"),
        allowed=only("cotenant.agent.warm.forkserver"),
    ),
    Rule(
        name="job-side code runs inside the user's process",
        why="cotenant may not be installed there: standard library only, and itself by relative names",
        where=modules("cotenant.agent.slurm.steps"),
        allowed=only("cotenant.agent.slurm.steps"),
    ),
    Rule(
        name="the profiler's packages import nothing by themselves",
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
        name="the driver is asked in one place",
        why="any call of NVML may hang, and its errors need our words: profiler.driver has both",
        where=modules("cotenant", "hwtests", "bench", "experiments", but=("cotenant.profiler.driver",)),
        allowed=none_of("pynvml"),
    ),
    Rule(
        name="our folders have a surname",
        why="a bare `import checkpoint` finds a user's own file, or ours in place of theirs",
        where=lambda module: True,
        allowed=lambda module: top(module) not in OURS,
    ),
    Rule(
        name="nobody leans on an experiment",
        why="it rebuilds one paper, is in no wheel, and may change or go with that paper",
        where=modules("cotenant", "hwtests", "tests", "bench", but=("tests.experiments",)),
        allowed=none_of("experiments", "cotenant.experiments"),
    ),
    Rule(
        name="nobody leans on a benchmark",
        why="it is a script, and in no wheel",
        where=modules("cotenant", "hwtests", "tests"),
        allowed=lambda module: top(module) not in BENCHMARKS,
    ),
    Rule(
        name="experiments know one module of the benchmarks",
        why="both say on which machine a number was made, in the same words",
        where=modules("experiments"),
        allowed=lambda module: module == "machine" or top(module) not in BENCHMARKS,
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
    for folder in ("agent/slurm/steps", "agent/warm/forkserver", "checkpoint", "gradaccum"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))
            postponed = any(
                isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
            )
            annotated = any(isinstance(node, ast.AnnAssign | ast.arg) for node in ast.walk(tree))
            where = path.relative_to(ROOT)
            assert postponed or not annotated, f"{where}: needs `from __future__ import annotations`"


BAD = {
    "a wire that imports zmq": (f"{WIRE}.codec", "import zmq"),
    "a policy that trains": (f"{PAPERS}.lazer.policy", "import torch"),
    "a policy that trains lazily": (f"{PAPERS}.lazer.policy", "def f():\n    import torch.nn"),
    "a policy that reads the clock": (f"{POLICIES}.ordered", "import time"),
    "an engine that logs": (ENGINE, "import logging"),
    "an agent state machine that sleeps": ("cotenant.agent.daemon.core.state", "from asyncio import sleep"),
    "an agent that imports torch": ("cotenant.agent.supervisor.runtime", "import torch"),
    "a command line that imports torch": (f"{CONTROLLER}.cli.demo.run", "import torch"),
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
    "an agent that uses an experiment": ("cotenant.agent.host.locks", "from experiments.shared import paths"),
    "a test that uses an experiment": ("tests.controller.test_sim", "import experiments.lazer.cells"),
    "a benchmark that uses an experiment": ("bench.engine", "from experiments.lazer import cells"),
    "a simulator that uses a benchmark": (f"{CONTROLLER}.sim.simulate", "import simulator"),
    "a test that uses a benchmark": ("tests.controller.test_sim", "def f():\n    from bench import machine"),
    "an agent that uses a benchmark": ("cotenant.agent.host.locks", "import machine"),
    "an experiment that uses a benchmark": ("experiments.lazer.cells", "import lazer_decision"),
    "a bare name": ("tests.agent.test_state", "import agent.state"),
}


@pytest.mark.parametrize(("module", "source"), BAD.values(), ids=BAD.keys())
def test_the_rules_catch(module: str, source: str) -> None:
    assert violations(source, module, "somewhere.py")


GOOD = {
    "a policy with numbers": (
        f"{PAPERS}.pcs.front",
        f"import numpy as np, math\nfrom {POLICIES}.base import Policy",
    ),
    "an agent that speaks": (
        "cotenant.agent.daemon.runtime",
        f"import asyncio, zmq\nfrom {WIRE} import codec",
    ),
    "a supervisor that watches the clock": ("cotenant.agent.supervisor.runtime", "import time"),
    "training that trains": (f"{CONTROLLER}.training.fit", "import torch"),
    "a paper's training that trains": (f"{PAPERS}.gfs.training.train", "import torch"),
    "an experiment": ("experiments.lazer.page", "import machine\nfrom experiments.shared import paths"),
    "a test of an experiment": ("tests.experiments.test_cells", "from experiments.lazer import cells"),
}


@pytest.mark.parametrize(("module", "source"), GOOD.values(), ids=GOOD.keys())
def test_the_rules_let_pass(module: str, source: str) -> None:
    assert violations(source, module, "somewhere.py") == []


def test_a_relative_import_is_followed() -> None:
    assert violations("from ..gradaccum import loop", "cotenant.checkpoint.session", "session.py")
    assert not violations("from . import manifest", "cotenant.checkpoint.session", "session.py")
    assert not violations("from .save import Saver", "cotenant.checkpoint", "__init__.py", is_package=True)


def test_a_violation_says_where_which_rule_and_why() -> None:
    (line,) = violations("\nimport torch\n", f"{CONTROLLER}.server", "controller/server.py")
    assert line.startswith(
        "controller/server.py:2: imports torch. Rule: heavy libraries live in training, because "
    )

"""The two folders that travel into the user's environment: same constants, old enough syntax, few imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cotenant.checkpoint.talk.protocol
import cotenant.gradaccum.protocol
from cotenant.controller.wire import job

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "checkpoint").glob("**/*.py"), *(ROOT / "gradaccum").glob("**/*.py")])
ALLOWED = {
    "checkpoint": ("cotenant.checkpoint",),
    "gradaccum": ("cotenant.gradaccum", "cotenant.checkpoint"),
}
"""By folder: what of ours it may import."""


def constants(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.isupper() and name[0] != "_"}


def test_every_protocol_constant_is_repeated_in_checkpoint() -> None:
    defined = {
        name: value
        for name, value in constants(job).items()
        if name != "ENVIRONMENT" and (not name.startswith("ENV_") or value in job.ENVIRONMENT)
    }
    repeated = constants(cotenant.checkpoint.talk.protocol)
    assert {name: repeated.get(name) for name in defined} == defined


def test_what_gradaccum_repeats_is_the_same() -> None:
    defined = constants(job)
    assert all(defined[n] == v for n, v in constants(cotenant.gradaccum.protocol).items())


def test_every_environment_variable_is_known_to_one_of_the_two() -> None:
    known = {
        value
        for module in (cotenant.checkpoint.talk.protocol, cotenant.gradaccum.protocol)
        for name, value in constants(module).items()
        if name.startswith("ENV_")
    }
    assert known == set(job.ENVIRONMENT)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_source_is_python_3_9_and_imports_only_the_standard_library_torch_and_what_is_below_it(
    path: Path,
) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    allowed = ALLOWED[path.relative_to(ROOT).parts[0]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports: the folder is importable as cotenant.* only"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            mine = any(name == own or name.startswith(f"{own}.") for own in allowed)
            assert mine or top == "torch" or top in sys.stdlib_module_names, f"{path.name} imports {name}"

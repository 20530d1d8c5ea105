"""The shape of the repository: what stands at the top level, and what a wheel is made of."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
"""These install as `cotenant.<folder>`; tests/ and hwtests/ stay in the repository."""
HOUSE = (*INSTALLED, "hwtests", "tests")
BESIDE = ("bench", "docs", "examples", "experiments")
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def setuptools_table() -> dict[str, object]:
    tool = project()["tool"]
    assert isinstance(tool, dict)
    table = tool["setuptools"]
    assert isinstance(table, dict)
    return table


def files_under(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))


def installed_files() -> list[Path]:
    folders = (*(ROOT / folder for folder in INSTALLED), EXAMPLES)
    return [path for folder in folders for path in files_under(folder)]


FACE = ROOT / "controller" / "python" / "face"
"""What installs as `cotenant` itself."""


EXAMPLES = ROOT / "examples" / "demo"
"""What installs as `cotenant.examples`: the jobs of `cotenant demo`."""


HYDRA_PLUGINS = ROOT / "controller" / "integrations" / "hydra_plugins"
"""What installs at the top level: Hydra looks for plugins in the namespace package of this name alone."""


def dotted(folder: Path) -> str:
    if folder == FACE:
        return "cotenant"
    if folder == EXAMPLES:
        return "cotenant.examples"
    if folder == HYDRA_PLUGINS:
        return folder.name
    return ".".join(("cotenant", *folder.relative_to(ROOT).parts))


def test_the_eight_folders_are_there() -> None:
    assert [name for name in HOUSE if not (ROOT / name).is_dir()] == []


def test_no_code_stands_outside_the_house() -> None:
    with_code = {
        path.relative_to(ROOT).parts[0]
        for folder in ROOT.iterdir()
        if folder.is_dir() and not folder.name.startswith((".", "build", "dist"))
        for path in files_under(folder)
        if path.suffix == ".py"
    }
    assert with_code - {*HOUSE, *BESIDE} == set(), "code belongs into one of the eight folders"
    assert sorted(ROOT.glob("*.py")) == [], "no modules at the top level"


def test_the_root_is_no_package() -> None:
    assert not (ROOT / "__init__.py").exists(), "that of cotenant is in controller/python/face/"


def test_the_packages_own_folder_has_its_face_alone() -> None:
    assert {path.name for path in files_under(FACE)} == {"__init__.py", "py.typed"}
    for name in ("__init__.py", "py.typed"):
        assert (ROOT / ".typing" / "cotenant" / name).resolve() == FACE / name


def test_hydras_namespace_is_open_to_other_plugins() -> None:
    assert not (HYDRA_PLUGINS / "__init__.py").exists(), "it would hide all plugins but ours"


def test_tests_are_no_packages() -> None:
    """`--import-mode=importlib` imports each file on its own; an __init__.py would undo that."""
    assert [path for path in files_under(ROOT / "tests") if path.name == "__init__.py"] == []


def test_every_folder_with_code_is_listed_as_a_package() -> None:
    with_code = {dotted(path.parent) for path in installed_files() if path.suffix == ".py"}
    listed = setuptools_table()["packages"]
    assert isinstance(listed, list)
    assert with_code - set(listed) == set(), "add these to `packages` in pyproject.toml: a wheel lacks them"
    folders = {dotted(ROOT / folder) for folder in INSTALLED}
    assert set(listed) - with_code - folders == set(), "these packages have no code (any more)"
    assert listed == sorted(listed), "keep `packages` sorted"


def test_every_data_file_is_in_the_wheel() -> None:
    data = setuptools_table()["package-data"]
    assert isinstance(data, dict)
    patterns = [pattern.removeprefix("**/") for pattern in data["*"]]
    left_out = [
        str(path.relative_to(ROOT))
        for path in installed_files()
        if path.suffix not in (".py", ".pyc") and not any(fnmatch(path.name, pattern) for pattern in patterns)
    ]
    assert left_out == [], "no pattern of `package-data` matches these"


@pytest.mark.parametrize("folder", INSTALLED)
def test_each_package_is_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").is_file()


@pytest.mark.parametrize("folder", INSTALLED)
def test_type_checkers_find_each_package(folder: str) -> None:
    link = ROOT / ".typing" / "cotenant" / folder
    assert link.is_symlink(), f"missing: ln -s ../../{folder} .typing/cotenant/{folder}"
    assert link.resolve() == ROOT / folder


def test_names_are_nouns_of_the_domain() -> None:
    vague = [str(path.relative_to(ROOT)) for path in installed_files() if path.stem in VAGUE]
    assert vague == [], "a name like this says nothing about what belongs there"

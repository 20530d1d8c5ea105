"""What is promised to pip: a small core, extras by purpose, and exact pins for our own work."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAINING = {"torch", "xgboost", "xgboost-cpu", "botorch", "pymoo", "scikit-learn", "scipy", "matplotlib"}
EXTRAS = {
    *("train", "predict", "sim", "gfs", "bo", "pcs", "metrics", "demo", "api", "milp", "web", "ha"),
    *("parquet", "mcp", "hydra", "submitit", "torchx"),
}


def names(requirements: list[str]) -> set[str]:
    return {Requirement(text).name for text in requirements}


def pinned() -> dict[str, str]:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    kept = [line for line in lines if line and not line.startswith(("#", "-e"))]
    assert [line for line in kept if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == [], "exact pins only"
    return {canonical(name): version for name, version in (line.split("==") for line in kept)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_core_needs_no_training_stack() -> None:
    assert names(PROJECT["dependencies"]) & TRAINING == set(), "a login node and an agent stay small"


def test_extras_are_those_that_are_documented() -> None:
    assert set(PROJECT["optional-dependencies"]) == EXTRAS


def test_every_hint_names_something_that_can_be_installed() -> None:
    """No index has a package of ours: an extra is installed from this folder, and is one of these."""
    folders = ("agent", "checkpoint", "controller", "docs", "examples", "gradaccum", "mps", "profiler")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    texts = {path: path.read_text() for path in [*files, ROOT / "README.md"]}
    assert [str(path) for path, text in texts.items() if re.search(r"cotenant\[[a-z]", text)] == []
    hint = re.compile(r"pip install ['\"]\.\[([a-z,]+)\]")
    named = {extra for text in texts.values() for found in hint.findall(text) for extra in found.split(",")}
    assert named == EXTRAS, "each is named somewhere, and nothing else is"


def test_torch_is_pinned_first_and_only_there() -> None:
    lines = [line for line in (ROOT / "requirements-dev.txt").read_text().splitlines() if line[:1] not in "#"]
    assert lines[0].startswith("torch=="), "an open range that is resolved first may fetch a far larger build"
    assert PROJECT["optional-dependencies"]["train"] == ["torch>=2.5"]


def test_every_dependency_we_develop_with_is_pinned() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["demo"]]
    assert {canonical(name) for name in names(wanted)} - set(pinned()) == set()


def test_what_the_pins_bring_with_them_is_pinned_too() -> None:
    """Otherwise two installations of one commit differ. torch's own nvidia-* packages it pins itself."""
    pins = pinned()
    missing = set()
    for package in pins.keys() - {"torch"}:
        for text in importlib.metadata.requires(package) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                missing.add(canonical(requirement.name))
    assert missing - set(pins) == set()


def test_the_version_is_said_once() -> None:
    assert importlib.metadata.version("cotenant") == PROJECT["version"]

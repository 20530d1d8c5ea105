"""What CONTRIBUTING.md tells a newcomer to do works with the code as it is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from cotenant.controller.policies.base import Policy, Traits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:[a-z_]+/)+[\w.]*|[\w-]+\.(?:md|txt|toml))`", TEXT)))
TARGETS = sorted(set(re.findall(r"`make ([a-z-]+)", TEXT)))
TO_COME = {"tests/compat/"}
"""Made by the first change that needs it."""
MEMBERS = sorted(name for name in vars(Policy) if not name.startswith("_"))


def example() -> type:
    """The class of the policy that the text shows."""
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    namespace: dict[str, object] = {"__name__": "example"}
    exec(compile(source, "CONTRIBUTING.md", "exec"), namespace)
    (found,) = (each for each in namespace.values() if getattr(each, "__module__", "") == "example")
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize("member", MEMBERS)
def test_the_example_is_a_whole_policy(member: str) -> None:
    wanted, got = getattr(Policy, member), getattr(example(), member)
    if isinstance(wanted, property):
        assert isinstance(got, Traits)
        return
    assert list(inspect.signature(got).parameters) == list(inspect.signature(wanted).parameters)


def test_the_example_has_a_name() -> None:
    assert example()().name == "widest"


@pytest.mark.parametrize("path", sorted(set(PATHS) - TO_COME))
def test_files_that_are_named_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_make_targets_that_are_named_exist(target: str) -> None:
    assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text())

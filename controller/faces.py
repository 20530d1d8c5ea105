"""Packages that import a module of theirs when one of its names is first asked for.

Rule: only packages that every command line uses a few names of have such a face. A process that needs them
all, as the controller does, imports them all at its start, because its own modules name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_face(package: dict[str, Any], homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, given its `globals()`. `homes`: the names of each module."""
    home_of = {name: home for home, names in homes.items() for name in names}
    name_of_package = package["__name__"]

    def attribute(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {name_of_package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{name_of_package}.{home_of[name]}"), name)
        package[name] = value
        return value

    return attribute

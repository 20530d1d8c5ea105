"""Plugins: what installed packages offer by entry points, and policies in a module that somebody names.

Rule: we import a plugin only when somebody names it, and report whatever is wrong in one line, before
anything runs. After that it is like our own policies: the engine checks every action. The published systems
in `controller/papers/` come in the same way, so that nothing else depends on them.

A package offers a policy by an entry point in the group `cotenant.policies`:

    [project.entry-points."cotenant.policies"]
    widest = "my_policies:Widest"

Without an entry point it is named `my_policies:Widest`. What the name stands for is called with the
parameters as keywords, and returns the policy; what it takes, and the defaults, are read from its signature.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, Final, NamedTuple, cast

from cotenant.controller.policies.base import Parameters, Policy

POLICIES: Final = "cotenant.policies"
PLACEMENTS: Final = "cotenant.placements"
"""Other ways to place waiting jobs than best fit (`registry.PlacementRule`)."""
PAPERS: Final = "cotenant.controller.papers."
MEMBERS: Final = ("queue_key", "decide", "observe", "explain", "save", "load")
PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
PLAIN: Final = (str, int, float, bool)


class PluginPolicy(NamedTuple):
    """A plugin's policy, imported and not yet made."""

    name: str
    about: str
    maker: Callable[..., object]
    defaults: Parameters


def is_path(name: str) -> bool:
    """Whether a policy is named by where it is: `MODULE:NAME`."""
    return PATH.fullmatch(name) is not None


@cache
def find_entry_points(group: str = POLICIES) -> dict[str, EntryPoint]:
    """What installed packages offer in a group, by name; of two with one name ours, else the first found.
    Imports nothing."""
    # Each distribution is asked: of two with one name (an installed one, and what a build left in the working
    # folder) `entry_points()` would see the first only, which may be older.
    points = [point for each in distributions() for point in each.entry_points.select(group=group)]
    found: dict[str, EntryPoint] = {}
    for point in sorted(points, key=lambda p: (not is_ours(p), p.name)):
        if NAME.fullmatch(point.name):
            found.setdefault(point.name, point)
    return found


def is_ours(point: EntryPoint) -> bool:
    """Whether an entry point leads into this package."""
    return point.value.startswith(PAPERS)


def load(point: EntryPoint) -> Any:
    """What an entry point of this package stands for."""
    return load_from(point.value)


def load_from(place: str) -> Any:
    """What is at `MODULE:NAME` in this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def find(name: str) -> PluginPolicy:
    """A policy by its name among those that packages offer, or by its path.

    Raises:
        ValueError: there is none, or it cannot be imported, or it takes what cannot be given; the text says
            which, and where.
    """
    where = name if is_path(name) else find_entry_points()[name].value if name in find_entry_points() else ""
    module, _, attribute = where.partition(":")
    if not attribute:
        raise ValueError(f"policy {name}: {where!r} is not MODULE:NAME" if where else f"no policy {name!r}")
    maker: Any = _import_policy(name, module)
    for part in attribute.split("."):
        if not hasattr(maker, part):
            there = ", ".join(_policies_in(maker)) or "no policy at all"
            raise ValueError(f"policy {name}: {module} has no {part}; it has {there}")
        maker = getattr(maker, part)
    if not callable(maker):
        raise ValueError(f"policy {name}: {where} is not a class or a function that makes a policy")
    about = (inspect.getdoc(maker) or "").partition("\n")[0].rstrip(".") or f"from {where}"
    return PluginPolicy(name, about, cast(Callable[..., object], maker), _defaults(name, maker))


def make(name: str, parameters: Parameters) -> Policy:
    """Makes a policy of somebody else. The parameters must be among its `defaults`.

    Raises:
        ValueError: as `find`; or what was made is no policy, or does not accept a value.
    """
    own = find(name)
    values = {key: _as(type(own.defaults[key]), name, key, value) for key, value in parameters.items()}
    try:
        made = own.maker(**values)
    except Exception as error:  # Their code may fail in any way, and here we can still report it.
        raise ValueError(f"policy {name} cannot be made: {_describe_error(error)}") from error
    lacks = [member for member in MEMBERS if not callable(getattr(made, member, None))]
    if lacks or not isinstance(getattr(made, "name", None), str):
        what = ", ".join(lacks + ([] if isinstance(getattr(made, "name", None), str) else ["name"]))
        raise ValueError(
            f"policy {name} lacks {what}; cotenant.controller.policies.base.Policy says what a policy has, "
            "and Stateless beside it brings what one without memory needs"
        )
    return cast(Policy, made)


def _import_policy(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise ValueError(f"policy {name} cannot be imported: {_describe_error(error)}") from error
        raise ValueError(
            f"policy {name}: there is no module {error.name}; "
            "install its package, or put its folder on PYTHONPATH"
        ) from None
    except Exception as error:  # A module's own mistakes are of any kind.
        raise ValueError(f"policy {name} cannot be imported: {_describe_error(error)}") from error


def _describe_error(error: Exception) -> str:
    """What and where, in one line: the last place in the traceback is the one to look at."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"


def _policies_in(module: Any) -> list[str]:
    own = getattr(module, "__name__", "")
    return [
        key
        for key, value in sorted(vars(module).items())
        if inspect.isclass(value) and value.__module__ == own and hasattr(value, "decide")
    ]


def _defaults(name: str, maker: Any) -> Parameters:
    found: Parameters = {}
    for key, parameter in inspect.signature(maker).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if not isinstance(parameter.default, PLAIN) or parameter.kind is parameter.POSITIONAL_ONLY:
            raise ValueError(
                f"policy {name}: its parameter {key} needs a default that is a text, a number, true or "
                "false, and a name it can be given by"
            )
        found[key] = parameter.default
    return found


def _as(kind: type, name: str, key: str, value: str | int | float | bool) -> str | int | float | bool:
    """A value in the type of its default; an int is accepted for a float."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"policy {name}: {key} must be {kind.__name__}, got {value!r}")
    return value

"""Which policies to run, as people write them: `fifo,lazer:chain=last,dwq_offered=true,srtf`.

Rule: names and parameters are checked here, before anything is simulated; the same text always means the
same policy, so a label in a table can be typed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.controller.policies import plugins, registry
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.traces.trace import nearest

_CONFIG: Final = "config="
_WORDS: Final = {"true": True, "yes": True, "false": False, "no": False}


class PolicyChoice(NamedTuple):
    """A policy with the parameters that were given; the others have their defaults."""

    name: str
    parameters: Parameters
    files: tuple[tuple[str, Parameters], ...] = ()
    """Parameters read from files (`config=FILE`): the label names the file in their place."""

    @property
    def label(self) -> str:
        """The choice as text, with parameters in the order of their names."""
        read = {key: value for _, found in self.files for key, value in found.items()}
        own = {key: value for key, value in self.parameters.items() if read.get(key) != value}
        said = [*(file for file, _ in self.files), *(f"{key}={_text(own[key])}" for key in sorted(own))]
        given = ",".join(said)
        return f"{self.name}:{given}" if given else self.name


class BadChoice(ValueError):
    """A policy or a parameter that does not exist; `hint` says what does."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def policies_named(text: str) -> tuple[PolicyChoice, ...]:
    """The policies of a comma-separated list, each once, in its order.

    After `NAME:` every word with an equals sign belongs to NAME, up to the next word without one; a number
    belongs to the value before it (`tiresias:thresholds_gpu_s=3250,7200`). `pcs:config=FILE` takes a
    configuration from a file, `FILE#NAME` one of several.

    Raises:
        BadChoice: an unknown policy or parameter, or a value of the wrong kind.
    """
    groups: list[list[str]] = []
    for word in (each.strip() for each in text.split(",")):
        if not word:
            continue
        if "=" in word and ":" not in word.partition("=")[0]:
            if not groups:
                raise BadChoice(f"{word!r} belongs to no policy", "write NAME:KEY=VALUE")
            groups[-1].append(word)
        elif groups and "=" in groups[-1][-1] and _is_number(word):
            groups[-1][-1] += f",{word}"
        else:
            groups.append([word])
    if not groups:
        raise BadChoice("no policy was named", f"there are {_all_names()}")
    return tuple({choice.label: choice for choice in map(_choice, groups)}.values())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _choice(words: list[str]) -> PolicyChoice:
    name, first = _split(words[0])
    given = [word for word in (first, *words[1:]) if word]
    lacks = registry.lacks(name) if registry.is_ours(name) else _missing(name)
    if lacks:
        raise BadChoice(f"policy {name} is not available", lacks)
    read, known = registry.find(name).from_file if registry.is_ours(name) else None, registry.defaults(name)
    files = [(word, _configuration(word, read)) for word in given if read and word.startswith(_CONFIG)]
    parameters: Parameters = {key: value for _, found in files for key, value in found.items()}
    parameters |= (_parameter(name, word, known) for word in given if word not in dict(files))
    try:
        registry.make(name, parameters)
    except ValueError as error:
        raise BadChoice(str(error)) from None
    return PolicyChoice(name, parameters, tuple(files))


def _configuration(word: str, read: Callable[[Any, str], Parameters]) -> Parameters:
    """The parameters in a file of the policy's own form."""
    path, _, name = word.removeprefix(_CONFIG).partition("#")
    try:
        return read(json.loads(Path(path).expanduser().read_text()), name)
    except (OSError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadChoice(f"{path}: {error}") from None


def _split(word: str) -> tuple[str, str]:
    """A policy's name, and its first parameter; a name of one's own has a colon in it (`MODULE:NAME`)."""
    name, _, rest = word.partition(":")
    if registry.is_ours(name) or not rest:
        return name, rest
    second, _, first = rest.partition(":")
    return (f"{name}:{second}", first) if plugins.is_path(f"{name}:{second}") else (name, rest)


def _missing(name: str) -> str:
    """Why a policy that is not ours is unavailable; empty if it is available.

    Raises: BadChoice: there is none.
    """
    if name in (theirs := registry.unavailable()):
        return theirs[name]
    if plugins.is_path(name):
        return registry.why_not(name)
    if name not in (known := registry.available()):
        near = nearest(name, known) or f"there are {_all_names()}; your own is MODULE:NAME"
        raise BadChoice(f"there is no policy {name!r}", near)
    return ""


def _parameter(policy: str, word: str, known: Parameters) -> tuple[str, str | int | float | bool]:
    """A parameter's value in the type of its default."""
    key, equals, value = word.partition("=")
    if not equals:
        raise BadChoice(f"{word!r} is not KEY=VALUE", "write NAME:KEY=VALUE,KEY=VALUE")
    if key not in known:
        near = nearest(key, known) or (f"it has {', '.join(sorted(known))}" if known else "it has none")
        raise BadChoice(f"policy {policy} has no parameter {key!r}", near)
    kind = type(known[key])
    try:
        return key, _WORDS[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise BadChoice(f"{policy}: {key} must be {words.get(kind, 'text')}, got {value!r}") from None


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _all_names() -> str:
    return ", ".join(registry.available())

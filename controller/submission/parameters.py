"""Parameters of a policy, read from `key=value`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.wire import clients as wire


def parameters_of(texts: Sequence[str], known: wire.Parameters) -> wire.Parameters:
    """Reads the parameters that the texts give. Raises Problem."""
    given: wire.Parameters = {}
    for text in texts:
        key, value = _parameter(text, known)
        if key in given:
            raise Problem("usage", f"{key} is given twice", "leave one out")
        given[key] = value
    return given


def _parameter(text: str, known: wire.Parameters) -> tuple[str, str | int | float | bool]:
    """A parameter in the type of its default."""
    key, equals, value = text.partition("=")
    if not equals:
        raise Problem("usage", f"{text!r} is not KEY=VALUE")
    if key not in known:
        near = suggestion(key, known) or (f"it has {', '.join(sorted(known))}" if known else "it has none")
        raise Problem("usage", f"the policy has no parameter {key!r}", near)
    kind = type(known[key])
    try:
        if kind is bool:
            return key, {"true": True, "false": False}[value.lower()]
        number = kind(value)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError
        return key, number
    except (ValueError, KeyError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise Problem("usage", f"{key} must be {words.get(kind, 'text')}, got {value!r}") from None

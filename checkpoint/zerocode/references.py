"""How a written state refers to an object: by a tuple whose first word says how it is found or made.

Rule: plain values stand for themselves; everything else is a tuple of plain values and of such references.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from cotenant.checkpoint.ownership import is_scripts_own

AT, MADE, CONSTANT, CALL, COMPLEX, TUPLE, OWN = (
    "at",
    "made",
    "constant",
    "call",
    "complex",
    "tuple",
    "own",
)


def imported_name(value: Any) -> str:
    """`module:name` of what can be imported; empty if it cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or is_scripts_own(module):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else ""


def import_name(name: str) -> Any:
    module, _, rest = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in rest.split("."):
        found = getattr(found, part)
    return found

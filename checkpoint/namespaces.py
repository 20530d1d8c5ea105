"""The names of a module and of a running frame, read without asking the script for them.

Rule: a script may put an object in the place of a module, and have code run in a mapping of its own (`exec`,
`__prepare__` of a metaclass). No method of either is called; what such a mapping holds is not known.

Standard library only.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def names_of(module: str) -> dict[str, Any]:
    """The names of an imported module; none if it is not there."""
    try:
        found: dict[str, Any] = object.__getattribute__(sys.modules.get(module), "__dict__")
    except AttributeError:
        return {}
    return found


def module_of(frame: types.FrameType) -> str:
    """The name of the module of which a frame runs code."""
    return str(dict.get(frame.f_globals, "__name__", ""))


def has_plain_names(frame: types.FrameType) -> bool:
    """Whether Python alone keeps a frame's variables."""
    return type(frame.f_locals) in (dict, _OF_FUNCTIONS) and type(frame.f_globals) is dict


def _kind_of_locals() -> type:
    return type(sys._getframe().f_locals)


_OF_FUNCTIONS = _kind_of_locals()
"""From Python 3.13 on no dictionary (PEP 667)."""

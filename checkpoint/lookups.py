"""Attributes of torch's classes that are looked at when they are looked up.

Rule: no frame of ours is on the stack while code of the script runs. A function around one of torch's would
be seen there, by `inspect.stack()`, in tracebacks and near the recursion limit; a look-up is over before what
was looked up is called. A program that torch makes of the script has nothing of it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from cotenant.checkpoint.guard import Guard, door

Plain = TypeVar("Plain", bound=Callable[..., Any])


def never_compile(function: Plain) -> Plain:
    """Has torch.compile leave a function to Python where it comes to it in the middle of a program."""
    compiles: Any = torch._C._dynamo.eval_frame
    code = function.__code__
    if hasattr(compiles, "skip_code"):  # Before torch 2.7.
        compiles.skip_code(code)
    else:
        skip = compiles._FrameAction.SKIP
        compiles.set_code_exec_strategy(code, compiles._FrameExecStrategy(skip, skip))
    return function


class LookedUp:
    """Stands for a method or property of a class. `look(object, frame)` is called before an object gets it,
    with the frame that looks it up, behind the guard."""

    def __init__(
        self, holder: type, name: str, guard: Guard, look: Callable[[Any, types.FrameType], None]
    ) -> None:
        self._holder, self._name, self._guard, self._look = holder, name, guard, look
        self._original: Any = vars(holder)[name]
        setattr(holder, name, self)

    @door
    @never_compile
    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is not None and not torch.compiler.is_compiling():
            frame = sys._getframe(1)
            while frame.f_code is _GET and frame.f_back is not None:  # Another one that stands for the same.
                frame = frame.f_back
            self._guard.run(self._look, owner, frame)
        return self._original.__get__(owner, kind)

    def end(self) -> bool:
        """Puts the original back, unless others have put something on top of this, and says whether it is
        there."""
        is_on_top = vars(self._holder).get(self._name) is self
        if is_on_top:
            setattr(self._holder, self._name, self._original)
        return is_on_top


_GET: Final = LookedUp.__get__.__code__

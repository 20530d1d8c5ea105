"""Running the script's own code once more, aside: nothing of it stays, and its output goes nowhere.

Rule: a moment is everything that the code can reach: objects (`cotenant.checkpoint.picture`), and the
variables of the functions that are half way, which no picture holds. It is looked at by what lies in memory;
what is in files, and what other processes know, is out of reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import inspect
import logging
import sys
import types
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final

_UNBOUND: Final = object()
_HELD_BY_US: Final = 4
"""References to the copy: the frame's, two variables', and that of the question."""


class ScriptState:
    """What can be reached from some roots, from the script's modules, and from the functions on the stack."""

    def __init__(self, roots: Iterable[tuple[str, Any]], frame: types.FrameType | None) -> None:
        """frame: the innermost of the functions; None: theirs do not count.

        Raises:
            PictureTooLarge: that is too much.
        """
        from cotenant.checkpoint.picture import Picture, process_roots

        self._variables = StackVariables(frame)
        self._picture = Picture([*roots, *self._variables.roots(), *process_roots()], copies=True)

    def objects(self) -> Iterator[Any]:
        return self._picture.objects()

    def changes(self) -> list[Any]:
        """What is not as it was, besides what the functions' variables stand for: those are put back."""
        self._variables.put_back()
        return self._picture.changes()

    def put_back(self) -> list[str]:
        """Makes everything as it was; returns the paths of what cannot be."""
        self._variables.put_back()
        return self._picture.put_back()


class StackVariables:
    """The variables of the functions on the stack, from `frame` outwards. Of code outside of functions, whose
    variables are a module's names, those that the loop binds in which it is now."""

    def __init__(self, frame: types.FrameType | None) -> None:
        self._kept: list[tuple[types.FrameType, dict[str, Any]]] = []
        while frame is not None:
            if is_function(frame):
                self._kept.append((frame, variables_of(frame)))
            else:
                names = {name: frame.f_locals.get(name, _UNBOUND) for name in _bound_in_loop(frame)}
                self._kept.append((frame, names))
            frame = frame.f_back

    def roots(self) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for frame, names in self._kept
            if is_function(frame)
            for name, value in names.items()
        ]

    def put_back(self) -> None:
        """Binds every variable to what it held. A function's that held nothing keeps what it has."""
        for frame, names in self._kept:
            with _variables(frame) as now:
                for name, value in names.items():
                    if now.get(name, _UNBOUND) is value:
                        continue
                    if value is _UNBOUND:
                        del now[name]
                    else:
                        now[name] = value


def is_function(frame: types.FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """The variables of code that is half way, by name."""
    with _variables(frame) as names:
        return dict(names)


@contextlib.contextmanager
def _variables(frame: types.FrameType) -> Iterator[MutableMapping[str, Any]]:
    """The variables, to be read and set. Before PEP 667 those of a function are a copy, which the frame
    keeps, and with it what they have held; it is emptied, unless `locals()` has given it to somebody."""
    names = frame.f_locals
    if sys.version_info >= (3, 13) or not is_function(frame):
        yield names
        return
    before = dict(names)
    yield names
    if any(value is not before.get(name, _UNBOUND) for name, value in names.items()):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    if sys.getrefcount(names) <= _HELD_BY_US:
        names.clear()


def _bound_in_loop(frame: types.FrameType) -> set[str]:
    """The names that the loop binds of which the frame fetches the next item now."""
    code = list(dis.get_instructions(frame.f_code))
    loop = next((each for each in code if each.offset == frame.f_lasti and each.opname == "FOR_ITER"), None)
    if loop is None:
        return set()
    body = (each for each in code if loop.offset < each.offset < loop.argval)
    return {each.argval for each in body if each.opname in ("STORE_NAME", "STORE_GLOBAL")}


def scripts_frame(frame: types.FrameType) -> types.FrameType:
    """The innermost frame, from this one outwards, that runs the user's own code; this one if none does."""
    from cotenant.checkpoint.ownership import is_scripts_own

    each: types.FrameType | None = frame
    while each is not None:
        if is_scripts_own(each.f_globals.get("__name__", "")):
            return each
        each = each.f_back
    return frame


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that is written by `print`, a logger or a progress bar comes out meanwhile.

    The streams stay the same objects, because handlers and progress bars hold them.
    """
    streams: list[tuple[Any, Any]] = []
    stream: Any
    for stream in {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        with contextlib.suppress(AttributeError):  # None, or a stream without attributes.
            own = vars(stream).get("write") if hasattr(stream, "__dict__") else None
            stream.write = len
            streams.append((stream, own))
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for stream, own in streams:
            if own is None:
                del stream.write
            else:
                stream.write = own

"""Clocks that two processes read alike, for the few steps by which a resume is proven.

Rule: only the script's own code reads them, and a Trainer that runs its loop; each reading is a millisecond
later than the one before. What other packages and threads read stays the real time.
"""

from __future__ import annotations

import datetime
import functools
import sys
import time
import timeit
import types
from collections.abc import Callable
from typing import Any, Final

import torch

from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.ownership import is_scripts_own, own_modules

CLOCKS: Final = ("time", "perf_counter", "monotonic", "process_time")
"""Of the module `time`; each is there in nanoseconds as well."""
_EACH_NS: Final = 1_000_000
_DATES: Final = ("now", "utcnow", "today")
_DRIVING: Final = "transformers"
"""The package of a Trainer, which logs how long it takes."""


def read_clocks() -> dict[str, int]:
    """What each clock says, in nanoseconds."""
    return {name: getattr(time, f"{name}_ns")() for name in CLOCKS}


class AlikeClocks:
    """Replaces the script's clocks, until `end`."""

    def __init__(self, began_ns: dict[str, int]) -> None:
        """`began_ns`: what each clock says first."""
        self._began_ns, self._readings = began_ns, 0
        self._undo: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        replaced: dict[int, Any] = {}
        for name in CLOCKS:
            for word, of_ns in ((name, 1e-9), (f"{name}_ns", 1)):
                clock = getattr(time, word)
                replaced[id(clock)] = frozen = self._clock(name, clock, of_ns)
                self._set(time, word, frozen)
        self._set(timeit, "default_timer", replaced.get(id(timeit.default_timer), timeit.default_timer))
        replaced[id(datetime.datetime)] = dates = self._dates()
        replaced[id(datetime)] = module = types.ModuleType("datetime")
        module.__dict__.update(vars(datetime), datetime=dates)
        for name in own_modules():
            module = sys.modules[name]
            for word, value in list(vars(module).items()):
                if id(value) in replaced:
                    self._set(module, word, replaced[id(value)])
        self._set(torch.cuda.Event, "elapsed_time", lambda *_: _EACH_NS * 1e-6)

    def end(self) -> None:
        for owner, word, value in reversed(self._undo):
            setattr(owner, word, value)
        self._undo = []

    def _set(self, owner: Any, word: str, value: Any) -> None:
        self._undo.append((owner, word, getattr(owner, word)))
        setattr(owner, word, value)

    def _next_ns(self, name: str) -> int:
        self._readings += 1
        return self._began_ns[name] + self._readings * _EACH_NS

    def _clock(self, name: str, clock: Callable[[], Any], of_ns: float) -> Callable[[], Any]:
        @door
        @functools.wraps(clock)
        def read() -> Any:
            reading_ns = SAVING.run(self._reading_ns, name, sys._getframe(1))
            return clock() if reading_ns is None else reading_ns * of_ns

        return read

    def _reading_ns(self, name: str, frame: types.FrameType) -> int | None:
        """What the clock says to whoever runs there; None: the real time."""
        module = str(frame.f_globals.get("__name__", ""))
        is_read_alike = module.partition(".")[0] == _DRIVING or is_scripts_own(module)
        return self._next_ns(name) if is_read_alike else None

    def _dates(self) -> Any:
        real, next_ns = datetime.datetime, self._next_ns

        class Kind(type):
            @door
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, real)

        @door
        def now(tz: Any = None) -> Any:
            reading_ns = SAVING.run(next_ns, "time")
            return real.now(tz) if reading_ns is None else real.fromtimestamp(reading_ns * 1e-9, tz)

        names = {word: staticmethod(now) for word in _DATES}
        return Kind("datetime", (real,), {"__module__": "datetime", **names})

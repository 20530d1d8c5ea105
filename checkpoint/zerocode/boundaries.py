"""Where a script may be left: at the end of a turn of a training loop, before its next one.

Rule: nothing is there until somebody asks. Then Python's own tracing says when the next line is reached at
which a turn of one of the loops begins: all that the present turn does is done, and nothing of the next.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.sites import LoopStanding, head_lines
from cotenant.checkpoint.zerocode.tracing import end_trace, trace, tracer


class TurnEnds:
    """Calls back when the present turn of a loop is over: once for each time that it is asked."""

    def __init__(self) -> None:
        self._standing: LoopStanding | None = None
        self._traced: list[tuple[types.FrameType, Any]] = []
        """The frames, each with what it was traced by before."""
        self._heads: dict[int, set[int]] = {}
        self._callback: Callable[[types.FrameType, LoopStanding], None] | None = None

    def wait(self, standing: LoopStanding, callback: Callable[[types.FrameType, LoopStanding], None]) -> None:
        """`callback(frame, standing)` when a turn of one of these loops ends: of the loops around it, the
        last is the one that comes to its next turn.

        Raises:
            NotResumable: another tracer (a debugger) runs in the script.
        """
        if tracer() not in (None, self._called):
            raise NotResumable("another tracer (a debugger, coverage) runs in it")
        self._standing, self._heads, self._callback = standing, standing.heads(), callback
        trace(self._called)
        self._traced = [(owner, owner.f_trace) for owner in dict.fromkeys(standing.owners)]
        for owner, _ in self._traced:
            owner.f_trace = self._line

    def forget(self) -> None:
        """Nobody waits any more."""
        self._standing = None
        end_trace(self._called)
        for owner, before in self._traced:
            owner.f_trace = before
        self._traced = []

    @door
    def _called(self, *_: Any) -> None:
        """Functions that are called meanwhile are none of ours."""

    @door
    def _line(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno in self._heads.get(id(frame), ()):
            SAVING.run(self._reached, frame)
        return self._line if self._standing is not None and not SAVING.why else None

    def _reached(self, frame: types.FrameType) -> None:
        standing, callback = self._standing, self._callback
        if standing is None or callback is None:
            return
        at = max(
            number
            for number, (owner, loop) in enumerate(zip(standing.owners, standing.loops))
            if owner is frame and frame.f_lineno in head_lines(loop)
        )
        sites = standing.sites[: at + 1]
        if sites[-1].passed >= 0:
            sites = [*sites[:-1], sites[-1]._replace(passed=sites[-1].passed + 1)]
        self.forget()
        callback(frame, standing._replace(sites=sites))

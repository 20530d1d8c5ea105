"""The script's own loops, driven by a Session: `range` gives the epochs that are left, the loader batches.

Rule: we change two names in the script's namespace, and nothing else of it. Until its epoch loop
begins, `range` in the script's own namespace is ours; `enumerate` stays ours, because it must go on counting
where the interrupted epoch was. `DataLoader.__iter__` hands the training loop, and nobody else, the batches
that are left.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.session import Session
from cotenant.checkpoint.training import data
from cotenant.checkpoint.zerocode.contents import DISPLAYS
from cotenant.checkpoint.zerocode.findings import Variables, look
from cotenant.checkpoint.zerocode.pattern import LoopPlan, plan_of
from cotenant.checkpoint.zerocode.refusals import NotPlain
from cotenant.checkpoint.zerocode.values import CarriedValues

OVER = "it trains on after the loop that is saved"
BEFORE = "it trains before the loop that would be saved, to find a learning rate, say"
FRAMES_BETWEEN_MAX = 6
"""Between a loop over batches and its loader: a progress bar, say."""

log = logging.getLogger("cotenant.checkpoint")


class LoopObserver(Protocol):
    """Who is told about a script's loops."""

    @property
    def has_steps(self) -> bool:
        """The script has trained already, in no loop that is driven."""

    def driven(self, session: Session | None, reason: str) -> None:
        """Hears that the script's loop has begun: the Session, or the reason why there is none."""


class Driver:
    """The loops of one script."""

    def __init__(self, main: types.ModuleType, observer: LoopObserver) -> None:
        self._names = vars(main)
        self._file = str(self._names.get("__file__", ""))
        self._observer, self._begun = observer, observer.driven
        self._plan: LoopPlan | None = None
        self._session: Session | None = None
        self._variables: Variables | None = None
        self._open = False
        """The training loop has had its batches of this epoch."""
        self._fresh = False
        """No loop over batches has begun in this process."""
        self._length: int | None = None
        """Batches of the epoch before."""

    def begin(self) -> str:
        """Prepare the script's namespace; returns why it cannot be done, empty if it can."""
        try:
            with open(self._file, encoding="utf-8") as file:
                self._plan = plan_of(file.read())
        except OSError as error:
            return f"the script cannot be read: {error.strerror}"
        except (UnicodeDecodeError, NotPlain) as error:
            return str(error)
        self._names["range"] = self._range
        self._names["enumerate"] = self._enumerate
        _patch_loader(self)
        return ""

    # What stands for `range` and `enumerate` in the script.

    def _range(self, *args: Any) -> Any:
        counted = builtins.range(*args)
        frame = sys._getframe(1)
        assert self._plan is not None
        if self._session is not None:
            return self._inner_range(counted, frame)
        if not self._is_at(frame, self._plan.epoch_lines):
            return counted
        if self._names.get("range") == self._range and not self._plan.over_range:
            del self._names["range"]
        try:
            if self._observer.has_steps:
                raise NotPlain(BEFORE)
            values = look(frame, self._plan)
            self._variables = Variables(frame, self._plan, values, counted.start)
            session = _session(values, self._variables)
        except NotPlain as error:
            self._begun(None, str(error))
            return counted
        session.keep_within_epochs()
        session.look_into_data(self._variables.state_of)
        self._session, self._fresh = session, True
        self._begun(session, "")
        counted = range(self._variables.first, counted.stop, counted.step)
        return Epochs(counted, self._left(session, counted))

    def _left(self, session: Session, counted: range) -> Iterator[int]:
        """The values that are left of the epochs, or of the steps of a loop without batches."""
        assert self._plan is not None
        over_steps = self._plan.batch_lines is None
        try:
            for position in session.iterations(len(counted)) if over_steps else session.epochs(len(counted)):
                self._open = False
                yield counted[position]
                if not (self._open or over_steps):
                    line = self._plan.batch_lines[0] if self._plan.batch_lines else 0
                    session.cannot_resume(f"line {line}: the loop over batches is over no DataLoader")
        except GeneratorExit:
            self._begun(session, OVER)
            raise
        self._begun(session, OVER)

    def _inner_range(self, counted: range, frame: types.FrameType) -> Any:
        assert self._plan is not None
        if not self._plan.over_range or self._open or not self._is_at(frame, self._plan.batch_lines):
            return counted
        return self._open_loader(counted, frame)

    def _enumerate(self, iterable: Any, start: int = 0) -> Any:
        frame = sys._getframe(1)
        assert self._plan is not None
        if self._session is not None and not self._open and self._is_at(frame, self._plan.batch_lines):
            start += max(0, self._session.batch)
        return builtins.enumerate(iterable, start)

    def _is_at(self, frame: types.FrameType, lines: tuple[int, int] | None) -> bool:
        return (
            lines is not None
            and frame.f_code.co_filename == self._file
            and lines[0] <= frame.f_lineno <= lines[1]
        )

    # What stands for the loader's iterator.

    def batches_of(self, loader: Any) -> Iterator[Any] | None:
        """The batches that are left, if it is the training loop that asks."""
        session, plan = self._session, self._plan
        if session is None or plan is None or self._open:
            return None
        frame: types.FrameType | None = sys._getframe(2)
        between: list[types.FrameType] = []
        while frame is not None and len(between) < FRAMES_BETWEEN_MAX:
            if self._is_at(frame, plan.batch_lines):
                if any(map(_reads_ahead, between)):
                    session.cannot_resume(f"line {frame.f_lineno}: its batches may be read ahead")
                return self._open_loader(loader, frame)
            between.append(frame)
            frame = frame.f_back
        return None

    def _open_loader(self, loader: Any, frame: types.FrameType) -> Iterator[Any]:
        """The batches that are left, in the frame that has the loop over them."""
        session, variables = self._session, self._variables
        assert session is not None and variables is not None
        self._open = True
        batches = len(loader) if _has_length(loader) else None
        if batches is None or batches < 2:
            said = "does not say how many batches it has" if batches is None else "has one batch only"
            session.cannot_resume(f"its loader {said}, so it could not be stopped within an epoch")
        if self._length not in (None, batches):  # A stop may be agreed for what is now an epoch's last step.
            session.cannot_resume(
                f"its loader has {batches} batches, and had {self._length} in the last epoch"
            )
        self._length = batches
        for caveat in data.caveats(loader, data.SKIP_AUTO):
            session.cannot_resume(caveat)
        try:  # What the script has made since its loop began may be more than can be saved.
            variables.begin(frame, loader)
        except NotPlain as error:
            session.cannot_resume(str(error))
        if self._fresh and session.resumed is not None and session.batch > 0:
            session.put_back_again()
        self._fresh = False
        return self._batches(session, loader, variables)

    def _batches(self, session: Session, loader: Any, variables: Variables) -> Iterator[Any]:
        yield from session.batches(loader)
        variables.batches_ended()


class Epochs:
    """What a script's loop gets in place of a range."""

    def __init__(self, counted: range, left: Iterator[int]) -> None:
        self._counted, self._left = counted, left

    def __iter__(self) -> Iterator[int]:
        return self._left

    def __len__(self) -> int:
        return len(self._counted)


def _session(values: CarriedValues, variables: Variables) -> Session:
    return Session(
        values.models,
        values.optimizers,
        values.schedulers,
        values.scalers[0] if values.scalers else None,
        extra=variables,
        accumulates="it is not known before the first step",
    )


def _reads_ahead(frame: types.FrameType) -> bool:
    """Whether what stands between a loop and its loader may have fetched a batch that was not asked for."""
    name = str(frame.f_globals.get("__name__", ""))
    if is_scripts_own(name):
        return "next" in frame.f_code.co_names
    return name.partition(".")[0] not in (*DISPLAYS, "cotenant")


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:  # over an iterable dataset
        return False
    return True


def _patch_loader(driver: Driver) -> None:
    original = DataLoader.__iter__

    @functools.wraps(original)
    def __iter__(loader: DataLoader[Any]) -> Any:
        batches = driver.batches_of(loader)
        return original(loader) if batches is None else batches

    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

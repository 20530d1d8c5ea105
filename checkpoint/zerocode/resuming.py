"""A script that goes on from a checkpoint: its loops are taken up where they were left.

Rule: the script runs up to its first loop as it did, and there gets back what it had. From there it is led to
where it was left: what is beside the way does not run, functions on it get their variables when they are
called, loops are given the items of the turn that was left. In the innermost loop everything is put back once
more, because going there may have changed something. Then everything that the script can reach is compared
with what was saved. What differs ends this attempt.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch.utils.hooks import RemovableHandle

from cotenant.checkpoint import guard, marks, rerun, resuming, seeds, unseen
from cotenant.checkpoint.picture import Picture
from cotenant.checkpoint.picture.kinds import FrameVariables
from cotenant.checkpoint.progress.main_optimizer import MainOptimizer
from cotenant.checkpoint.training.state import GradientOrder
from cotenant.checkpoint.zerocode import files, looking, proof, refusals, script_rank, state_reader
from cotenant.checkpoint.zerocode.passes import LoaderSkip, WrittenPass
from cotenant.checkpoint.zerocode.sites import GIVEN, CallSite, LoopSite, calls_in, script_frames

EDITED: Final = (
    "{} was edited since this job was left there, so that its place in it is lost. To go on, undo the "
    "change; jobs that are submitted with --snapshot keep the files that they began with"
)
NOT_THERE: Final = "the script has not come to the loop in which it was left"
OTHERWISE: Final = (
    "what comes before its loop came out otherwise than in the attempt that was left: {}. Seed what it "
    "draws, and leave out what depends on the time, the folder or the order of a set"
)


class PassedOver(BaseException):
    """The script was left elsewhere than in its first loop."""


class TakenUp:
    """What a process had when it was left, on its way into the objects of this one."""

    def __init__(
        self, rank: script_rank.ScriptRank, watched: script_rank.Watched, loaded: resuming.LoadedCheckpoint
    ) -> None:
        self._rank, self._watched, self._loaded = rank, watched, loaded

    def begin(self, frames: list[types.FrameType], began: list[CallSite]) -> None:
        """The loop that trains begins.

        Raises:
            NotResumable: it is another one.
        """
        own, watched = self._loaded.own, self._watched
        watched.passes.take_up()
        self._picture = picture = Picture(looking.roots_of(frames), digests=True, aliases=True)
        watched.look.take(picture, began)
        watched.files.enter_loop()
        seeds.end_seeds()
        self.reader = state_reader.StateReader(own["state"], picture, watched.passes)
        for key, names in own["gradient_orders"]:
            wrong = GradientOrder(self.reader.object_at(key)).replay(names)
            if wrong:
                raise refusals.NotResumable(wrong)
        for key in own.get("optimizer", ()):
            MainOptimizer.of_attempt_before = weakref.ref(self.reader.object_at(key))
        missing = self.reader.put_back()
        if missing:
            raise refusals.NotResumable(
                f"what comes before its loop came out otherwise: {', '.join(missing[:4])} is not there"
            )

    def put_everything_back(self, roots: list[tuple[str, Any]]) -> None:
        """The script stands where it was left. `roots`: as they were written.

        Raises:
            NotResumable: what it has now is not what it had.
        """
        inner = {path: value.frame for path, value in roots if hasattr(value, "frame")}
        self.reader.keep_of_each_process(inner)
        self._picture.put_back()  # What was done on the way here.
        missing = [*self.reader.put_back(), *self.reader.put_back_frames(inner)]
        if missing:
            raise refusals.NotResumable(
                f"its loop was reached by another way: {', '.join(missing[:4])} not there"
            )
        files.put_back_files(self._loaded.own["files"])
        shown = proof.ShownState(*self._loaded.own["shown"])
        wrong = shown.difference(proof.ShownState.from_picture(Picture(roots)))
        if wrong:
            raise refusals.NotResumable(OTHERWISE.format(wrong))
        # The next hook gets a number that none has, as it would have: else it takes the place of one.
        RemovableHandle.next_id = self._loaded.own.get("hooks_made", RemovableHandle.next_id)
        self._picture.let_go()
        self._watched.passes.end_taking_up()
        self._rank.taken_up(self._loaded)


class Resumption:
    """Takes one script up where it was left."""

    def __init__(self, make_rank: Callable[[], script_rank.ScriptRank], watched: script_rank.Watched) -> None:
        """`make_rank()` is called at the first of the loops."""
        self._make_rank, self._watched = make_rank, watched
        self._rank: script_rank.ScriptRank | None = None
        self._loaded: resuming.LoadedCheckpoint | None = None
        self._own: dict[str, Any] = {}
        self._first_loops = rerun.first_loops()
        self._began: list[CallSite] = []
        self._way: list[CallSite] = []
        self._sites: list[LoopSite] = []
        self._taken_up: TakenUp | None = None
        self._reader: state_reader.StateReader | None = None
        self._skip: LoaderSkip | None = None
        """Where the next loop on the way was left."""
        self._under_way: dict[tuple[int, int], _Turns] = {}
        """The loops that began before the first picture, by depth and line."""
        self._bound: dict[int, types.FrameType] = {}
        self._is_back = False

    def begin(self) -> None:
        """Wait for the loops."""
        self._watched.files.when_destroyed = self._refuse_to_destroy
        answers: dict[str, Callable[..., Any]] = {
            marks.BEFORE: self._before,
            marks.ITEMS: self._items,
            marks.TURN: self._turn,
            marks.RUNS: self._runs,
            marks.TAKES: self._takes,
            marks.GOES_ON: self._goes_on,
        }
        for name, mark in answers.items():
            setattr(builtins, name, self._mark(mark))
        setattr(builtins, marks.PASSED_OVER, PassedOver)
        atexit.register(self._end)
        edited = rerun.edited_on_the_way()
        if edited:
            self._refuse_to_destroy(EDITED.format(", ".join(edited)))

    @guard.door
    def _end(self) -> None:
        """The script is over, and was not taken up: that is not its end."""
        if not self._is_back and not os.path.exists(_taken_up_mark()):
            try:
                guard.SAVING.run(self._complain)
            finally:
                os._exit(1)

    def _complain(self) -> None:
        rank = self._rank or self._make_rank()
        if not rank.has_ended:
            has_failed = hasattr(sys, "last_value")  # For another reason, which says nothing about resuming.
            rank.end_attempt(NOT_THERE, "load" if has_failed else "resume")

    def _mark(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the script calls: `function(frame, ...)`, until it is taken up."""
        passes_on = function == self._items
        when_back = None if function in (self._before, self._takes) else True

        @guard.door
        def mark(*args: Any) -> Any:
            if self._is_back:
                return args[-1] if passes_on else when_back
            return guard.SAVING.run(function, sys._getframe(1), *args, seen=True)

        return mark

    @property
    @guard.door
    def is_led(self) -> bool:
        """The script is between its first loop and where it was left."""
        return self._reader is not None and not self._is_back

    # What the marks call.

    def _before(self, frame: types.FrameType, line: int) -> None:
        frames = script_frames(frame)
        if self._rank is None and self._is_first_loop(frame, line):
            self._rank = self._make_rank()
            self._guarded(self._load)
        if self._rank is not None and self._reader is None and calls_in(frames, line) == self._began:
            self._guarded(self._begin_loop, frames)
            number = self._number(frames, line)
            if number is None or not self._is_in_turn(self._sites[:number]):
                raise PassedOver
            self._go_for(number)
        if self._reader is not None:
            self._guarded(self._bind, frame)

    def _items(self, frame: types.FrameType, line: int, items: Any) -> Any:
        frames = script_frames(frame)
        if self._reader is None:
            self._under_way[len(frames) - 1, line] = turns = _Turns(self, line, iter(items))
            return turns
        number = self._number(frames, line)
        if number is None:
            return items
        iterator = self._guarded(self._advance, items, number)
        self._go_for(number + 1)
        if number == len(self._sites) - 1:
            self._guarded(self._put_everything_back, frame)
        return iterator

    def _turn(self, frame: types.FrameType, line: int) -> bool:
        if self.is_led:
            number = self._number(script_frames(frame), line)
            if number is not None:
                self._go_for(number + 1)
            if number == len(self._sites) - 1:
                self._guarded(self._put_everything_back, frame)
            return number is not None
        return True

    def _runs(self, frame: types.FrameType, first: int, last: int, *names: str) -> bool:
        """Whether a statement runs: not if it is beside the way. What shows where a loop is is made anew."""
        if self._reader is None:
            return True
        frames = script_frames(frame)
        if self._leads_on(frames, first, last):
            self._guarded(self._bind, frame)
            return True
        depth = len(frames) - 1
        is_before = self._has_come(frames) and last < self._way[depth].line
        around = (each for each in self._sites if each.depth < depth or each.line < first)
        return is_before and not self._reader.of_each_process.isdisjoint(names) and self._is_in_turn(around)

    def _takes(self, frame: types.FrameType, first: int, last: int, end: int) -> bool | None:
        frames = script_frames(frame)
        if not self.is_led or not self._leads_on(frames, first, end):
            return None
        return self._leads_on(frames, first, last)

    def _goes_on(self, frame: types.FrameType, first: int, last: int) -> None:
        """A block is left by `PassedOver`: the way may go on after the statement that was left."""
        frames = script_frames(frame)
        depth = len(frames) - 1
        above = (each for each in self._sites if each.depth < depth)
        if not (
            self._has_come(frames) and self._is_in_turn(above) and first <= self._way[depth].line <= last
        ):
            raise

    # Where the script is, on the way.

    def _has_come(self, frames: list[types.FrameType]) -> bool:
        """Whether the way leads through the innermost of these functions, called from where it was."""
        depth = len(frames) - 1
        return depth < len(self._way) and (calls_in(frames, self._way[depth].line) == self._way[: depth + 1])

    def _leads_on(self, frames: list[types.FrameType], first: int, last: int) -> bool:
        """Whether the script was left somewhere at these lines, in this turn of the loops around them."""
        depth = len(frames) - 1
        if not self._has_come(frames) or not first <= self._way[depth].line <= last:
            return False
        return self._is_in_turn(each for each in self._sites if each.depth < depth or each.line < first)

    def _is_in_turn(self, around: Iterable[LoopSite]) -> bool:
        """Whether these loops are in the turns in which they were left."""
        turns = ((self._under_way.get((each.depth, each.line)), each.passed) for each in around)
        return all(each is None or passed < 0 or each.turn == passed for each, passed in turns)

    def _number(self, frames: list[types.FrameType], line: int) -> int | None:
        """Which of the loops that were left begins at this line; None: none of them."""
        depth = len(frames) - 1
        here = [n for n, each in enumerate(self._sites) if (each.depth, each.line) == (depth, line)]
        return here[0] if here and self._has_come(frames) else None

    def _is_first_loop(self, frame: types.FrameType, line: int) -> bool:
        """Whether a loop may be the one at which the first picture was taken."""
        return (frame.f_code.co_filename, line) in self._first_loops

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        assert self._rank is not None
        if function in (self._advance, self._go_to_turn):  # Code of the script's runs behind these.
            return self._rank.run_or_end(function, *args)
        with unseen.Unseen():
            return self._rank.run_or_end(function, *args)

    def _refuse_to_destroy(self, reason: str) -> None:
        rank = self._rank = self._rank or self._make_rank()
        rank.end_attempt(reason)

    # What happens there.

    def _load(self) -> None:
        assert self._rank is not None
        self._loaded = self._rank.take_up()
        self._own = self._loaded.own
        self._began = [CallSite(*call) for call in self._own["began"]]
        self._way = [CallSite(*call) for call in self._own["way"]]
        self._sites = [LoopSite(*site) for site in self._own["sites"]]

    def _begin_loop(self, frames: list[types.FrameType]) -> None:
        assert self._rank is not None and self._loaded is not None
        self._taken_up = taken_up = TakenUp(self._rank, self._watched, self._loaded)
        taken_up.begin(frames, self._began)
        self._reader = taken_up.reader

    def _bind(self, frame: types.FrameType) -> None:
        """Give a function its variables before it goes on: what set them does not run again."""
        assert self._reader is not None
        path, value = looking.roots_of(script_frames(frame))[-1]
        if isinstance(value, FrameVariables) and id(frame) not in self._bound:
            self._bound[id(frame)] = frame
            self._reader.keep_of_each_process({path: frame})
            self._reader.put_back_frames({path: frame})

    def _go_for(self, number: int) -> None:
        """From now on loaders that are asked for batches are those of this loop, or of none."""
        passes = self._own["passes"][number] if number < len(self._sites) else []
        skip = None
        if passes:
            assert self._reader is not None
            skip = LoaderSkip([WrittenPass(*each) for each in passes], self._sites[number], self._reader)
        self._skip = self._watched.passes.skip = skip

    def _advance(self, items: Any, number: int) -> Iterator[Any]:
        """An iterator that has given what was used before."""
        iterator: Iterator[Any] = iter(items)
        passed, skip = self._sites[number].passed, self._skip
        for _ in range(passed):
            next(iterator, None)
        if passed == GIVEN:
            assert skip is not None
            while not skip.batches or skip.batches[0]._num_yielded < self._given(number):
                next(iterator)
        return iterator

    def _given(self, number: int) -> int:
        return WrittenPass(*self._own["passes"][number][0]).given

    def go_to_turn(self, turns: _Turns, frame: types.FrameType) -> None:
        """A loop that is under way comes to its next turn: go past those before the one that was left."""
        self._guarded(self._go_to_turn, turns, frame)

    def _go_to_turn(self, turns: _Turns, frame: types.FrameType) -> None:
        number = self._number(script_frames(frame), turns.line)
        if number is None:
            raise refusals.NotResumable(f"line {turns.line}: this loop was over when the script was left")
        passed = self._sites[number].passed
        if passed == GIVEN:
            given = self._watched.passes.find_in_loop(frame, {turns.line}, turns.items)[0].batches
            while given()._num_yielded < self._given(number):
                turns.go_past_one()
        while turns.turn + 1 < passed:
            turns.go_past_one()
        self._go_for(number + 1)
        if number == len(self._sites) - 1:
            with unseen.Unseen():
                self._put_everything_back(frame)

    def _put_everything_back(self, frame: types.FrameType) -> None:
        assert self._taken_up is not None
        roots = [*looking.roots_of(script_frames(frame)), *self._watched.passes.generators()]
        self._taken_up.put_everything_back(roots)
        self._is_back = True
        with contextlib.suppress(OSError), open(_taken_up_mark(), "w"):
            pass
        for kept in (self._bound, self._under_way, self._own):
            kept.clear()
        self._taken_up = self._reader = self._skip = self._watched.passes.skip = (
            None  # They would keep what the script lets go of.
        )
        self._watched.passes.steps += 1


def _taken_up_mark() -> str:
    """A file that is there when a process of this attempt was taken up: who only starts others, as torchrun
    does, comes to none of their loops."""
    socket = os.environ.get(guard.ENV_SOCKET, "")
    return os.path.join(os.path.dirname(socket), "taken-up") if socket else ""


class _Turns:
    """The items of a loop that began before the first picture was taken."""

    def __init__(self, resumption: Resumption, line: int, items: Iterator[Any]) -> None:
        self._resumption, self.items, self.line = resumption, items, line
        self.turn = -1
        """The number of the present one."""

    @guard.door
    def __iter__(self) -> _Turns:
        return self

    @guard.door
    def __next__(self) -> Any:
        if self._resumption.is_led:
            guard.SAVING.run(self._resumption.go_to_turn, self, sys._getframe(1))
        self.turn += 1
        return next(self.items)

    def go_past_one(self) -> None:
        next(self.items)
        self.turn += 1

"""`cotenant checkpoint verify -- CMD`: stop a command in several places, resume it, and compare the end.

Rule: this is a trial with the user's own command on this machine, and nothing else: no controller is asked
and no job is made. It works in copies of the present folder. Only what is equal bit for bit counts; what
differs between two undisturbed runs is named, and left out.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import cotenant
from cotenant.controller.cli.jobs.attempt import TrialAttempt, TrialStart, WantedStop, run_attempt
from cotenant.controller.cli.jobs.contents import unequal_parts
from cotenant.controller.cli.jobs.scratch import FilesLeft, Scratch, is_alike_any, unequal
from cotenant.controller.cli.jobs.stops import Course, course_of, next_stop, places_not_reached, plan_stops
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.units import plural

NAMES_MAX: Final = 5
UNSEEDED: Final = (
    "not even two runs that nobody stops end alike, so nothing can be compared: set a seed in the script, as "
    "torch.manual_seed(0) before the model and the data are made, and try again"
)


class ProvenStop(msgspec.Struct, frozen=True, kw_only=True):
    """One stop of the command, and the resume after it."""

    step: int
    place: str
    """Such as "at the end of epoch 1"; empty where epochs were not seen."""
    epoch_end: bool
    proven_steps: int
    """Made by the process that stopped and by the one that resumed, and found equal."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial."""

    ok: bool
    steps: int
    exact: bool
    """What the command itself says of all of its resumes."""
    reason: str = ""
    stops: tuple[ProvenStop, ...] = ()
    compared: tuple[str, ...] = ()
    """What was equal at the end."""
    left_out: tuple[str, ...] = ()
    """Files that differ by themselves."""
    not_reached: tuple[str, ...] = ()


class _Difference(Exception):
    """The resumed run is not the undisturbed one; the text says where they differ."""


def verify(argv: Sequence[str], steps: int | None) -> Verified:
    """steps: stop there; None: run the command to its end. Raises Problem where a run cannot be made."""
    with tempfile.TemporaryDirectory(prefix="cotenant-verify-") as name:
        return _Trial(argv, steps, Path(name)).result()


class _Trial:
    """An undisturbed run, one that is stopped and resumed, and a third one where these two differ."""

    def __init__(self, argv: Sequence[str], steps: int | None, folder: Path) -> None:
        self._argv, self._limit, self._folder = tuple(argv), steps, folder
        self._jobside = _job_side(folder)
        self._scratch = Scratch(Path.cwd(), folder)
        self._runs = 0
        self._stops: list[ProvenStop] = []
        self._refusals: list[str] = []
        self._compared: list[str] = []
        self._left_out: list[str] = []
        self._unproven: list[int] = []
        self._uses_cuda, self._is_exact = False, True
        self._last_stop: TrialAttempt | None = None

    def result(self) -> Verified:
        whole = self._run_undisturbed(self._limit)
        files = self._scratch.files_left()
        course = course_of(whole.step, whole.lengths, whole=not whole.has_stopped)
        planned = plan_stops(course)
        if not planned:
            raise Problem("refused", "the command makes one step, and is over", "try one that makes more")
        reason = ""
        try:
            last = self._run_interrupted(course, planned, whole)
            if last.step != whole.step:
                raise _Difference(f"it made {plural(last.step, 'step')}, and {whole.step} undisturbed")
            if whole.has_stopped:
                self._compare_parameters(last, whole)
            else:
                self._compare_ends(last, whole, files)
        except _Difference as error:
            reason = str(error)
        return Verified(
            ok=not reason,
            steps=whole.step,
            exact=self._is_exact,
            reason=reason,
            stops=tuple(self._stops),
            compared=tuple(self._compared),
            left_out=tuple(self._left_out),
            not_reached=tuple(self._places_not_reached(course, whole)),
        )

    def _places_not_reached(self, course: Course, whole: TrialAttempt) -> list[str]:
        found = places_not_reached(course, [stop.step for stop in self._stops])
        if whole.has_stopped:
            found.append(f"what the command does after step {whole.step}: --steps {self._limit}")
        found += [f"a stop {each}" for each in self._refusals]
        if self._unproven:
            steps = ", ".join(map(str, self._unproven))
            found.append(f"a proof by steps: the command makes none once it has saved (stops after {steps})")
        if not self._uses_cuda:
            found.append("a GPU: the command uses none")
        return [*found, "more than one process", "files outside of this folder, and what is printed"]

    # The runs.

    def _run_undisturbed(self, stop: int | None, *, exactly: bool = False) -> TrialAttempt:
        wish = None
        if stop is not None:
            wish = WantedStop(
                step=stop, otherwise=lambda step, now, _: None if exactly else max(step, now) + 2
            )
        self._begin_run()
        attempt = self._attempt(1, wish, "undisturbed", stop)
        if attempt.exit_code and not attempt.has_stopped:
            said = (
                f"the command ended with exit code {attempt.exit_code} after step {attempt.step}, undisturbed"
            )
            raise Problem("failed", said, "its own words stand above")
        if exactly and not attempt.has_stopped:
            raise Problem("failed", f"no stop could be made {'; '.join(attempt.refusals)}")
        return attempt

    def _run_interrupted(self, course: Course, planned: tuple[int, ...], whole: TrialAttempt) -> TrialAttempt:
        """Stops and resumes until the command ends, or stops where the undisturbed run did. Raises
        _Difference."""
        self._begin_run()
        end = whole.step if whole.has_stopped else None
        number, before = 1, None
        while True:
            wish = self._wish_after(before.step if before else 0, course, planned, end)
            what = "to its end" if wish is None else f"to a stop after step {wish.step}"
            attempt = self._attempt(number, wish, what, course.steps)
            self._refusals += attempt.refusals
            if before is not None:
                self._judge_resume(course, before, attempt)
            elif not attempt.has_stopped:
                raise Problem("refused", f"the command could not be stopped {'; '.join(attempt.refusals)}")
            if not attempt.has_stopped or attempt.step == end:
                return attempt
            number, before = number + 1, attempt
            self._last_stop = attempt

    def _wish_after(
        self, step: int, course: Course, planned: tuple[int, ...], end: int | None
    ) -> WantedStop | None:
        left = [*(each for each in planned if each > step + 1), *([] if end is None else [end])]

        def otherwise(refused: int, now: int, tries: int) -> int | None:
            if refused == end:
                raise Problem("failed", f"the command was past step {end} too soon", "give a larger --steps")
            return next_stop(course, left, refused, now, tries)

        return WantedStop(step=left[0], otherwise=otherwise) if left else None

    def _begin_run(self) -> None:
        self._runs += 1
        self._cwd = _fresh_copy(self._scratch)
        self._root = self._folder / f"run-{self._runs}"
        self._root.mkdir()

    def _attempt(self, number: int, wish: WantedStop | None, what: str, steps: int | None) -> TrialAttempt:
        return run_attempt(
            TrialStart(
                argv=self._argv,
                jobside=self._jobside,
                root=self._root,
                cwd=self._cwd,
                number=number,
                what=f"run {self._runs} of {max(2, self._runs)}, {what}",
                of_steps=steps,
            ),
            wish,
        )

    # Comparing.

    def _judge_resume(self, course: Course, before: TrialAttempt, after: TrialAttempt) -> None:
        """Raises _Difference where the resume is not what it should be."""
        place = course.place_of(before.step)
        is_end = course.is_epoch_end(before.step)
        stop = ProvenStop(step=before.step, place=place, epoch_end=is_end, proven_steps=after.proven_steps)
        self._stops.append(stop)
        self._is_exact = self._is_exact and not after.note and not after.failure
        where = f"after step {before.step}" + (f", {place}," if place else "")
        if after.failure:
            raise _Difference(f"stopped {where} it did not go on as it was left: {after.failure}")
        if not after.has_stopped and after.exit_code:
            when = f"after step {after.step}" if after.step else "before its first step"
            ending = f"it ended with exit code {after.exit_code} {when}"
            raise _Difference(f"stopped {where} and resumed, {ending}; its own words stand above")
        if after.began_at != before.step:
            raise _Difference(f"stopped {where} it resumed at step {after.began_at}")
        if after.note:
            raise _Difference(f"stopped {where} it calls its resume equivalent, not exact: {after.note}")
        self._uses_cuda = before.device != "cpu"
        to_prove = len(before.steps_shown())
        if after.proven_steps < to_prove:
            raise _Difference(f"stopped {where} it resumed, and did not show that its steps are the same")
        if not to_prove:
            self._unproven.append(before.step)

    def _compare_parameters(self, last: TrialAttempt, whole: TrialAttempt) -> None:
        """Of two attempts that have stopped after the same step. Raises _Difference."""
        if _parameters(last) != _parameters(whole):
            again = self._run_undisturbed(whole.step, exactly=True)
            if _parameters(again) != _parameters(whole):
                raise _Difference(UNSEEDED)
            names = _unequal_values(last, whole) - _unequal_values(again, whole)
            raise _Difference(f"parameters differ after step {whole.step}{_such_as(names)}")
        self._compared.append(f"parameters after step {whole.step}")

    def _compare_ends(self, last: TrialAttempt, whole: TrialAttempt, files: FilesLeft) -> None:
        """Of two runs to the command's end. Raises _Difference."""
        self._compared.append(f"exit code {last.exit_code}")
        left = self._scratch.files_left()
        if not files and not left:  # What it has computed is seen at its last stop only.
            stop = self._last_stop
            assert stop is not None, "a command that is never stopped is refused"
            self._compare_parameters(stop, self._run_undisturbed(stop.step, exactly=True))
            return
        wrong = unequal(files, left)
        if wrong:
            self._run_undisturbed(None)
            by_themselves = unequal(files, self._scratch.files_left())
            self._left_out = [name for name in wrong if is_alike_any(name, by_themselves)]
            wrong = [name for name in wrong if name not in self._left_out]
        if wrong:
            names = [_name_parts(name, files.get(name, {}), left.get(name, {})) for name in wrong]
            raise _Difference(f"files differ at the end: {_list_some(names)}{self._values_at_last_stop()}")
        equal = [name for name in files if files[name] == left.get(name)]
        if self._left_out and not equal:
            raise _Difference(UNSEEDED)
        self._compared += equal

    def _values_at_last_stop(self) -> str:
        """Which values are other ones there than undisturbed, where that can be seen."""
        stop = self._last_stop
        assert stop is not None, "a command that is never stopped is refused"
        try:
            names = _unequal_values(stop, self._run_undisturbed(stop.step, exactly=True))
        except Problem:
            return ""
        return f"; after step {stop.step}{_such_as(names)}" if names else ""


def _parameters(attempt: TrialAttempt) -> str:
    return str(attempt.manifest()["parameters_sha256"])


def _unequal_values(left: TrialAttempt, right: TrialAttempt) -> set[str]:
    """What differs between two runs one step after they have stopped at the same one."""
    pairs = zip(left.steps_shown(), right.steps_shown(), strict=False)
    then, now = next(pairs, ({}, {}))
    names = {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}
    return {name for name in names if not name.startswith("sitecustomize")}  # Ours, in a checkout.


def _name_parts(file: str, left: Mapping[str, str], right: Mapping[str, str]) -> str:
    """A file, with the values in it that differ."""
    parts = [f"`{part}`" for part in unequal_parts(left, right)]
    return f"{file} ({_list_some(parts)})" if parts else file


def _such_as(names: set[str]) -> str:
    return f": {_list_some([f'`{name}`' for name in sorted(names)])}" if names else ""


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _job_side(folder: Path) -> Path:
    """Our two job-side packages alone, to be found by the script's own interpreter."""
    base = folder / "jobside" / "cotenant"
    base.mkdir(parents=True)
    for package in ("checkpoint", "gradaccum"):
        spec = importlib.util.find_spec(f"cotenant.{package}")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise Problem("failed", f"cotenant.{package} is not installed here", "install cotenant again")
        (base / package).symlink_to(places[0])
    if cotenant.__file__:  # None of a checkout that is found by its folder's name alone.
        (base / "__init__.py").symlink_to(cotenant.__file__)
    return base.parent


def _fresh_copy(scratch: Scratch) -> Path:
    """Makes the folder of a run. Raises Problem."""
    try:
        made = scratch.make()
    except OSError as error:
        problem = f"this folder cannot be copied for a trial: {error.strerror}: {error.filename}"
        raise Problem("failed", problem, "run it in a folder that holds the script alone") from None
    if scratch.linked:
        tell(f"too large to copy, and yours if the command writes there: {_list_some(scratch.linked)}")
    return made

"""The mixed-integer program of a few waiting jobs and their placements, and what answers it means.

Source: RLTune (SoCC '25) section 3.3. Departs from it because its objective is least where nothing starts.
Minimised is

    hosts in part free + 0.3 * (most free on a host - fewest) - 0.5 * (hosts where the next job fits)
    - 100 * (jobs - rank) for each job that starts

Rule: a job that best fit starts is started. Of the others none passes one that must not be passed.

Rule: jobs of one class stand in for each other, so their placements are counted and not told apart: else each
way to hand them out would be a solution of its own, all of equal cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from cotenant.controller.domain import HostId
from cotenant.controller.papers.rltune.placement.candidates import FreePlace, HostMix, JobGroup
from cotenant.controller.planning import HostType, SchedulingClass

SPREAD: Final = 0.3
NEXT: Final = 0.5
STARTED: Final = 100.0
INFINITE: Final = float("inf")

Factors = dict[int, float]
"""By column."""


class Constraint(NamedTuple):
    least: float
    most: float
    factors: Factors


class Taking(NamedTuple):
    """A column that counts the jobs of a group that get one choice."""

    group: int
    choice: int


class PlacementProgram(NamedTuple):
    """Minimise cost * x + offset. Columns are whole numbers as said, and within their bounds."""

    cost: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    whole: Sequence[bool]
    rows: Sequence[Constraint]
    offset: float
    best_fit: Mapping[int, float]
    """Best fit's values of the columns from which the others follow."""
    taking: Sequence[Taking]
    """What the first columns count."""

    def pick(self, values: Sequence[float]) -> dict[Taking, int]:
        """How many jobs get which choice, by a solution."""
        counts = {each: round(value) for each, value in zip(self.taking, values, strict=False)}
        return {each: count for each, count in counts.items() if count}


class Solver(Protocol):
    """A solver of one program at a time. Two calls with equal programs give equal answers, or none."""

    def solve(self, program: PlacementProgram) -> Sequence[float] | None:
        """The columns at the least cost; None: that was not found within the solver's limit."""


def program_of(
    groups: Sequence[JobGroup], places: Mapping[HostType, FreePlace], following: SchedulingClass | None
) -> PlacementProgram:
    """Builds the placement program of `groups`. `following`: the class of the job that is next in the order
    after these."""
    building = _Building(groups, places)
    building.count_jobs()
    building.keep_order()
    building.limit_hosts()
    building.judge_places(following)
    building.judge_spread()
    return building.program()


class _Building:
    """Columns and rows, as they are added."""

    def __init__(self, groups: Sequence[JobGroup], places: Mapping[HostType, FreePlace]) -> None:
        self._groups, self._places = groups, places
        self._cost: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[Constraint] = []
        self._best_fit: dict[int, float] = {}
        self._taking: list[Taking] = []
        self._started: dict[int, int] = {}
        """Column of each job that best fit does not start, by rank."""
        self._constant = 0.0
        self._used: dict[HostType, Factors] = {}
        """Columns that take devices of a place, with how many."""

    def program(self) -> PlacementProgram:
        columns = self._cost, self._lower, self._upper, self._whole
        return PlacementProgram(*columns, self._rows, self._constant, self._best_fit, self._taking)

    def count_jobs(self) -> None:
        """Places at most all jobs of each group, and all jobs that best fit starts."""
        for number, group in enumerate(self._groups):
            for index, choice in enumerate(group.choices):
                column = self._column(0.0, upper=float(self._fitting(group, choice)))
                self._taking.append(Taking(number, index))
                self._best_fit[column] = float(group.best_fit.get(choice, 0))
                for place, count in choice:
                    self._used.setdefault(place, {})[column] = float(count)
        jobs = sum(len(group.jobs) for group in self._groups)
        for number, group in enumerate(self._groups):
            mine = {column: 1.0 for column, each in enumerate(self._taking) if each.group == number}
            must = sum(job.must_start for job in group.jobs)
            for job in group.jobs:
                if not job.must_start:
                    self._started[job.rank] = column = self._column(-STARTED * (jobs - job.rank))
                    self._best_fit[column] = 0.0
                    mine[column] = -1.0
            self._rows.append(Constraint(float(must), float(must), mine))

    def _fitting(self, group: JobGroup, choice: HostMix) -> int:
        return min(len(group.jobs), *(self._places[place].free // count for place, count in choice))

    def keep_order(self) -> None:
        ordered = sorted((job for group in self._groups for job in group.jobs), key=lambda job: job.rank)
        open_ = [job for job in ordered if not job.must_start]
        for before, job in pairwise(open_):
            if not job.may_pass:
                self._rows.append(
                    Constraint(
                        -INFINITE, 0.0, {self._started[job.rank]: 1.0, self._started[before.rank]: -1.0}
                    )
                )

    def limit_hosts(self) -> None:
        """Cores and main memory, for those who ask for any."""
        on_host: dict[HostId, set[int]] = {}
        for place, used in self._used.items():
            on_host.setdefault(place[0], set()).update(used)
        left_on = {place[0]: self._places[place] for place in self._used}
        for host_id, columns in on_host.items():
            for asked, left in zip(_ASKED, left_on[host_id].room, strict=True):
                factors = {
                    column: of for column in sorted(columns) if (of := float(asked(self._class(column))))
                }
                if factors and left is not None:
                    self._rows.append(Constraint(-INFINITE, float(left), factors))

    def _class(self, column: int) -> SchedulingClass:
        return self._groups[self._taking[column].group].scheduling_class

    def judge_places(self, following: SchedulingClass | None) -> None:
        """Whether each place stays in part free, and whether the next job, or a pod of it, still fits
        there."""
        for place, here in self._places.items():
            used = self._used.get(place)
            could_fit = following is not None and _could_fit(place, here, following)
            if used is None:
                self._constant += (0 < here.free < here.total) - NEXT * could_fit
                continue
            self._limit_place(here, used)
            if following is not None and could_fit:
                self._fits_next(here, used, following)

    def _limit_place(self, here: FreePlace, used: Factors) -> None:
        """Takes at most what is free. A place with nothing or everything left is not in part free."""
        self._constant += 1.0
        self._rows.append(Constraint(-INFINITE, float(here.free), used))
        if here.free in self._sums(used, here.free):
            full = self._column(-1.0)
            self._rows.append(Constraint(0.0, INFINITE, {**used, full: -float(here.free)}))
        if here.free == here.total:
            empty = self._column(-1.0)
            for column in used:
                most = self._upper[column]
                self._rows.append(Constraint(-INFINITE, most, {column: 1.0, empty: most}))

    def _sums(self, used: Factors, most: int) -> set[int]:
        """Numbers of devices that can be taken."""
        found = {0}
        for column, count in used.items():
            for _ in range(int(self._upper[column])):
                found |= {each + int(count) for each in found if each + count <= most}
        return found

    def _fits_next(self, here: FreePlace, used: Factors, following: SchedulingClass) -> None:
        fits, wanted = self._column(-NEXT), _pod_on(here, following)
        self._rows.append(Constraint(-INFINITE, float(here.free), {**used, fits: float(wanted)}))
        for asked, left in zip(_ASKED, here.room, strict=True):
            if asked(following) and left is not None:
                of_jobs = {column: float(asked(self._class(column))) for column in used}
                self._rows.append(
                    Constraint(-INFINITE, float(left), {**of_jobs, fits: float(asked(following))})
                )

    def judge_spread(self) -> None:
        """Judges the spread of free devices by type: most and fewest free on a host."""
        for type in dict.fromkeys(place[1] for place in self._used):
            of_type = {place: here.free for place, here in self._places.items() if place[1] == type}
            others = [free for place, free in of_type.items() if place not in self._used]
            highest = max(of_type.values())
            bounds = (max(others, default=0), highest), (0, min(others, default=highest))
            for cost, (lower, upper), is_most in zip((SPREAD, -SPREAD), bounds, (True, False), strict=True):
                if lower == upper:  # What these jobs get does not change it.
                    self._constant += cost * lower
                    continue
                column = self._column(cost, float(lower), float(upper), whole=False)
                for place, used in self._used.items():
                    if place[1] == type:
                        free = float(of_type[place])
                        limits = (free, INFINITE) if is_most else (-INFINITE, free)
                        self._rows.append(Constraint(*limits, {**used, column: 1.0}))

    def _column(self, cost: float, lower: float = 0.0, upper: float = 1.0, *, whole: bool = True) -> int:
        self._cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._cost) - 1


def _cpus(scheduling_class: SchedulingClass) -> int:
    return scheduling_class.cpus


def _memory(scheduling_class: SchedulingClass) -> int:
    return scheduling_class.host_memory_mib


_ASKED: Final = (_cpus, _memory)
"""What a job asks for of a host, in the order of `FreePlace.room`."""


def _pod_on(here: FreePlace, scheduling_class: SchedulingClass) -> int:
    return min(scheduling_class.gpus // max(1, scheduling_class.nodes), here.total)


def _could_fit(place: HostType, here: FreePlace, scheduling_class: SchedulingClass) -> bool:
    """Whether a pod would fit there if nothing were taken."""
    asked = zip(_ASKED, here.room, strict=True)
    return (
        scheduling_class.gpu_type in ("", place[1])
        and _pod_on(here, scheduling_class) <= here.free
        and all(left is None or of(scheduling_class) <= left for of, left in asked)
    )

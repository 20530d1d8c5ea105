"""The mixed-integer program of a few waiting jobs and their placements, and how HiGHS solves it.

Source: RLTune (SoCC '25) section 3.3. Departs from it because its objective is least where nothing starts.
Minimised is

    hosts in part free + 0.3 * (most free on a host - fewest) - 0.5 * (hosts where the next job fits)
    - 100 * (jobs - rank) for each job that starts

Rule: a job that best fit starts is started. Of the others none passes one that must not be passed.

Rule: jobs of one class stand in for each other, so their placements are counted and not told apart: else each
way to hand them out would be a solution of its own, all of equal cost.

Rule: one thread, one seed and a model of its own for each problem, so that nothing is left of the one
before. Only a proven optimum counts: what a limit cuts off depends on the machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from cotenant.controller.papers.rltune.placement.candidates import FreePlace, HostMix, JobGroup
from cotenant.controller.planning import HostType, SchedulingClass

SPREAD: Final = 0.3
NEXT: Final = 0.5
STARTED: Final = 100.0
LIMIT_S: Final = 0.05
NODES_MAX: Final = 200
"""Of its search tree: reached first on a machine that is not slow, and the same on all."""
LIBRARY: Final = "highspy"
OPTIONS: Final = (
    ("output_flag", False),
    ("threads", 1),
    ("random_seed", 0),
    ("mip_rel_gap", 0.0),
    ("mip_abs_gap", 1e-6),
    ("mip_max_nodes", NODES_MAX),
    ("presolve", "off"),  # It takes longer than what it saves of programs this small.
)


class PlacementProblem(NamedTuple):
    """Waiting jobs, and what is free."""

    groups: Sequence[JobGroup]
    places: Mapping[HostType, FreePlace]
    following: SchedulingClass | None
    """The class of the job that is next in the order after these."""


Taking = tuple[int, HostMix]
"""A group, by its number, and one of its choices."""


class PlacementSolution(NamedTuple):
    picked: Mapping[Taking, int]
    """How many jobs get which choice; each group's in the order of its choices."""
    cost: float


class Solver(Protocol):
    """A solver of one problem at a time. Two calls with equal problems give equal answers, or none."""

    def solve(self, problem: PlacementProblem) -> PlacementSolution | None:
        """What costs least; None: that was not found within the solver's limit."""


class Highs:
    """A solver that runs HiGHS. Implements `Solver`."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s

    def solve(self, problem: PlacementProblem) -> PlacementSolution | None:
        highspy: Any = importlib.import_module(LIBRARY)  # Only who places so pays for it.
        highs = highspy.Highs()
        for option in OPTIONS:
            highs.setOptionValue(*option)
        program = _Program(highs, problem)
        # It starts where best fit is: all other columns follow from these.
        known = {column.index: 0.0 for column in program.starts.values()}
        for (group, choice), column in program.takes.items():
            known[column.index] = float(problem.groups[group].best_fit.get(choice, 0))
        highs.setSolution(len(known), np.array([*known], dtype=np.int32), np.array([*known.values()]))
        highs.setOptionValue("time_limit", highs.getRunTime() + self._limit_s)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        values = highs.getSolution().col_value
        counts = {taking: round(values[column.index]) for taking, column in program.takes.items()}
        return PlacementSolution(
            {taking: count for taking, count in counts.items() if count}, highs.getObjectiveValue()
        )


class _Program:
    """The columns and rows of a problem, as they are added to a model of HiGHS."""

    def __init__(self, highs: Any, problem: PlacementProblem) -> None:
        self._highs, self._groups, self._places = highs, problem.groups, problem.places
        self._most: dict[Taking, int] = {}
        """How many jobs could get the choice, were they alone."""
        self._users: dict[HostType, dict[Taking, int]] = {}
        """Who takes devices of a place, and how many."""
        for number, group in enumerate(self._groups):
            for choice in group.choices:
                fitting = (self._places[place].free // count for place, count in choice)
                self._most[number, choice] = min(len(group.jobs), *fitting)
                for place, count in choice:
                    self._users.setdefault(place, {})[number, choice] = count
        self.takes = {taking: highs.addIntegral(0, most) for taking, most in self._most.items()}
        self._taken = {
            place: highs.qsum(count * self.takes[taking] for taking, count in users.items())
            for place, users in self._users.items()
        }
        self.starts = self._start_jobs()
        self._limit_hosts()
        highs.changeObjectiveOffset(self._judge_places(problem.following) + self._judge_spread())

    def _start_jobs(self) -> dict[int, Any]:
        """Whether each job starts that best fit does not start, by rank; all that it starts do."""
        highs, jobs = self._highs, sum(len(group.jobs) for group in self._groups)
        starts: dict[int, Any] = {}
        for number, group in enumerate(self._groups):
            ranks = [job.rank for job in group.jobs if not job.must_start]
            mine = {rank: highs.addBinary(obj=-STARTED * (jobs - rank)) for rank in ranks}
            placed = highs.qsum(self.takes[number, choice] for choice in group.choices)
            highs.addConstr(placed - highs.qsum(mine.values()) == len(group.jobs) - len(mine))
            starts |= mine
        ordered = sorted((job for group in self._groups for job in group.jobs), key=lambda job: job.rank)
        for before, job in pairwise(job for job in ordered if not job.must_start):
            if not job.may_pass:
                highs.addConstr(starts[job.rank] <= starts[before.rank])
        return starts

    def _limit_hosts(self) -> None:
        """Cores and main memory, for those who ask for any."""
        on_host: dict[str, tuple[dict[Taking, int], tuple[int, int | None]]] = {}
        for place, users in self._users.items():
            on_host.setdefault(place[0], ({}, self._places[place].room))[0].update(users)
        for takers, room in on_host.values():
            for number, left in enumerate(room):
                asked = self._asked(takers, number)
                if left is not None and asked.idxs:
                    self._highs.addConstr(asked <= left)

    def _asked(self, takers: Iterable[Taking], number: int) -> Any:
        """What these ask for of a host: cores or main memory, by its number in `FreePlace.room`."""
        wanted = ((taking, asked_of(self._groups[taking[0]].scheduling_class)[number]) for taking in takers)
        return self._highs.qsum(amount * self.takes[taking] for taking, amount in wanted if amount)

    def _judge_places(self, following: SchedulingClass | None) -> float:
        """Whether each place stays in part free (not where nothing or everything is left), and whether the
        next job, or a pod of it, still fits there. Returns what does not depend on the jobs."""
        highs, offset = self._highs, 0.0
        for place, here in self._places.items():
            could_fit = following is not None and _could_fit(place, here, following)
            users = self._users.get(place)
            if users is None:
                offset += (0 < here.free < here.total) - NEXT * could_fit
                continue
            taken = self._taken[place]
            offset += 1.0
            highs.addConstr(taken <= here.free)
            if self._can_fill(users, here.free):
                highs.addConstr(taken - here.free * highs.addBinary(obj=-1.0) >= 0)
            if here.free == here.total:
                empty = highs.addBinary(obj=-1.0)
                for taking in users:
                    highs.addConstr(self.takes[taking] + self._most[taking] * empty <= self._most[taking])
            if following is not None and could_fit:
                fits = highs.addBinary(obj=-NEXT)
                highs.addConstr(taken + _pod_on(here, following) * fits <= here.free)
                for number, (asked, left) in enumerate(zip(asked_of(following), here.room, strict=True)):
                    if asked and left is not None:
                        highs.addConstr(self._asked(users, number) + asked * fits <= left)
        return offset

    def _can_fill(self, users: Mapping[Taking, int], free: int) -> bool:
        """Whether the devices that can be taken add up to all that are free."""
        sums = {0}
        for taking, count in users.items():
            for _ in range(self._most[taking]):
                sums |= {each + count for each in sums if each + count <= free}
        return free in sums

    def _judge_spread(self) -> float:
        """The most free devices on a host, and the fewest, by type. Returns what does not depend on the
        jobs."""
        offset = 0.0
        for type in dict.fromkeys(place[1] for place in self._users):
            free = {place: here.free for place, here in self._places.items() if place[1] == type}
            others = [count for place, count in free.items() if place not in self._users]
            highest = max(free.values())
            bounds = (max(others, default=0), highest), (0, min(others, default=highest))
            for cost, (lower, upper) in zip((SPREAD, -SPREAD), bounds, strict=True):
                if lower == upper:  # What these jobs get does not change it.
                    offset += cost * lower
                    continue
                extreme = self._highs.addVariable(lower, upper, obj=cost)
                for place in filter(free.__contains__, self._users):
                    left = self._taken[place] + extreme
                    self._highs.addConstr(left >= free[place] if cost > 0.0 else left <= free[place])
        return offset


def asked_of(scheduling_class: SchedulingClass) -> tuple[int, int]:
    """What a job asks for of a host, in the order of `FreePlace.room`."""
    return scheduling_class.cpus, scheduling_class.host_memory_mib


def _pod_on(here: FreePlace, scheduling_class: SchedulingClass) -> int:
    return min(scheduling_class.gpus // max(1, scheduling_class.nodes), here.total)


def _could_fit(place: HostType, here: FreePlace, scheduling_class: SchedulingClass) -> bool:
    """Whether a pod would fit there if nothing were taken."""
    asked = zip(asked_of(scheduling_class), here.room, strict=True)
    return (
        scheduling_class.gpu_type in ("", place[1])
        and _pod_on(here, scheduling_class) <= here.free
        and all(left is None or amount <= left for amount, left in asked)
    )

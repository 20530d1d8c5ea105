"""The orders of the fluid world: first come first served, least remaining service, and PCS's classes.

Rule: the cost grows with the jobs that run, not with the queue. In all three orders the place of a waiting
job does not change, and running jobs only come nearer to the front.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Self

from cotenant.controller.policies.pcs import WfqConfig, class_shares, divide
from cotenant.controller.sim.fluid.play import NEVER, Play, Rule


class _Unhurried(Rule):
    """A rule that divides only at events."""

    look_s = NEVER


class FifoShares(_Unhurried):
    """Each job in order of arrival gets all that it can use."""

    def arrived(self, job: int, play: Play) -> None:
        pass

    def ended(self, job: int) -> None:
        pass

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        given, left = [], float(play.gpus)
        for job in play.left_gpu_s:
            most = play.jobs[job].speedup.gpus_max
            if most >= left:
                given.append((job, left))
                break
            given.append((job, float(most)))
            left -= most
        return given

    def fork(self) -> Self:
        return self


class SrsfShares(_Unhurried):
    """Least remaining service first: most devices x time left on so many (PCS calls it Tiresias)."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._running: list[int] = []

    def arrived(self, job: int, play: Play) -> None:
        self._running.append(job)

    def ended(self, job: int) -> None:
        self._running.remove(job)

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        first = sorted((self._key(job, play), job) for job in self._running)
        given: list[tuple[int, float]] = []
        waiting, self._running, left, place = self._waiting, [], float(play.gpus), 0
        taken = 0
        while left > 0.0 and (taken < len(first) or place < len(waiting)):
            if place == len(waiting) or (taken < len(first) and first[taken] < waiting[place]):
                job, taken = first[taken][1], taken + 1
            else:
                job, place = waiting[place][1], place + 1
            most = min(left, float(play.jobs[job].speedup.gpus_max))
            given.append((job, most))
            self._running.append(job)
            left -= most
        del waiting[:place]
        for item in first[taken:]:
            insort(waiting, item)
        return given

    def fork(self) -> Self:
        copy = type(self)()
        copy._waiting, copy._running = list(self._waiting), list(self._running)
        return copy

    def _key(self, job: int, play: Play) -> float:
        speedup = play.jobs[job].speedup
        return speedup.gpus_max * play.told_gpu_s(job) / speedup.values[-1]


class WfqShares(_Unhurried):
    """PCS's classes: see `policies/pcs/wfq.py`."""

    def __init__(self, config: WfqConfig) -> None:
        self._config = config
        classes = len(config.weights)
        self._members: list[list[int]] = [[] for _ in range(classes)]
        self._demands = [0] * classes
        self._class_of: dict[int, tuple[int, int]] = {}

    def arrived(self, job: int, play: Play) -> None:
        known = play.jobs[job]
        number = self._config.class_of(known.told_gpu_s)
        self._class_of[job] = number, known.speedup.gpus_max
        self._members[number].append(job)
        self._demands[number] += known.speedup.gpus_max

    def ended(self, job: int) -> None:
        number, most = self._class_of.pop(job)
        self._members[number].remove(job)
        self._demands[number] -= most

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        config, jobs = self._config, play.jobs
        given: list[tuple[int, float]] = []
        for members, share in zip(
            self._members, class_shares(self._demands, config.weights, play.gpus), strict=True
        ):
            if share > 0.0:
                # More members than devices get nothing.
                ahead = members[: int(share) + 2]
                speedups = [jobs[job].speedup for job in ahead]
                given += zip(ahead, divide(share, speedups, config.zeta_min, config.delta), strict=False)
        return given

    def fork(self) -> Self:
        copy = type(self)(self._config)
        copy._members = [list(members) for members in self._members]
        copy._demands, copy._class_of = list(self._demands), dict(self._class_of)
        return copy

"""Divides the energy that GPUs count among the attempts on them. Pure.

Rule: NVML counts what a whole GPU has used since its driver was loaded, and no driver says whose it was. What
a counter gained between two readings goes to the attempts that hold the GPU at the second, by their duty: the
part of the time in which they were not held back for a co-tenant, nothing for one that is known to be idle;
in equal parts if nobody has any. What a GPU used while nobody held it counts for nobody.

    the counter falls              the driver was loaded or the GPU reset: what it says now was used since;
                                   what was used before and not read is lost
    no counter, or a MIG instance  unknown, as is all energy of an attempt that holds such a device
    no agent was there             the first reading after that is divided among those who held it before

Counters and sums are kept together, so that a start of the agent neither loses nor doubles anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final

from cotenant.agent.daemon.core.notes import Metered, MeteredAttempt
from cotenant.agent.daemon.core.remembered import AttemptKey

KEPT_EVERY_S: Final = 60.0


class EnergyMeter:
    def __init__(self, kept: Metered | None = None) -> None:
        """Goes on where the agent that was here before stopped."""
        kept = kept if kept is not None else Metered()
        self._counters = dict(kept.counters)
        self._used_mj = {(each.job_id, each.attempt): each.used_mj for each in kept.attempts}
        self._unread = set(self._counters)
        """Not read since this start."""
        self._there_before = frozenset(self._used_mj)
        self._kept_s = -KEPT_EVERY_S

    def take(self, uuid: str, counter_mj: int, duties: Mapping[AttemptKey, float]) -> None:
        """Takes a reading of a GPU's counter. `duties`: of the attempts that hold it."""
        before_mj = self._counters.get(uuid)
        self._counters[uuid] = counter_mj
        if before_mj is not None and counter_mj < before_mj:
            self._kept_s = -KEPT_EVERY_S  # What was used before could not be told from a later start.
        for key in duties:
            self._used_mj.setdefault(key, 0.0)
        if uuid in self._unread:
            self._unread.discard(uuid)
            duties = {key: duty for key, duty in duties.items() if key in self._there_before}
        if before_mj is None or not duties:
            return
        used_mj = counter_mj - before_mj if counter_mj >= before_mj else counter_mj
        total = sum(duties.values())
        for key, duty in duties.items():
            self._used_mj[key] += used_mj * (duty / total if total > 0.0 else 1.0 / len(duties))

    def used_j(self, key: AttemptKey, uuids: Collection[str]) -> float | None:
        """What an attempt has used so far, given the devices that it holds; None: unknown."""
        if not uuids or not self._counters.keys() >= set(uuids):
            return None
        return self._used_mj.get(key, 0.0) / 1000.0

    @property
    def known(self) -> Set[AttemptKey]:
        return self._used_mj.keys()

    def forget(self, gone: Collection[AttemptKey]) -> None:
        for key in gone:
            self._used_mj.pop(key, None)

    def to_keep(self, now_s: float | None) -> Metered | None:
        """Returns what the next start must know, if it is time to write that down. `now_s`: None: at once."""
        if not self._used_mj or (now_s is not None and now_s < self._kept_s + KEPT_EVERY_S):
            return None
        self._kept_s = self._kept_s if now_s is None else now_s
        attempts = (MeteredAttempt(*key, used_mj) for key, used_mj in self._used_mj.items())
        return Metered(counters=dict(self._counters), attempts=tuple(attempts))

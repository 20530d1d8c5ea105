"""slurm-multifactor: Slurm's default order, age + fair share + size + class, each 0 to 1, times weights.

Source: Slurm's multifactor priority plugin ("classic" fair share), all weights 1,000 as in RLTune section
5.4. Age: time waited / `max_age_s`, at most 1. Fair share: 2^-(share used / share due), where use is
GPU-seconds that fade with a half-life (PriorityDecayHalfLife) and every account that has used anything is due
the same. Size: GPUs of the cluster's; `favor_small` turns it round. Class: hp has it, spot has not (QOS).

Departs from Slurm in that shares are equal, that there is one partition, that use is counted when it is asked
for rather than every five minutes, and that a job whose host is lost is charged for it when it ends next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from cotenant.controller.domain import ON_DEVICES, Decision, Job, JobId, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Within
from cotenant.controller.policies.entries import ORDER, PolicyEntry
from cotenant.controller.policies.scored import Scored, waited_s
from cotenant.controller.policies.toolkit import OrderParameters

CHARGED_MAX = 10_000
ACCOUNTS_MAX = 10_000
PriorityWeight = Annotated[float, Within(0.0, 1e9)]


class MultifactorParameters(OrderParameters, frozen=True, kw_only=True):
    """Slurm's defaults, and RLTune's weights."""

    weight_age: PriorityWeight = 1000.0
    weight_fair_share: PriorityWeight = 1000.0
    weight_size: PriorityWeight = 1000.0
    weight_class: PriorityWeight = 1000.0
    max_age_s: Annotated[float, Within(1.0, 1e9)] = 604_800.0
    half_life_s: Annotated[float, Within(1.0, 1e9)] = 604_800.0
    favor_small: bool = False


class UsageRecord(msgspec.Struct, kw_only=True):
    """What accounts have used, decayed to one moment; and how much of it is from jobs that may come back."""

    at_s: float = 0.0
    used_gpu_s: dict[str, float] = {}
    charged_s: dict[JobId, float] = {}


class FairShareUsage:
    """Decaying GPU-seconds by account, a fold over the events."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._record = UsageRecord()

    def observe(self, view: View, event: ev.AnyEvent) -> None:
        """An attempt that has left its devices is charged, once."""
        job = _find_ended(view, event)
        if job is None:
            return
        charged_s, new_gpu_s = self._record.charged_s, self._new_gpu_s(job)
        charged_s.pop(job.job_id, None)
        charged_s[job.job_id] = _held_s(job)  # At the end: the oldest are forgotten first.
        if len(charged_s) > CHARGED_MAX:
            del charged_s[next(iter(charged_s))]
        self._fade(view.now_s)
        self._charge(account_of(job), new_gpu_s)

    def now(self, view: View, event: ev.AnyEvent | None = None) -> dict[str, float]:
        """Usage by account, including running attempts and the one whose end is not observed yet."""
        faded = self._fading(view.now_s - self._record.at_s)
        used = {account: gpu_s * faded for account, gpu_s in self._record.used_gpu_s.items()}
        just = _find_ended(view, event)
        for job in (*view.running.jobs_by_end(), *((just,) if just is not None else ())):
            here_s = view.now_s - job.phase_since_s if job.phase in ON_DEVICES else 0.0
            account = account_of(job)
            used[account] = used.get(account, 0.0) + self._new_gpu_s(job, here_s)
        return used

    def _new_gpu_s(self, job: Job, here_s: float = 0.0) -> float:
        """GPU-seconds not charged yet, decayed as if they had been one piece until now."""
        new_s = max(_held_s(job) + here_s - self._record.charged_s.get(job.job_id, 0.0), 0.0)
        return self._half_life_s / math.log(2.0) * (1.0 - self._fading(new_s)) * job.spec.gpus_min

    def _charge(self, account: str, gpu_s: float) -> None:
        used = self._record.used_gpu_s
        used[account] = used.get(account, 0.0) + gpu_s
        if len(used) > ACCOUNTS_MAX:
            del used[min(used, key=lambda each: used[each])]

    def _fade(self, now_s: float) -> None:
        faded = self._fading(now_s - self._record.at_s)
        self._record.at_s = now_s
        self._record.used_gpu_s = {a: gpu_s * faded for a, gpu_s in self._record.used_gpu_s.items()}

    def _fading(self, spent_s: float) -> float:
        return math.exp2(-spent_s / self._half_life_s)

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self._record)

    def load(self, state: bytes) -> None:
        self._record = msgspec.msgpack.decode(state, type=UsageRecord) if state else UsageRecord()


def _find_ended(view: View, event: ev.AnyEvent | None) -> Job | None:
    """The job whose attempt has left all its devices with this event."""
    job = view.jobs.get(event.job_id) if isinstance(event, ev.AttemptEnded) else None
    return None if job is None or job.phase in ON_DEVICES else job


def _held_s(job: Job) -> float:
    """Seconds on devices, in phases that are over."""
    return job.spent.load_s + job.spent.run_s + job.spent.pause_s


def account_of(job: Job) -> str:
    return f"{job.spec.organisation}/{job.spec.user}"


class Multifactor(Scored):
    """The policy that serves the job of highest priority first, by Slurm's multifactor plugin."""

    name = "slurm-multifactor"

    def __init__(self, parameters: MultifactorParameters) -> None:
        super().__init__(parameters)
        self._weights = parameters
        self._usage = FairShareUsage(parameters.half_life_s)

    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        return [-sum(factors) for factors in self.factors(view, jobs, event)]

    def factors(
        self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None = None
    ) -> list[tuple[float, float, float, float]]:
        """Age, fair share, size and class of each, times their weights."""
        weights, now_s, gpus = self._weights, view.now_s, max(len(view.devices), 1)
        used = self._usage.now(view, event)
        total, accounts = sum(used.values()) or 1.0, {account_of(job) for job in jobs} | used.keys()
        shares = {a: 2.0 ** (-len(accounts) * used.get(a, 0.0) / total) for a in accounts}
        return [
            (
                weights.weight_age * min(waited_s(job, now_s) / weights.max_age_s, 1.0),
                weights.weight_fair_share * shares[account_of(job)],
                weights.weight_size
                * (
                    1.0 - job.spec.gpus_min / gpus
                    if weights.favor_small
                    else min(job.spec.gpus_min / gpus, 1.0)
                ),
                weights.weight_class * (job.spec.job_class == "hp"),
            )
            for job in jobs
        ]

    def why(self, view: View, job: Job, rank: int) -> Reason:
        (factors,) = self.factors(view, [job])
        return because("multifactor", rank, *factors)

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        self._usage.observe(view, event)

    def save(self) -> bytes:
        return self._usage.save()

    def load(self, state: bytes) -> None:
        self._usage.load(state)


SLURM_MULTIFACTOR: Final = PolicyEntry(
    "Slurm's default: waiting time, fair share, size and class, each times a weight",
    Multifactor,
    MultifactorParameters.parse,
    group=ORDER,
    choose="people come from Slurm and want its order",
)

"""A policy that answers nonsense: jobs that do not exist, devices of others, times that are no times."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cotenant.controller.domain import (
    AnyAction,
    Compute,
    Decision,
    Defer,
    DeviceId,
    Hold,
    Job,
    JobId,
    Place,
    Preempt,
    Reason,
    Resize,
    Share,
    Wake,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View, why_waiting
from cotenant.controller.policies.base import Parameters, Stateless

WHY = because("sharing-off")


class Hostile(Stateless):
    name = "hostile"

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (float(hash(job.number) % 7),)

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        return WHY if reason.code == "next-event" else reason

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        chance = random.Random(f"{type(event).__name__} {view.now_s} {len(view.queue)}")
        jobs = [*view.jobs, JobId("77"), JobId("")]
        devices = [*view.devices, DeviceId("z/0")]
        return Decision(actions=tuple(self._any(chance, jobs, devices, view) for _ in range(12)))

    def _any(
        self, chance: random.Random, jobs: Sequence[JobId], devices: Sequence[DeviceId], view: View
    ) -> AnyAction:
        job_id = chance.choice(jobs)
        count = (
            chance.randint(view.jobs[job_id].spec.gpus_min, view.jobs[job_id].spec.gpus_max)
            if job_id in view.jobs and chance.random() < 0.8
            else chance.randrange(9)
        )
        some = tuple(chance.choices(devices, k=count))
        if chance.random() < 0.5:
            some = tuple(chance.sample(devices, min(count, len(devices))))
        steps = chance.choice((1, 1, 1, 1, 2, 4, 8, 0, -1, 10**9))
        match chance.randrange(9):
            case 0 | 1 | 2:
                return Place(job_id=job_id, devices=some, accumulation_steps=steps, reason=WHY)
            case 3 | 4:
                return Share(job_id=job_id, devices=some, accumulation_steps=steps, reason=WHY)
            case 5:
                return Preempt(job_id=job_id, for_job=chance.choice(jobs), reason=WHY)
            case 6:
                return Hold(job_id=job_id, reason=WHY)
            case 7:
                at_s = chance.choice((-1.0, float("nan"), float("inf"), view.now_s, view.now_s + 5))
                if chance.random() < 0.5:
                    return Defer(job_id=job_id, victims=(job_id,), until_s=at_s, reason=WHY)
                return Wake(at_s=at_s, reason=WHY)
            case _:
                if chance.random() < 0.5:
                    return Resize(job_id=job_id, devices=some, reason=WHY)
                return Compute(request_id=chance.randrange(5), kind="?", reason=WHY)


def make_hostile(name: str, parameters: Parameters) -> Hostile:
    assert name == "hostile"
    return Hostile()

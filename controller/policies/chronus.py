"""chronus: time in leases, as GFS section 4.1 compares with it: 20 minutes for hp jobs, 5 for spot jobs.

Source: Chronus (SoCC '21) section 3: the holder of a lease keeps its devices to the end of it; then the
policy decides anew who gets the next one. Hp jobs are its SLO jobs, spot jobs its best-effort ones: a spot
job whose lease is over leaves if an hp job waits that its devices help to place. An hp job gets its next
lease always. Whoever fits passes who does not.

Departs from Chronus in that no deadlines are known, so that SLO jobs are taken in the order of arrival
where Chronus solves a MILP; in that what is free is given at once, not at the next lease; and in that hp
jobs are not paused at the ends of their leases, since class hp never is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller.domain import AnyEvent, Decision, Job, Plan, Reason, View, Wake, because
from cotenant.controller.policies.base import Parameters, is_quiet
from cotenant.controller.policies.entry import CLASSES, PolicyEntry
from cotenant.controller.policies.toolkit import FreedDevices, TwoClasses, WakeUp, find_room, preemptible_jobs

NEARLY_S = 1e-6
"""Wake-up times may be rounded by this much."""


class ChronusParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    spot_lease_s: float = 300.0
    """Of hp jobs (20 minutes) every lease is renewed, so its length changes nothing."""

    def __post_init__(self) -> None:
        if not 10.0 <= self.spot_lease_s <= 1e6:
            raise ValueError("chronus: spot_lease_s must be 10 to 1000000 seconds")

    @classmethod
    def parse(cls, parameters: Parameters) -> ChronusParameters:
        """Raises ValueError for a wrong name, type or range."""
        return msgspec.convert(parameters, cls, strict=False)

    def as_parameters(self) -> Parameters:
        return msgspec.structs.asdict(self)


class Chronus(TwoClasses):
    name = "chronus"

    def __init__(self, parameters: ChronusParameters | None = None) -> None:
        super().__init__()
        self.parameters = parameters if parameters is not None else ChronusParameters()
        self._lease_end = WakeUp()

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        over = [
            each
            for each in preemptible_jobs(plan.view)
            if not plan.is_leaving(each.job_id) and self._left_s(each, plan.view.now_s) <= NEARLY_S
        ]
        over.sort(key=lambda each: (each.phase_since_s, each.number))
        return find_room(plan, job, iter(over))

    def _left_s(self, job: Job, now_s: float) -> float:
        """What is left of the job's lease; the first one began with its first step; 0 at the end of each."""
        lease_s = self.parameters.spot_lease_s
        passed_s = now_s - job.phase_since_s
        if passed_s < lease_s - NEARLY_S:
            return lease_s - passed_s
        into_s = passed_s % lease_s
        return 0.0 if min(into_s, lease_s - into_s) <= NEARLY_S * max(1.0, passed_s) else lease_s - into_s

    def decide(self, view: View, event: AnyEvent) -> Decision:
        decision = super().decide(view, event)
        placed = len(decision.actions)
        if is_quiet(view, event) or not view.hp.waiting or self._lease_end.is_set(view.now_s):
            return decision
        ends = [
            left_s for each in preemptible_jobs(view) if (left_s := self._left_s(each, view.now_s)) > NEARLY_S
        ]
        if not ends or placed >= view.queued_count():
            return decision
        wake = Wake(at_s=view.now_s + min(ends), reason=because("lease-end"))
        return Decision(actions=(*decision.actions, wake))

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("lease-over", newcomer.job_id, self.parameters.spot_lease_s)

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        self._lease_end.observe(view.now_s, decision)

    def save(self) -> bytes:
        return self._lease_end.save()

    def load(self, state: bytes) -> None:
        self._lease_end.load(state)


CHRONUS: Final = PolicyEntry(
    "two classes: spot jobs give way when a lease is over; by arrival, and whoever fits passes",
    Chronus,
    ChronusParameters.parse,
    group=CLASSES,
    choose="spot jobs must be sure of five minutes at a time (Chronus)",
)

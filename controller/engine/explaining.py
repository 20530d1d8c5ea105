"""Why a job is where it is: what would have to change for a queued one to start, the first things first.

Rule: explaining changes nothing. It looks at the ledger as of the moment of the question.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import DeviceId, Job, JobSpec, Phase, Reason, because, is_type_for
from cotenant.controller.engine.stages import bookings, parts
from cotenant.controller.engine.stages.admission import Admission
from cotenant.controller.engine.stages.lateness import Lateness
from cotenant.controller.engine.stages.priority_guard import why_kept
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.planning import why_impossible, why_waiting

LACK_DEVICES: Final = frozenset(("first-no-devices", "behind-no-devices", "fragmented"))
"""Reasons of a job for which some devices are free and too few: whether it could share others comes after."""
NOT_OFFERED_SHOWN: Final = 4
"""The most devices that are named as not offered."""
PERMANENT: Final = frozenset(
    (
        "limit-never",
        "never-fits",
        "no-such-type",
        "no-such-feature",
        "no-containers",
        "needs-memory",
        "needs-cpus",
        "needs-host-memory",
        "needs-one-host",
    )
)
"""Reasons that stand for as long as hosts and limits stay as they are."""


class Explaining:
    """Explains jobs of one ledger under the policy in force."""

    def __init__(self, ledger: Ledger, current: CurrentPolicy, admission: Admission, late: Lateness) -> None:
        self._ledger, self._current, self._admission, self._lateness = ledger, current, admission, late

    def explain(self, job: Job) -> list[Reason]:
        """Explains for a queued job what would have to change (what no host has, what is kept for whom, what
        the policy says, who goes before), then what led here; for any other its reason."""
        if job.phase is not Phase.QUEUED:
            return [job.reason]
        ledger = self._ledger
        turn = self._lateness.when(job, ledger.now_s)
        causes, kept = self._causes(job), bookings.why_kept(ledger, job)
        if kept and causes[0].code in LACK_DEVICES:
            causes, kept = kept, causes
        return [
            *causes,
            *kept,
            *parts.why_waiting(ledger, job),
            *self._admission.explain(ledger, job),
            *(() if turn is None else (turn,)),
            *self._not_offered(job),
            job.reason,
        ]

    def never_fits(self, spec: JobSpec) -> Reason | None:
        """Why a job like this could never start on the hosts known now; None if it could, or if no host has
        joined yet."""
        ledger = self._ledger
        if not ledger.hosts:
            return None
        probe = Job(spec=spec, number=0, submitted_s=ledger.now_s, reason=because("submitted", spec.user))
        reason = self._admission.never(spec) or why_impossible(ledger, probe)
        return reason if reason is not None and reason.code in PERMANENT else None

    def _causes(self, job: Job) -> list[Reason]:
        """What the policy says of a queued job, behind what would have to change before that matters."""
        ledger, current = self._ledger, self._current
        impossible = why_impossible(ledger, job)
        if impossible is not None:
            return [impossible]
        says = current.policy.explain(ledger, job)
        if says.code == "next-event" and job.reason.code == bookings.KEPT_BACK:
            says = job.reason
        kept = why_kept(ledger, job, lambda other: current.holds_back(ledger, other))
        if kept is not None:
            return [kept] if says.code == "next-event" else [kept, says]
        if not (current.traits.shares and ledger.free.everywhere):
            return [says]
        lacks = why_waiting(ledger, job, current.name)
        return [lacks, says] if lacks.code in LACK_DEVICES and lacks != says else [says]

    def _not_offered(self, job: Job) -> list[Reason]:
        """Devices that would suit the job and take no work now."""
        scheduling_class = self._ledger.queue.class_of(job)
        out: list[tuple[DeviceId, str]] = [
            (device.device_id, device.note)
            for device in self._ledger.devices.values()
            if not device.healthy
            and device.note
            and device.device_id not in self._ledger.bookings.saved.closed
            and is_type_for(scheduling_class.gpu_type, device.type)
        ]
        return [because("not-offered", device_id, note) for device_id, note in out[:NOT_OFFERED_SHOWN]]

"""Why a job is where it is: what would have to change for a queued one to start, the first things first.

Rule: explaining changes nothing. It looks at the ledger as of the moment of the question, and whoever asks
for several jobs or several lines asks the same `Explaining`: all that is said together is of one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from cotenant.controller import domain, planning
from cotenant.controller.engine.stages import bookings, parts
from cotenant.controller.engine.stages.admission import Admission
from cotenant.controller.engine.stages.lateness import Lateness
from cotenant.controller.engine.stages.limits import is_over_limit
from cotenant.controller.engine.stages.priority_guard import why_kept
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.ledger import Ledger

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


COUNTED_DOWN: Final = frozenset(("back-off", "restored"))
"""Reasons of blocked jobs that begin with the seconds that a job waits, from when it was blocked."""
STARTS: Final = "next-event"


class Causes(NamedTuple):
    """Why a job is where it is, as of one moment."""

    lines: list[domain.Reason]
    is_whole: bool
    """Whether nothing else matters: as long as the first line is true, no other job and no device decides."""


class Explaining:
    """Explains jobs of one ledger at one moment, under the policy in force."""

    def __init__(self, ledger: Ledger, current: CurrentPolicy, admission: Admission, late: Lateness) -> None:
        self._ledger, self._current, self._admission, self._lateness = ledger, current, admission, late
        self._impossible: dict[tuple[planning.SchedulingClass, str], domain.Reason] = {}
        """What was said of the first job of a kind that no host that takes work could hold."""

    @cached_property
    def line(self) -> planning.QueueStanding:
        """Who goes before whom in the queue."""
        return planning.QueueStanding(self._ledger)

    def reason_now(self, job: domain.Job) -> domain.Reason:
        """The reason that is true of a job now, in one sentence; of all waiting jobs together it costs one
        look at the queue."""
        ledger, said = self._ledger, job.reason
        match job.phase:
            case domain.Phase.QUEUED if not self.line.is_possible(job):
                container = job.spec.launch.container
                kind = ledger.queue.class_of(job), container.image if container is not None else ""
                if kind not in self._impossible:
                    self._impossible[kind] = self.explain(job)[0]
                return self._impossible[kind]
            case domain.Phase.QUEUED:
                return self._behind(job) or self.explain(job)[0]
            case domain.Phase.LOADING | domain.Phase.RUNNING if job.placement is not None:
                here = ledger.holdings.neighbours(job)
                return holds(here, job.placement.fraction) if said == job.placement.reason else said
            case domain.Phase.RESERVED if job.waits_for:
                return domain.because(
                    "waits-for-victims", " and ".join(f"job {each}" for each in job.waits_for)
                )
            case domain.Phase.BLOCKED if said.code in COUNTED_DOWN:
                wait_s, *others = said.operands
                assert isinstance(wait_s, int | float)
                left_s = max(0.0, wait_s - (ledger.now_s - job.phase_since_s))
                return domain.because(said.code, left_s, *others)
            case domain.Phase.BLOCKED if is_over_limit(job) and self._admission.limits is not None:
                return self._admission.limits.why_over(job) or said
        return said

    def causes(self, job: domain.Job) -> Causes:
        """All that keeps a job where it is; of one that waits in the queue first who goes before it."""
        if job.phase is not domain.QUEUED:
            return Causes([self.reason_now(job)], is_whole=True)
        lines = self.explain(job)
        if self._why_no_host(job) is not None:
            return Causes(lines, is_whole=True)
        behind = self._behind(job) if self.line.is_possible(job) else None
        if behind is None:
            return Causes(lines, is_whole=lines[0].code == STARTS)
        return Causes(
            [behind, *(each for each in lines if each.code not in (STARTS, "behind"))], is_whole=False
        )

    def _behind(self, job: domain.Job) -> domain.Reason | None:
        """Who goes before a job that waits in the queue."""
        ahead = self.line.ahead_of(job)
        if ahead is None:
            return None
        first, count = ahead
        return domain.because("behind-others", first.job_id, f" and {count - 1} more" if count > 1 else "")

    def explain(self, job: domain.Job) -> list[domain.Reason]:
        """Explains for a queued job what would have to change (what no host has, what is kept for whom, what
        the policy says), then what led here; for any other its reason. What makes all else moot stands
        alone."""
        if job.phase is not domain.QUEUED:
            return [job.reason]
        ledger = self._ledger
        impossible = self._why_no_host(job)
        if impossible is not None:
            is_alone = not any(host.takes_work for host in ledger.hosts.values())
            return [impossible, *(() if is_alone else self._not_offered(job))]
        turn = self._lateness.when(job, ledger.now_s)
        causes, kept = self._causes(job), bookings.why_kept(ledger, job)
        if causes[0].code == STARTS:
            if not kept:
                return causes[:1]
            causes = []
        if kept and causes and causes[0].code in planning.LACK_DEVICES:
            causes, kept = kept, causes
        return [
            *causes,
            *kept,
            *parts.why_waiting(ledger, job),
            *self._admission.explain(ledger, job),
            *(() if turn is None else (turn,)),
            *self._not_offered(job),
            *(() if job.reason.code == "submitted" else (job.reason,)),
        ]

    def never_fits(self, spec: domain.JobSpec) -> domain.Reason | None:
        """Why a job like this could never start on the hosts known now; None if it could, or if no host has
        joined yet."""
        ledger = self._ledger
        if not ledger.hosts:
            return None
        probe = domain.Job(
            spec=spec, number=0, submitted_s=ledger.now_s, reason=domain.because("submitted", spec.user)
        )
        reason = self._admission.never(spec) or planning.why_impossible(ledger, probe)
        return reason if reason is not None and reason.code in PERMANENT else None

    def _causes(self, job: domain.Job) -> list[domain.Reason]:
        """What the policy says of a queued job, behind what would have to change before that matters."""
        ledger, current = self._ledger, self._current
        says = current.policy.explain(ledger, job)
        if says.code == STARTS and job.reason.code == bookings.KEPT_BACK:
            says = job.reason
        kept = why_kept(ledger, job, lambda other: current.holds_back(ledger, other))
        if kept is not None:
            return [kept] if says.code == STARTS else [kept, says]
        if not (current.traits.shares and ledger.free.everywhere):
            return [says]
        lacks = planning.why_waiting(ledger, job, current.name)
        return [lacks, says] if lacks.code in planning.LACK_DEVICES and lacks != says else [says]

    def _why_no_host(self, job: domain.Job) -> domain.Reason | None:
        """What keeps a job from running whatever the queue; also where all hosts that could hold it take no
        work now."""
        ledger, scheduling_class = self._ledger, planning.scheduling_class_of(job)
        impossible = planning.why_impossible(ledger, job)
        if impossible is not None or ledger.kept or ledger.sizes.now(scheduling_class) >= job.spec.gpus_min:
            return impossible
        hosts = (host for host in ledger.hosts.values() if planning.suits(host, scheduling_class))
        away = [f"{host.host_id} is {host.state}" for host in hosts if not host.takes_work]
        return domain.because("hosts-away", ", ".join(away)) if away else None

    def _not_offered(self, job: domain.Job) -> list[domain.Reason]:
        """Devices that would suit the job and take no work now."""
        scheduling_class = self._ledger.queue.class_of(job)
        out: list[tuple[domain.DeviceId, str]] = [
            (device.device_id, device.note)
            for device in self._ledger.devices.values()
            if not device.healthy
            and device.note
            and device.device_id not in self._ledger.bookings.saved.closed
            and domain.is_type_for(scheduling_class.gpu_type, device.type)
        ]
        return [domain.because("not-offered", device_id, note) for device_id, note in out[:NOT_OFFERED_SHOWN]]


def holds(neighbours: Sequence[domain.JobId], fraction: float) -> domain.Reason:
    """With whom a job on devices is there now. `fraction`: the part of its device that is its own."""
    others = " and ".join(f"job {each}" for each in neighbours)
    if fraction < 1.0:
        return (
            domain.because("holds-part-beside", fraction, others)
            if others
            else domain.because("holds-part", fraction)
        )
    return domain.because("holds-beside", others) if others else domain.because("holds-alone")

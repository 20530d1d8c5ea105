"""Why a job waits, in Slurm's words: scripts look for these.

Rule: a word comes from the code of a reason, never from its text. Every code of the domain has one, by
itself or by the family that it begins with (`quota-`).
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import Phase
from cotenant.controller.wire import clients as wire

NO_REASON: Final = "None"
HELD: Final = "JobHeldUser"
_CODES: Final = {
    "Dependency": "after-job",
    "DependencyNeverSatisfied": "after-failed",
    "BeginTime": "begins-later back-off",
    "JobArrayTaskLimit": "array-limit",
    HELD: "held-by",
    "JobHeldAdmin": "held-infra held-idle workdir-missing",
    "AssocMaxJobsLimit": "limit-jobs limit-devices",
    "AssocMaxGRESPerJob": "limit-never",
    "QOSGrpGRES": "quota-",
    "BadConstraints": "never-fits no-such- no-containers needs-",
    "ReqNodeNotAvail": "no-hosts no-usable-host hosts-rest hosts-away pinned drained leaving suspect host- "
    "not-answering not-offered policy-absent",
    "Cleaning": "stray restored number-taken",
    "Priority": "submitted again-by set-by priority priority- fair-share behind behind- kept-for kept-for- "
    "promise- turn turn- aged multifactor learned- scored wfq- elastic- next-class next-demotion looks-every "
    "preempted- evicted- lease- requeued-by reservation-replaced ahead",
    "Resources": "held-by-users booking- kept kept-unforeseen first-no-devices fragmented no-host-room "
    "next-event would-fit outlives outlives- outranks-nobody gains-nothing devices- none-lent own "
    "not-earned load-earned not-preemptible costs-wait sharing- packing- part- deferred deferred- refused- "
    "waits-for-victims parted- idle-works crowded-out outgrown outmodelled otherwise infra-failed "
    "gang-peer-ended fenced stopped-as checkpoint-deadline leave-first",
    NO_REASON: "fetching pulling takes-place placed-together free-devices-in-order backfilled- preempts "
    "preempts- costs-share costs-preempt fit forecast-training evicts evicts- idle- beside-idle unsplit "
    "gpu-fault mps-limit torch-limit kernel-limit no-memory-limit trouble holds- co-tenants- alone-on-mig "
    "resumed- cancelled-by time-limit time-limit- budget finished finished-lost profiled user-failed "
    "throughput-",
}
"""Slurm has no word for a limit of devices that one user holds at once; it has that of running jobs."""
WORDS: Final = {code: word for word, codes in _CODES.items() for code in codes.split()}


def reason_word(code: str) -> str:
    """Slurm's word for a reason. One that this version does not know (a newer controller's) has none."""
    family = max((each for each in WORDS if each[-1] == "-" and code.startswith(each)), key=len, default="")
    return WORDS.get(code) or WORDS.get(family, NO_REASON)


def why_waiting(job: wire.JobView) -> str:
    """Slurm's word for why a job waits; `None` of one that does not."""
    if job.phase not in (Phase.BLOCKED, Phase.HELD, Phase.QUEUED, Phase.RESERVED):
        return NO_REASON
    word = reason_word(job.reason_code)
    return word if job.phase is not Phase.HELD or word.startswith("JobHeld") else HELD

"""What a fatal fault of a GPU means for the job that ended with it, and for those it shared with.

Rule: nobody loses more than the time since the last checkpoint, and nobody is failed for another's fault. A
job that had its device to itself is its user's to mend, as any crash; all others go on later. The pair is
kept apart for a time that doubles with each fault, since one fault may be chance and ten are not; a job with
enough evidence against it runs alone from then on. A device that failed by itself blames no pair, and no
host: the agent has taken it out already.

A gang's hosts say how it ended in any order, and who lost a peer often says so first: then a fault that
another host tells of is still the reason (`peer` is only a consequence), and nobody is blamed before all have
said.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain.events import AttemptEnded, GpuFaultRole
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.reasons import because
from cotenant.controller.engine.dispatch import Dispatch

EVIDENCE: Final[dict[GpuFaultRole, int]] = {"culprit": 2, "suspect": 1}


def take_in(dispatch: Dispatch, job: Job, event: AttemptEnded) -> None:
    """Before the job leaves its devices: who else is on them can still be seen."""
    if not event.gpu_fault or event.outcome != "infra-failed":
        return
    if job.stop_cause in ("", "peer"):
        job.stop_cause, job.stop_reason = (
            "faulted",
            because("gpu-fault", event.detail or "a fault of its GPU"),
        )
    evidence = EVIDENCE.get(event.gpu_fault, 0)
    job.fault_evidence += evidence
    ledger = dispatch.ledger
    for device_id in ledger.holdings.parts(job.placement.devices)[event.host_id] if job.placement else ():
        for other_id in ledger.tenants(device_id):
            other = ledger.jobs[other_id]
            if other is not job and event.gpu_fault != "device":
                struck = (job, other) if evidence else (other, job)
                key, until_s = ledger.pairs.faulted(*struck, ledger.now_s)
                dispatch.wake_at(until_s, "reunite", key, 0)

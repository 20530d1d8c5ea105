"""What a change of a job will do, before anybody says yes."""

from __future__ import annotations

from typing import Literal

from cotenant.controller.domain import ON_DEVICES
from cotenant.controller.present import units
from cotenant.controller.present.units import duration
from cotenant.controller.wire import clients as wire

JobVerb = Literal["cancel", "hold", "release"]


def consequence(verb: JobVerb, job: wire.JobView) -> str:
    """What will happen, before anybody says yes."""
    if verb == "hold":
        return "It is not started until somebody releases it."
    if verb == "release":
        return "It queues again, and starts when the policy gives it devices."
    if job.phase not in ON_DEVICES:
        return "It leaves the queue and is not started again." + _lost_work(job)
    others = " and ".join(f"job {each}" for each in job.co_tenants)
    beside = f" {others[:1].upper()}{others[1:]} beside it keeps the devices." if others else ""
    return f"It ends now on {', '.join(job.devices)}, and saves nothing more.{_lost_work(job)}{beside}"


def _lost_work(job: wire.JobView) -> str:
    """What of its work is lost and what stays."""
    if not job.step:
        return ""
    if not job.durable_step:
        return f" Its {units.plural(job.step, 'step')} ({duration(job.run_s)}) are lost."
    kept = f" Its checkpoint of step {job.durable_step} stays for a while"
    lost = max(0, job.step - job.durable_step)
    return (
        f"{kept}, {units.plural(lost, 'step')} after it {'is' if lost == 1 else 'are'} lost."
        if lost
        else f"{kept}."
    )

"""Jobs that hold their devices idle: what is done about them, and that they work again.

Rule: whoever is idle, the host's agent says; the controller journals it (`executors/agents/idling.py`). That
others may use the devices, and must leave them again, is the stage `stages/lending.py`.
"""

from __future__ import annotations

from cotenant.controller.domain import IdleSpell, Phase, idle_reason
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.dispatch import Dispatch


def on_idle(dispatch: Dispatch, event: ev.IdleSeen) -> None:
    """A job has come to another stage of being idle, or works again."""
    ledger, job = dispatch.ledger, dispatch.current(event.job_id, event.attempt)
    if job is None:
        return
    if event.since_s is None or not event.stage:
        ledger.records.idle(job, None)
        return
    spell = IdleSpell(
        since_s=event.since_s,
        stage=event.stage,
        told_s=ledger.now_s,
        lends=event.stage == "share" or job.lends,
    )
    ledger.records.idle(job, spell)
    if event.stage == "stop" and job.phase is Phase.RUNNING:
        dispatch.stop(job, "idle", idle_reason("stop", ledger.now_s - event.since_s), save=True)

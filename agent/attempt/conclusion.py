"""The result of an attempt: the verdict of `ends.decide`, and the last facts of its status.

Rule: made once, when no process is left; what a status says is said here again, for the last status may have
been lost.
"""

from __future__ import annotations

from cotenant.agent.attempt.ends import Ending, decide
from cotenant.agent.records import Order, Result, Status


def concluded(order: Order, status: Status, ending: Ending, *, unclean: bool) -> Result:
    verdict = decide(ending)
    return Result(
        job_id=order.job_id,
        attempt=order.attempt,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        detail=verdict.detail,
        step=status.step,
        workdir_missing=verdict.workdir_missing,
        out_of_memory=verdict.out_of_memory,
        cuda_fault=verdict.cuda_fault,
        durable=status.durable,
        farewell=status.farewell,
        unclean=unclean,
        first_step=status.first_step,
        resumable=status.resumable,
        accumulates=status.accumulates,
        profile=status.profile,
        profile_no=status.profile_no,
        profile_complete=status.profile_complete,
        accumulates_note=status.accumulates_note,
        resumable_note=status.resumable_note,
    )

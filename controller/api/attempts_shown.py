"""What attempts did, as users see it: into how many parts their ranks cut batches, and how they were resumed.
Pure.

Rule: what ranks have said counts; what was ordered stands in only where they have said nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from operator import or_

import msgspec

from cotenant.controller.api.moment import Now
from cotenant.controller.domain import ON_DEVICES, Job, JobId, Placement
from cotenant.controller.history import AttemptRecord, JobRecord
from cotenant.controller.wire import AttemptProgress
from cotenant.controller.wire import clients as wire


def told_now(record: JobRecord, telemetry: Mapping[JobId, AttemptProgress]) -> JobRecord:
    """The record, with what the attempt on devices has told since."""
    job, news = record.job, telemetry.get(record.job.job_id)
    if not record.attempts or news is None or job.phase not in ON_DEVICES:
        return record
    *earlier, newest = record.attempts
    if news.attempt != newest.attempt:
        return record
    attempts = (*earlier, msgspec.structs.replace(newest, words=news.words))
    return JobRecord(job=job, attempts=attempts, notes=record.notes)


def s_used(attempt: AttemptRecord) -> tuple[int, ...]:
    """Into how many parts the attempt's ranks have cut their batches, in order; as ordered, if they have not
    said."""
    return tuple(each.s for each in attempt.words.parts) or (attempt.accumulation_steps,)


def sub_batch_at(steps: int, job: Job, ordered: Placement | AttemptRecord | None) -> int | None:
    """The rows of a part, where a batch has so many."""
    if ordered is None or steps == ordered.accumulation_steps or job.batch_size is None:
        return ordered.sub_batch if ordered is not None else None
    return -(-job.batch_size // steps)


def attempt_views(records: Sequence[AttemptRecord], now: Now, *, whole: bool) -> tuple[wire.AttemptView, ...]:
    """A job's attempts; `whole`: for a reader of its log. What one has drawn in parts, all later ones have in
    their state."""
    is_equivalent = accumulate((each.words.is_equivalent for each in records), or_)
    return tuple(map(_attempt_view, records, repeat(now), is_equivalent, repeat(whole)))


def _attempt_view(record: AttemptRecord, now: Now, is_equivalent: bool, whole: bool) -> wire.AttemptView:
    return wire.AttemptView(
        attempt=record.attempt,
        devices=record.devices,
        co_tenants=record.co_tenants,
        accumulation_steps=s_used(record)[-1],
        parts=record.words.parts,
        equivalent=is_equivalent,
        outcome=record.outcome,
        reason=record.reason if whole else record.public_reason,
        cause=record.cause,
        exact=record.exact and not is_equivalent,
        proven=record.proven,
        launch=record.launch,
        launch_why=record.launch_why,
        start_step=record.start_step,
        first_step=record.first_step,
        end_step=record.end_step,
        launched_at=now.utc(record.launched_s),
        first_step_at=now.utc_if(record.first_step_s),
        start_assumed_at=now.utc_if(record.assumed_s),
        stop_requested_at=now.utc_if(record.stop_requested_s),
        ended_at=now.utc_if(record.ended_s),
    )

"""What the agent throws away, and when. Pure.

Rule: only what the controller has confirmed, and only by the agent's own age: a clock that jumps a month
ahead must not cost a checkpoint. A fence goes last, and leaves the number of the command that
made it superfluous, so that a start from before still cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import AgentConfig, Keep, RemoveAttempt, RemoveCheckpoints
from cotenant.agent.daemon.core.memory import FENCES_KEPT, AgentMemory
from cotenant.agent.daemon.core.notes import Aged, Dropped, Unfenced
from cotenant.agent.daemon.core.remembered import Attempt, JobKey
from cotenant.controller.domain import CommandId

PERIOD_S: Final = 3600.0
ENDED_KEPT: Final = 5_000
"""Ended attempts whose folder and record are kept; beyond it the oldest go early."""

PruningStep = Keep | RemoveAttempt | RemoveCheckpoints


def due(
    memory: AgentMemory, config: AgentConfig, age_s: float, checkpoint_folder: Callable[[JobKey], str]
) -> Iterator[PruningStep]:
    """Yields the pruning steps that are due, lazily: the caller folds each note before the next is
    decided."""
    yield Keep(note=Aged(age_s=age_s))
    for attempt in _old_attempts(memory, age_s - config.prune_after_s):
        yield Keep(note=Dropped(job_id=attempt.job_id, attempt=attempt.attempt))
        if attempt.has_folder:
            yield RemoveAttempt(job_id=attempt.job_id, attempt=attempt.attempt)
    with_attempts = {attempt.job for attempt in memory.attempts.values()}
    unheard = {a.job for a in memory.attempts.values() if a.settled_age_s is None}
    for job, forgotten in list(memory.forgotten.items()):
        if not forgotten.removed and job not in unheard:
            if forgotten.age_s > age_s - config.keep_checkpoints_s:
                continue
            yield RemoveCheckpoints(folder=checkpoint_folder(job))
            forgotten = msgspec.structs.replace(forgotten, removed=True)
            yield Keep(note=forgotten)
        if forgotten.removed and job not in with_attempts:
            yield RemoveCheckpoints(
                folder=checkpoint_folder(job)
            )  # A crash may have cut the first one short.
            yield _drop_fence(job, forgotten.command_id)
    yield from _old_fences(memory, with_attempts)


def _old_attempts(memory: AgentMemory, before_age_s: float) -> list[Attempt]:
    """Settled attempts, oldest first: all from before that age, and what is above the bound."""
    settled = [(a.settled_age_s, a.key, a) for a in memory.attempts.values() if a.settled_age_s is not None]
    settled.sort(key=lambda each: each[:2])
    surplus = max(0, len(settled) - ENDED_KEPT)
    return [a for index, (age_s, _, a) in enumerate(settled) if index < surplus or age_s <= before_age_s]


def _drop_fence(job: JobKey, stale_below: CommandId) -> Keep:
    return Keep(note=Unfenced(job_id=job[0], stale_below=stale_below, job_epoch=job[1]))


def _old_fences(memory: AgentMemory, with_attempts: set[JobKey]) -> Iterator[PruningStep]:
    surplus = len(memory.fences) - FENCES_KEPT
    if surplus <= 0:
        return
    free = [(fence.command_id, job) for job, fence in memory.fences.items() if job not in with_attempts]
    for command_id, job in sorted(free)[:surplus]:
        yield _drop_fence(job, command_id)

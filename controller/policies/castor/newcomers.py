"""Waiting jobs beside all tenants at once: what `ranked` and `balances` reckon with, as matrices.

Rule: a row says what asking for that job alone would say, to the last bit. Every entry is made by the same
operations in the same order, whichever other jobs are asked for; a slot that is taken meanwhile only drops
out.

A decision tries up to `lookahead` jobs beside all tenants: O(lookahead x tenants) operations on numbers,
and the ratios of each kind of newcomer beside each kind of tenant. One job after the other that would be a
few dozen calls of numpy for each job; together it is a few dozen calls. Whoever could find partners is then
looked at alone: O(tenants log tenants) for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import Job, View
from cotenant.controller.policies.toolkit import (
    Mask,
    Numbers,
    ShareableSlots,
    SubBatch,
    known_batches,
    least_slowdown,
)

Counts = NDArray[np.int64]


class NewcomerTable(NamedTuple):
    """n jobs and r slots; jobs of unknown length or memory have no row."""

    rows: dict[int, int]
    """A job's number -> its row."""
    jobs: list[Job]
    mine_s: Numbers
    """Remaining time alone; shape (n, 1)."""
    slowdown: Numbers
    """Step time at the sub-batch that fits beside the tenant / at the whole batch; NaN: none fits. (n, r)"""
    mine: Numbers
    """Interference ratio of the newcomer, and of the tenant; (n, r)."""
    theirs: Numbers
    able: Mask
    """Whether the place suits the job and the pair may be made; (n, r)."""


def beside_all(view: View, jobs: Sequence[Job], slots: ShareableSlots) -> NewcomerTable:
    """Of these jobs, in the order of the slots as they are now."""
    asked = [
        (job, choices)
        for job in jobs
        if job.known_left_s(view.now_s) is not None and (choices := known_batches(job, slots.batches))
    ]
    able = [job for job, _ in asked]
    kinds, of = _kinds(able, slots)
    ratios = [slots.ratios(job) for job in kinds]
    none = np.empty((0, len(slots)))
    mine = np.array([r.mine for r in ratios])[of] if ratios else none
    theirs = np.array([r.theirs for r in ratios])[of] if ratios else none
    allowed = np.array([r.allowed for r in ratios])[of] if ratios else none.astype(np.bool_)
    for row, job in enumerate(able):
        admitted = slots.admitted(job, view.scheduling_class(job))
        if admitted is not None:
            allowed[row] &= admitted
    return NewcomerTable(
        {job.number: row for row, job in enumerate(able)},
        able,
        np.array([job.remaining_s for job in able], dtype=np.float64).reshape(-1, 1),
        _least_each([choices for _, choices in asked], slots.left_mib()),
        mine,
        theirs,
        allowed,
    )


def may_be_whole(view: View, jobs: Sequence[Job], slots: ShareableSlots, offered: Mask) -> list[bool]:
    """Whether each job's gang could be whole at some place: with the devices of the slots that are offered
    there, at least one of them, and what is free. What fails now fails for the rest of the decision, in which
    slots are only taken and free devices only given away.

    Args:
        offered: by job and slot; shape (n, r).
    """
    gpus: Counts = np.array([job.spec.gpus for job in jobs], dtype=np.int64)
    by_place: Counts = offered.astype(np.int64) @ slots.devices_at()
    everywhere: Counts = by_place.sum(axis=1)
    whole: Mask = (by_place > 0) & (by_place + slots.free_at() >= gpus.reshape(-1, 1))
    anywhere: Mask = (everywhere > 0) & (everywhere + slots.free_everywhere() >= gpus)
    is_wide: Mask = np.array([slots.is_wide(view, job) for job in jobs], dtype=np.bool_)
    found: list[bool] = np.where(is_wide, anywhere, np.any(whole, axis=1)).tolist()
    return found


def _kinds(jobs: Sequence[Job], slots: ShareableSlots) -> tuple[list[Job], list[int]]:
    """One job of each kind, and for every job which of them is its like."""
    at: dict[object, int] = {}
    first: list[Job] = []
    of: list[int] = []
    for job in jobs:
        kind = slots.kind(job)
        if kind not in at:
            at[kind] = len(first)
            first.append(job)
        of.append(at[kind])
    return first, of


def _least_each(choices: Sequence[tuple[SubBatch, ...]], left_mib: Numbers) -> Numbers:
    """`least_stretch` for each job; most cannot be split, and are looked at together."""
    needs = np.array([each[0].needed_mib for each in choices], dtype=np.float64).reshape(-1, 1)
    found: Numbers = np.where(needs <= left_mib, 1.0, np.nan)
    for row, each in enumerate(choices):
        if len(each) > 1:
            found[row] = least_slowdown(each, left_mib)
    return found

"""Waiting jobs beside all tenants at once: what `ranked` and `balances` reckon with, as matrices.

Rule: a row equals the answer for that job alone, to the last bit. The same operations in the same order make
every entry, whichever other jobs are asked for; a slot that is taken meanwhile only drops out.

A decision tries up to `lookahead` jobs beside all tenants: O(lookahead x tenants) operations on numbers.
It asks once what jobs of a kind have in common: how their batch can be split, the
ratios beside each kind of tenant, where they may go. One job after the other that would be a few dozen calls
of numpy for each job; together it is a few dozen calls. Whoever could find partners is then looked at alone:
O(tenants log tenants) for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import GUESSES, Job, SchedulingClass, View
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

    jobs: list[Job]
    """In the order of their rows: those that are alike stand together."""
    classes: list[SchedulingClass]
    """One entry per kind of jobs that are alike."""
    of: NDArray[np.intp]
    """Row -> its kind. Shape (n,)"""
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
    """The table of these jobs, with the slots in their present order."""
    alike: dict[tuple[SchedulingClass, object], list[Job]] = defaultdict(list)
    for job in jobs:
        if job.remaining_s is not None and job.estimate_source not in GUESSES:  # `known_left_s`: it waits.
            like = (job.spec.launch.argv, job.spec.batch_size, job.accumulates, id(job.profile))
            alike[view.scheduling_class(job), like] += [job]
    splits = [(known_batches(here[0], slots.batches), key[0], here) for key, here in alike.items()]
    kinds = [(choices, wanted, here) for choices, wanted, here in splits if choices]
    able, classes = [job for *_, here in kinds for job in here], [wanted for _, wanted, _ in kinds]
    of = np.array([kind for kind, (*_, here) in enumerate(kinds) for _ in here], dtype=np.intp)
    ratios = slots.ratios([here[0] for *_, here in kinds], classes)
    allowed = ratios.allowed[of]
    for row, job in enumerate(able):
        if job.co_tenants or slots.is_one_uid:
            allowed[row] &= slots.admitted(job)
    return NewcomerTable(
        able,
        classes,
        of,
        np.array([job.remaining_s for job in able], dtype=np.float64).reshape(-1, 1),
        _least_each([choices for choices, *_ in kinds], slots.left_mib())[of],
        ratios.mine[of],
        ratios.theirs[of],
        allowed,
    )


def may_be_whole(table: NewcomerTable, slots: ShareableSlots, offered: Mask) -> dict[int, int]:
    """The jobs whose gang could be whole at some place, number -> row: with the devices of the slots that are
    offered there, at least one of them, and what is free. What fails now fails for the rest of the decision,
    in which slots are only taken and free devices only given away.

    Args:
        offered: by job and slot; shape (n, r).
    """
    gpus: Counts = np.array([wanted.gpus for wanted in table.classes], dtype=np.int64)[table.of]
    by_place: Counts = offered.astype(np.int64) @ slots.devices_at()
    everywhere: Counts = by_place.sum(axis=1)
    whole: Mask = (by_place > 0) & (by_place + slots.free_at() >= gpus.reshape(-1, 1))
    anywhere: Mask = (everywhere > 0) & (everywhere + slots.free_everywhere() >= gpus)
    wide = {wanted for wanted in set(table.classes) if slots.is_wide(wanted)}
    is_wide: Mask = np.array([wanted in wide for wanted in table.classes], dtype=np.bool_)[table.of]
    rows = np.where(is_wide, anywhere, whole.any(axis=1)).nonzero()[0]
    return {table.jobs[row].number: row for row in rows.tolist()}


def _least_each(choices: Sequence[tuple[SubBatch, ...]], left_mib: Numbers) -> Numbers:
    """`least_slowdown` for each job; most cannot be split, and are handled together."""
    needs = np.array([each[0].needed_mib for each in choices], dtype=np.float64).reshape(-1, 1)
    found: Numbers = np.where(needs <= left_mib, 1.0, np.nan)
    for row, each in enumerate(choices):
        if each[1:]:
            found[row] = least_slowdown(each, left_mib)
    return found

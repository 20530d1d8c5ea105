"""Gradient accumulation for unchanged scripts, which do not import it.

Rule: the script stays as it is. `install` is called once torch has been imported and before the script's own
code goes on. As long as s is 1 only the shapes of the first batches are looked at. Where a split is ordered,
the outermost module's forward pass is split by rows if a check on real rows of the script's batches shows
that nothing changes by it, and the split is watched for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cotenant.checkpoint.guard import REPORTING, SPLITTING, door
from cotenant.checkpoint.lookups import never_compile
from cotenant.gradaccum.schedule import PROGRESS
from cotenant.gradaccum.zerocode import adapters, selfcheck
from cotenant.gradaccum.zerocode.first_batches import FirstBatches
from cotenant.gradaccum.zerocode.patches import Patches
from cotenant.gradaccum.zerocode.standing import NOT_ASKED, AccumulationStanding, Observer

__all__ = ["ACCUMULATE", "EQUIVALENT", "MEAN", "QUIET", "AccumulationStanding", "Observer", "install"]

ACCUMULATE: Final = "accumulate"
MEAN: Final = "mean"
"""The user says that the loss is a mean over rows: frameworks' own knobs may be turned."""
EQUIVALENT: Final = "equivalent"
"""The user allows a run with other random numbers: what draws them in its forward pass may be split."""
QUIET: Final = "quiet"
"""The user has said nothing of batches: nothing is written into the script's output."""
NOTHING_SEEN: Final = "no forward pass of a module with parameters was seen before the first optimizer step"
ONE_ROW: Final = "its batches have a single row"


def install(startup: Any = None, wanted: Sequence[str] = (ACCUMULATE,)) -> AccumulationStanding:
    """Begin, and return where the verdict will be.

    startup: its `when_imported(name, callback)` says when a framework is there. wanted: without "accumulate"
    steps are counted and nothing else is done.

    Raises:
        ValueError: the schedule of s cannot be read.
    """
    PROGRESS.steps_now()
    first = FirstBatches()
    standing = AccumulationStanding(lambda: _objection(first), is_quiet=QUIET in wanted)
    if ACCUMULATE not in wanted:
        standing.refused = NOT_ASKED
    elif PROGRESS.splits:
        patches = Patches(standing, allows_noise=EQUIVALENT in wanted)
        standing.objection = patches.objection
        patches.enter()
    else:
        first.enter()
        SPLITTING.when_off.append(lambda _: first.leave())
    SPLITTING.when_off.append(standing.refuse)
    _count_steps(standing, first)
    if startup is not None and ACCUMULATE in wanted:
        adapters.watch(startup.when_imported, standing, mean=MEAN in wanted)
    return standing


def _count_steps(standing: AccumulationStanding, first: FirstBatches) -> None:
    steps = 0

    def note(optimizer: Any) -> None:
        nonlocal steps
        steps += 1
        if first.is_looking:
            SPLITTING.run(first.note_step, steps)
        standing.note_step(optimizer)

    @door
    @never_compile
    def stepped(optimizer: Any, *_: Any) -> None:
        # A step that is being compiled must find nothing here to compile.
        if not torch.compiler.is_compiling():
            REPORTING.run(note, optimizer)

    register_optimizer_step_post_hook(stepped)


def _objection(first: FirstBatches) -> str | None:
    """What speaks against a split, of all that could be seen without calling anything."""
    modules = [module for module in (each() for each in first.modules) if module is not None]
    if not modules:
        return NOTHING_SEEN
    if PROGRESS.first_rows and not first.has_rows:
        return ONE_ROW
    return next((reason for reason in map(selfcheck.structure, modules) if reason), None)

"""Gradient accumulation for unchanged scripts, which do not import it.

Rule: the script stays as it is. `install` is called once torch has been imported and before the script's own
code goes on; from then on the outermost module's forward pass is split by rows where a check on real rows of
the script's batches has shown that nothing changes by it, and the script runs untouched where it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cotenant.gradaccum.zerocode import adapters
from cotenant.gradaccum.zerocode.patches import Patches
from cotenant.gradaccum.zerocode.standing import NOT_ASKED, AccumulationStanding, Observer

__all__ = ["ACCUMULATE", "MEAN", "QUIET", "AccumulationStanding", "Observer", "install"]

ACCUMULATE: Final = "accumulate"
MEAN: Final = "mean"
"""The user says that the loss is a mean over rows: frameworks' own knobs may be turned."""
QUIET: Final = "quiet"
"""The user has said nothing of batches: nothing is written into the script's output."""


def install(startup: Any = None, wanted: Sequence[str] = (ACCUMULATE,)) -> AccumulationStanding:
    """Begin, and return where the verdict will be.

    startup: its `when_imported(name, callback)` says when a framework is there. wanted: without "accumulate"
    steps are counted and nothing else is done.
    """
    patches = Patches(is_quiet=QUIET in wanted)
    if ACCUMULATE not in wanted:
        patches.standing.refused = NOT_ASKED
        patches.count_steps()
        return patches.standing
    patches.enter()
    if startup is not None:
        adapters.watch(startup.when_imported, patches.standing, mean=MEAN in wanted)
    return patches.standing

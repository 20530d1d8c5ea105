"""How much of a training budget a job has used, in the seconds that the same steps take alone.

Rule: an optimizer step counts what one takes alone (at the whole batch, on as many devices as the job asks
for at least), so a budget buys the same steps whatever ran beside the job. Loading, saving and what lies
between steps do not count, and steps that were lost are taken back. Time counts only since the last report,
and for jobs whose steps nobody sees: then divided by the expected slowdown.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

NEAR_S: Final = 1e-6
"""A budget with less than this left is used up."""


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a job with a budget has trained."""

    counted_s: float = 0.0
    """Of the steps up to `step`."""
    step: float = 0
    guessed_s: float = 0.0
    """Part of `counted_s` that goes by the expected slowdown: no step time alone was known."""
    guessed_steps: float = 0.0
    """The steps in it; they count exactly once a step time alone is known."""
    more_s: float = 0.0
    """Since `step`, until `at_s`, by the expected slowdown."""
    at_s: float = 0.0
    slowdown: float = 0.0
    """The expected one since `at_s`; 0: it does not train."""
    alarm_s: float = inf
    """When the engine looks again whether the budget is used."""

    def trained_s(self, now_s: float) -> float:
        """Seconds of training so far, as alone."""
        since_s = max(0.0, now_s - self.at_s) / self.slowdown if self.slowdown else 0.0
        return self.counted_s + self.more_s + since_s

    def pass_time(self, now_s: float, slowdown: float) -> BudgetUse:
        """Takes in the time until now; from here on the job has this slowdown."""
        more_s = self.trained_s(now_s) - self.counted_s
        return msgspec.structs.replace(self, more_s=more_s, at_s=now_s, slowdown=slowdown)

    def forget_time(self) -> BudgetUse:
        """Drops what was not counted in steps: it was a load, or it is lost."""
        return msgspec.structs.replace(self, more_s=0.0)

    def count_to(self, step: int, alone_step_s: float | None) -> BudgetUse:
        """The job is at `step`, which may be an earlier one; `alone_step_s`: None, not known."""
        counted_s, guessed_s, guessed_steps = self.counted_s, self.guessed_s, self.guessed_steps
        if step < self.step:
            kept = step / self.step
            counted_s, guessed_s, guessed_steps = counted_s * kept, guessed_s * kept, guessed_steps * kept
        elif alone_step_s is None:
            counted_s, guessed_s = counted_s + self.more_s, guessed_s + self.more_s
            guessed_steps += step - self.step
        else:
            counted_s += (step - self.step) * alone_step_s
        if alone_step_s is not None and guessed_steps:
            counted_s += guessed_steps * alone_step_s - guessed_s
            guessed_s = guessed_steps = 0.0
        return msgspec.structs.replace(
            self,
            counted_s=counted_s,
            step=step,
            guessed_s=guessed_s,
            guessed_steps=guessed_steps,
            more_s=0.0,
        )

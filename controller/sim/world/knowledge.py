"""What the engine of a simulation knows of a job before the job runs, and what the job reports of itself.

Live, nobody says how long a job is: some scripts show their number of steps in their loops, which the engine
hears a minute after the first step, and some cannot resume, which the engine hears when they have loaded.

Rule: what a spec does not say, the engine hears only from the job, in the events of production.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

Known = Literal["exact", "progress", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """The default is a cluster where everything is said as jobs arrive. The shares are of the jobs, drawn."""

    known: Known = "exact"
    """exact: each job's expected length is said as it arrives. progress: jobs that tell say their number of
    steps while they run. none: nobody ever says anything about lengths."""
    after_s: float = 60.0
    """From an attempt's first step to its first report of progress; unused where lengths are exact."""
    tells: float = 1.0
    resumable: float = 1.0
    budget_s: float | None = None
    """The training, counted as alone, that every job gets at most (`--budget`); None: all that it needs."""

    def __post_init__(self) -> None:
        for flag, share in (("--tells", self.tells), ("--resumable", self.resumable)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{flag} is a share of the jobs, 0 to 1, got {share:g}: write {flag} 0.5")
        if self.budget_s is not None and not 0.0 < self.budget_s < 1e9:
            raise ValueError(f"--budget must be above 0 s, got {self.budget_s:g} s: write --budget 1h")
        if not 0.0 < self.after_s < 1e9:
            raise ValueError(f"--known progress:S takes seconds, got {self.after_s:g}: write progress:60")
        if self.tells < 1.0 and self.known != "progress":
            raise ValueError("--tells goes with --known progress:S alone: write that, or leave --tells out")

    @classmethod
    def parse(
        cls, known: str, tells: float = 1.0, resumable: float = 1.0, budget_s: float | None = None
    ) -> Knowledge:
        """Reads `known`: exact, none, progress or progress:S. Raises ValueError, with what to write."""
        kind, colon, seconds = known.partition(":")
        try:
            after_s = float(seconds) if colon else 60.0
            if kind not in get_args(Known) or (colon and kind != "progress"):
                raise ValueError
        except ValueError:
            raise ValueError(f"--known {known!r} makes no sense: write exact, progress:60 or none") from None
        return cls(
            known=cast(Known, kind), after_s=after_s, tells=tells, resumable=resumable, budget_s=budget_s
        )

    @property
    def is_complete(self) -> bool:
        """Whether everything is said as jobs arrive."""
        return replace(self, budget_s=None) == COMPLETE

    def options(self) -> dict[str, str | float]:
        """The options that differ from the default, as flags say them, for a result."""
        known = f"progress:{self.after_s:g}" if self.known == "progress" else self.known
        said: dict[str, str | float] = {"known": known, "tells": self.tells, "resumable": self.resumable}
        said = {name: value for name, value in said.items() if value not in ("exact", 1.0)}
        return said if self.budget_s is None else said | {"budget_s": self.budget_s}

    def __str__(self) -> str:
        tell, resume = (f"{100 * share:g} % of the jobs" for share in (self.tells, self.resumable))
        while_running = f"{self.after_s:g} s after the first step by {tell}"
        told = {"exact": "as jobs arrive", "progress": while_running, "none": "never"}[self.known]
        budget = "" if self.budget_s is None else f"; each gets a budget of {self.budget_s:g} s of training"
        return f"lengths: told {told}; {resume} can resume{budget}"


COMPLETE: Final = Knowledge()

"""What the engine of a simulation knows of a job before the job runs, and what the job reports of itself.

Live, nobody says how long a job is: some scripts show their number of steps in their loops, which the engine
hears a minute after the first step, and some cannot resume, which the engine hears when they have loaded.

Rule: what a spec does not say, the engine hears only from the job, in the events of production.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Known = Literal["exact", "progress", "none"]
AFTER_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """The default is a cluster where everything is said as jobs arrive."""

    known: Known = "exact"
    """exact: each job's expected length is said as it arrives. progress: jobs that tell say their number of
    steps while they run. none: nobody ever says anything about lengths."""
    after_s: float = AFTER_S
    """From an attempt's first step to its first report of progress; unused where lengths are exact."""
    tells: float = 1.0
    """The share of jobs, drawn, that tell."""
    resumable: float = 1.0
    """The share of jobs, drawn, that can resume."""

    def __post_init__(self) -> None:
        for flag, share in (("--tells", self.tells), ("--resumable", self.resumable)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{flag} is a share of the jobs, 0 to 1, got {share:g}: write {flag} 0.5")
        if not (math.isfinite(self.after_s) and self.after_s > 0.0):
            raise ValueError(
                f"--known progress:S takes seconds above 0, got {self.after_s:g}: write --known progress:60"
            )
        if self.tells < 1.0 and self.known != "progress":
            raise ValueError(
                f"with --known {self.known} no job tells its length while it runs: leave --tells out, or "
                "write --known progress:60"
            )

    @classmethod
    def parse(cls, known: str, tells: float = 1.0, resumable: float = 1.0) -> Knowledge:
        """`known`: exact, none, progress or progress:S. Raises ValueError, with what to write."""
        kind, colon, seconds = known.partition(":")
        try:
            if kind not in get_args(Known) or (colon and kind != "progress"):
                raise ValueError
            after_s = float(seconds) if colon else AFTER_S
        except ValueError:
            raise ValueError(f"--known {known!r} makes no sense: write exact, progress:60 or none") from None
        return cls(known=cast(Known, kind), after_s=after_s, tells=tells, resumable=resumable)

    @property
    def is_complete(self) -> bool:
        """Whether specs say all there is to know of a job."""
        return self == COMPLETE

    def options(self) -> dict[str, str | float]:
        """For a result: what differs from the default, as flags say it."""
        known = f"progress:{self.after_s:g}" if self.known == "progress" else self.known
        said: dict[str, str | float] = {"known": known, "tells": self.tells, "resumable": self.resumable}
        return {name: value for name, value in said.items() if value not in ("exact", 1.0)}

    def __str__(self) -> str:
        said = {
            "exact": "as jobs arrive",
            "progress": f"{self.after_s:g} s after the first step by {_share(self.tells)}",
            "none": "never",
        }
        return f"lengths: told {said[self.known]}; {_share(self.resumable)} can resume"


def _share(share: float) -> str:
    return "all jobs" if share == 1.0 else f"{100 * share:g} % of the jobs"


COMPLETE: Final = Knowledge()

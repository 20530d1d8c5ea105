"""Which source the indicators of a host's GPUs come from, and why.

Rule: the best that works, tried in one order: GPM, DCGM, a dcgm-exporter, plain NVML. A source works if it
has shown a value, not if it could be opened. A driver may hang in the attempt, so a process of its own makes
it (`device_child.py`), and the caller waits for a bounded time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from cotenant.profiler.driver.probe_client import NoProbeAnswer, ask
from cotenant.profiler.indicators.sources import Wanted, Wish

ORDER: Final[tuple[Wish, ...]] = get_args(Wish)[1:]
EXPLAIN_S_MAX: Final = 30.0
CHILD: Final = "cotenant.profiler.indicators.device_child"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One source that was tried, or why it was not."""

    source: Wish
    usable: bool
    why: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that were tried, in order; the first usable one was chosen."""

    findings: tuple[Finding, ...] = ()
    problem: str = ""
    """No source could be tried at all."""

    @property
    def chosen(self) -> Finding | None:
        return next((each for each in self.findings if each.usable), None)

    @property
    def why(self) -> str:
        """One line: what is used, and what was passed over for which reason."""
        if self.problem:
            return self.problem
        passed_over = "; ".join(f"not {each.source}: {each.why}" for each in self.findings if not each.usable)
        if self.chosen is None:
            return passed_over or "no source was tried"
        return f"{self.chosen.source}: {self.chosen.why}" + (f" ({passed_over})" if passed_over else "")


def words_of(wanted: Wanted, uuids: Sequence[str]) -> list[str]:
    """The child's command line."""
    flags = [f"--source={wanted.source}", f"--dcgm={wanted.dcgm}", f"--exporter={wanted.exporter}"]
    return [sys.executable, "-m", CHILD, *flags, *uuids]


def explain(
    uuids: Sequence[str], wanted: Wanted | None = None, timeout_s: float = EXPLAIN_S_MAX
) -> Explanation:
    """Try the sources for these GPUs and say how it went."""
    if not uuids:
        return Explanation(problem="no CUDA device: a CPU slot's indicators come from /proc and psutil")
    words = [*words_of(wanted if wanted is not None else Wanted(), uuids), "--explain"]
    try:
        return ask(words, Explanation, timeout_s, whom="the sources of indicators")
    except NoProbeAnswer as why:
        return Explanation(problem=str(why))

"""What was expected of a GPU before one was seen, and how each expectation is judged. Pure.

Rule: title, figure and refutation of a claim stand word for word in `preregistration.md`, and a test compares
them. They do not change after the first run on a GPU; a new question gets a new claim and a later date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any, Final, Literal, NamedTuple

from hwtests.rows import NOT_BEGUN
from hwtests.slices import Outcome

Verdict = Literal["held", "refuted", "not measured"]
Found = Mapping[str, Outcome]
"""Outcomes by slice."""
PAIRS_MIN: Final = 4
"""Of six pairs: what must be faster under MPS."""
NOISE: Final = 1.13
"""Two live runs of one policy on CPU slots differed by 12.7 % (experiments/results/live-castor.md)."""
HARDWARE: Final = ("mps", "numbers", "processes")


class Judged(NamedTuple):
    verdict: Verdict
    measured: str
    """In words; why there is nothing, where nothing was measured."""


class Claim(NamedTuple):
    """One question of the study."""

    title: str
    figure: str
    refuted: str
    judge: Callable[[Found], Judged]


def judge_units(found: Found, name: str, judge: Callable[[Mapping[str, Any]], Judged]) -> Judged:
    """Judge what a slice measured; a slice without a unit is not measured, and says why."""
    outcome = found.get(name)
    if outcome is None or not outcome.units:
        why = "it did not run" if outcome is None else outcome.why or outcome.state
        return Judged("not measured", f"{name}: {why}")
    judged = judge(outcome.units)
    if not outcome.problems:
        return judged
    return judged._replace(measured=f"{judged.measured}; without {', '.join(outcome.problems)}")


def say_verdict(is_refuted: bool) -> Verdict:
    return "refuted" if is_refuted else "held"


def judge_mps_against_slices(found: Found) -> Judged:
    def judge(mps: Mapping[str, Any]) -> Judged:
        return judge_units(found, "pairs-slices", lambda slices: compare(mps, slices))

    def compare(mps: Mapping[str, Any], slices: Mapping[str, Any]) -> Judged:
        both = [name for name in mps if name in slices]
        if len(both) < PAIRS_MIN:
            return Judged("not measured", f"only {len(both)} pairs were measured in both modes")
        ratios = [mps[name]["speed"] / slices[name]["speed"] for name in both]
        faster = sum(ratio > 1.0 for ratio in ratios)
        mean = geometric_mean(ratios)
        words = f"{faster} of {len(both)} pairs are faster under MPS, {mean:.2f} times on average"
        return Judged(say_verdict(faster < PAIRS_MIN), words)

    return judge_units(found, "pairs-mps", judge)


def judge_sharing(found: Found) -> Judged:
    def judge(mps: Mapping[str, Any]) -> Judged:
        speeds = [run["speed"] for run in mps.values()]
        words = f"{median(speeds):.2f} (from {min(speeds):.2f} to {max(speeds):.2f}, {len(speeds)} pairs)"
        return Judged(say_verdict(median(speeds) <= 1.0), words)

    return judge_units(found, "pairs-mps", judge)


def judge_bound(name: str, bound: float) -> Callable[[Found], Judged]:
    def judge(runs: Mapping[str, Any]) -> Judged:
        words = ", ".join(
            f"{pair} {run['p50']:.3f} (mean {run['mean']:.2f}, p99 {run['p99']:.2f})"
            for pair, run in runs.items()
        )
        return Judged(say_verdict(any(run["p50"] > bound for run in runs.values())), words)

    return lambda found: judge_units(found, name, judge)


def judge_guests(found: Found) -> Judged:
    def judge(bounded: Mapping[str, Any]) -> Judged:
        return judge_units(found, "bound-none", lambda free: compare(bounded, free))

    def compare(bounded: Mapping[str, Any], free: Mapping[str, Any]) -> Judged:
        rates = {pair: run["guest_steps_per_s"] for pair, run in bounded.items()}
        words = [
            f"{pair} {rate:.2f} steps/s (free {free[pair]['guest_steps_per_s']:.2f})"
            for pair, rate in rates.items()
            if pair in free
        ]
        return Judged(say_verdict(any(rate == 0.0 for rate in rates.values())), ", ".join(words))

    return judge_units(found, "bound-1.10", judge)


def judge_warm(found: Found) -> Judged:
    """Refuted only by starts that were measured: where no job starts warm, nothing was."""

    def judge(units: Mapping[str, Any]) -> Judged:
        suite = units["tests"]
        if not {"cold start", "warm start"} <= suite["measured"].keys():
            why = join(suite["failures"] | suite["skips"])
            return Judged("not measured", why or "the test said no times")
        if suite["failures"]:
            return Judged("refuted", f"failed: {join(suite['failures'])}")
        cold_s, warm_s = (float(suite["measured"][f"{how} start"].split()[0]) for how in ("cold", "warm"))
        words = f"{warm_s:.2f} s warm, {cold_s:.2f} s cold, submission to first step; equal bits"
        return Judged(say_verdict(warm_s >= cold_s), words)

    return judge_units(found, "warm-start", judge)


def judge_failures(failures: Mapping[str, str]) -> Verdict:
    """Tests that could not begin say nothing about what they ask."""
    began = [why for why in failures.values() if not why.startswith(NOT_BEGUN)]
    return "refuted" if began else "not measured"


def judge_suites(names: Sequence[str]) -> Callable[[Found], Judged]:
    """Refuted by one failed test; held only where every slice ran."""

    def judge(found: Found) -> Judged:
        files = [suite for name in names if name in found for suite in found[name].units.values()]
        passed, failed, skipped = (
            sum(suite[key] for suite in files) for key in ("passed", "failed", "skipped")
        )
        absent = [f"{name}: {found[name].state}" for name in names if name in found and not found[name].units]
        absent += [f"{name}: it did not run" for name in names if name not in found]
        words = "; ".join([f"{passed} passed, {failed} failed, {skipped} skipped", *absent])
        if failed:
            failures = {name: why for suite in files for name, why in suite["failures"].items()}
            return Judged(judge_failures(failures), f"{words}; failed: {join(failures)}")
        return Judged("held" if passed and not absent else "not measured", words)

    return judge


def judge_queues(policy: str, against: str, at_most: float) -> Callable[[Found], Judged]:
    def judge(found: Found) -> Judged:
        def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> Judged:
            mine_s, theirs_s = one["run"]["jct_mean_s"], other["run"]["jct_mean_s"]
            jobs = one["run"]["jobs"]
            words = f"{mine_s / theirs_s:.2f} ({mine_s:.0f} s against {theirs_s:.0f} s, {jobs} jobs)"
            return Judged(say_verdict(mine_s > at_most * theirs_s), words)

        return judge_units(
            found,
            f"queue-{policy}",
            lambda one: judge_units(found, f"queue-{against}", lambda other: compare(one, other)),
        )

    return judge


def join(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


CLAIMS: Final = (
    Claim(
        "Pairs run faster together under MPS than by time slices.",
        "Step times by time slices up to 1.92 times those under MPS (Castor, section 8, two pairs).",
        "Fewer than 4 of 6 pairs have a higher speed together under MPS.",
        judge_mps_against_slices,
    ),
    Claim(
        "Sharing a GPU under MPS does more work than taking turns.",
        "Median speed together 1.38 (Gavel's measured pairs on one V100, 261 pairs).",
        "The median speed together of the six pairs is at most 1.",
        judge_sharing,
    ),
    Claim(
        "A job with a bound of 1.10 keeps it.",
        "Median steps 0.84 to 1.06 times those alone (twelve pairs on CPU slots, results/unharmed.md).",
        "The median step of one pair, in the measured minute, is above 1.10 times that alone.",
        judge_bound("bound-1.10", 1.10),
    ),
    Claim(
        "A job with a bound of 1.05 keeps it.",
        "Median steps 0.96 to 1.10 times those alone (twelve pairs on CPU slots, results/unharmed.md).",
        "The median step of one pair, in the measured minute, is above 1.05 times that alone.",
        judge_bound("bound-1.05", 1.05),
    ),
    Claim(
        "The guest of a job with a bound of 1.10 still trains.",
        "0.00 to 0.93 of its speed alone (twelve pairs on CPU slots, results/unharmed.md).",
        "One guest makes no step in the measured minute.",
        judge_guests,
    ),
    Claim(
        "A warm start with CUDA is faster than a cold one, to the same bits.",
        "0.25 s instead of 2.47 s to the first step, without CUDA (results/bench-start.md).",
        "The warm median is not below the cold one, or parameters differ.",
        judge_warm,
    ),
    Claim(
        "A preempted job resumes exactly.",
        "Equal bits in fp32, as on CPU slots in every run of the repository's tests.",
        "One test of hwtests/test_resume.py fails.",
        judge_suites(("resume",)),
    ),
    Claim(
        "The hardware suite passes.",
        "No failed test; there is no earlier figure, since none has met a GPU.",
        "One test fails.",
        judge_suites(HARDWARE),
    ),
    Claim(
        "Castor's mean completion time is below fifo's.",
        "0.58 of fifo's (two CPU slots, results/live-castor.md); 0.41 in Castor's table 4 (Philly).",
        "The ratio is above 1.",
        judge_queues("castor", "fifo", 1.0),
    ),
    Claim(
        "cotenant's mean completion time is below fifo's.",
        "0.34 of fifo's (0.22 to 0.47), simulated on Philly traces (results/default.md).",
        "The ratio is above 1.",
        judge_queues("cotenant", "fifo", 1.0),
    ),
    Claim(
        "cotenant's mean completion time is not above Castor's.",
        "0.95 of castor-cost's (0.94 to 0.98), simulated with V100 pairs (results/cotenant.md).",
        "The ratio is above 1.13: two live runs of one policy differed by 12.7 % (results/live-castor.md).",
        judge_queues("cotenant", "castor", NOISE),
    ),
)

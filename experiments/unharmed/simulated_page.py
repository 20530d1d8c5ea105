"""The simulated half of results/unharmed.md, from the runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

from experiments.shared.tables import header, row_of, said
from experiments.unharmed.simulated import (
    ALONE,
    BOUNDED,
    CLASSES,
    GFS,
    HP_ALONE,
    HP_MAX,
    HP_SHARE,
    MAX,
    SEEDS,
    SERVER,
    SERVER_JOBS,
    VCS,
    Cell,
    Result,
    Way,
)

Known = dict[Cell, Result]
Pairs = Sequence[tuple[Result, Result]]
"""A run, and the run that it is compared with."""

CLASSES_SAID: Final = """\
Hp jobs are {hp:.0%} of Philly's, drawn; GFS's synthetic jobs have classes of their own. "Alone": hp jobs
share with nobody, as GFS is published. "Shared": spot jobs may be put beside them, at a bound of {bound:g}
for hp jobs. Under `cotenant` other jobs have a bound of {max:g} in both. Times are over those of the first
row of a ground, job by job the same; "over" is the share of jobs that trained more than so many times as
long as alone, "grew" the share of hp jobs whose completion time grew by more than that against the first
row. Means over {seeds} draws."""

BOUNDED_SAID: Final = """\
No classes: every job has the bound that the controller sets, {max:g}, or none. Times are over those of the
same policy without a bound. Means over the VCs and {seeds} windows of each, in brackets the least and the
most."""

SERVER_SAID: Final = """\
{jobs} jobs of Philly's that fit on one server of four GPUs, at twice the rate that it can do alone. Times
are over those of `cotenant` where nobody shares; means of {seeds} windows. CARMA reports a makespan of 0.65
of that alone, of other jobs on other GPUs."""


def sections(results: Sequence[Result]) -> str:
    known = {result.cell: result for result in results}
    parts = {
        "hp jobs' idle halves": _classes(known),
        "a bound for every job": _bounded(known),
        "one server of four GPUs": _server(known),
    }
    return "\n\n".join(f"## Simulated: {title}\n\n{text}" for title, text in parts.items())


def find_share_over(result: Result, bound: float, hp: bool | None = None) -> float:
    """Returns the share of a class's jobs that trained more than `bound` times as long as alone."""
    of = [
        slowdown > bound + 1e-6
        for slowdown, is_hp in zip(result.slowdown, result.hp, strict=True)
        if hp in (None, is_hp)
    ]
    return fmean(of) if of else 0.0


def find_share_grown(mine: Result, base: Result, bound: float) -> float:
    """Returns the share of hp jobs whose completion time grew by more than the bound allows."""
    return fmean(
        after_s > bound * before_s
        for after_s, before_s, is_hp in zip(mine.jct_s, base.jct_s, mine.hp, strict=True)
        if is_hp
    )


def _beside(known: Known, ground: str, way: Way, base: Way) -> Pairs:
    """Runs of a way on a ground, each with that of another on the same jobs."""
    cells = [cell for cell in known if (cell.ground, cell.way) == (ground, way)]
    found = [(known[cell], known.get(Cell(ground=ground, seed=cell.seed, way=base))) for cell in cells]
    return [(mine, other) for mine, other in found if other is not None]


def _mean(of: Pairs, value: Callable[[Result, Result], float]) -> float:
    return fmean(value(mine, base) for mine, base in of)


def _classes(known: Known) -> str:
    titles = (
        "", "policy", "hp jobs", "hp completion", "spot completion", "spot wait, h", "evicted",
        f"hp over {HP_MAX:g}", "hp grew", f"others over {MAX:g}",
    )  # fmt: skip
    lines = [said(CLASSES_SAID, hp=HP_SHARE, bound=HP_MAX, max=MAX, seeds=SEEDS), "", *header(titles)]
    for name, grounds in {"Philly, four VCs": VCS, GFS: (GFS,)}.items():
        for way in CLASSES:
            of = [pair for ground in grounds for pair in _beside(known, ground, way, HP_ALONE)]
            if not of:
                continue
            shares = way.share_hp or way.policy != HP_ALONE.policy
            numbers = (
                f"{_mean(of, lambda mine, base: mine.mean_s(True) / base.mean_s(True)):.2f}",
                f"{_mean(of, lambda mine, base: mine.mean_s(False) / base.mean_s(False)):.2f}",
                f"{_mean(of, lambda mine, _: (mine.spot_wait_s or 0.0) / 3600.0):.2f}",
                f"{_mean(of, lambda mine, _: mine.evictions or 0.0):.1%}",
                f"{_mean(of, lambda mine, _: find_share_over(mine, HP_MAX, True)):.1%}",
                f"{_mean(of, lambda mine, base: find_share_grown(mine, base, HP_MAX)):.1%}",
                f"{_mean(of, lambda mine, _: find_share_over(mine, MAX, False)):.1%}",
            )
            bounded = f"shared, {way.share_hp:g}" if way.share_hp else "shared"
            lines.append(row_of((name, way.policy, bounded if shares else "alone", *numbers)))
    return "\n".join(lines)


def _bounded(known: Known) -> str:
    lines = [
        said(BOUNDED_SAID, max=MAX, seeds=SEEDS),
        "",
        *header(("policy", "mean", "p99 of completion", "jobs over 1.5, no bound", "with it")),
    ]
    for way in (way for way in BOUNDED if way.share_max):
        of = [pair for ground in VCS for pair in _beside(known, ground, way, Way(way.policy))]
        if not of:
            continue
        ratios = sorted(mine.mean_s() / base.mean_s() for mine, base in of)
        p99 = _mean(of, lambda mine, base: _p99(mine) / _p99(base))
        before = _mean(of, lambda _, base: find_share_over(base, MAX))
        after = _mean(of, lambda mine, _: find_share_over(mine, MAX))
        lines.append(
            row_of(
                (
                    way.policy,
                    f"{fmean(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                    f"{p99:.2f}",
                    f"{before:.1%}",
                    f"{after:.1%}",
                )
            )
        )
    return "\n".join(lines)


def _p99(result: Result) -> float:
    return sorted(result.jct_s)[int(0.99 * len(result.jct_s))]


def _server(known: Known) -> str:
    lines = [
        said(SERVER_SAID, jobs=SERVER_JOBS, seeds=SEEDS),
        "",
        *header(("policy", "bound", "makespan", "completion", "jobs over 1.5")),
    ]
    for way in BOUNDED:
        if of := _beside(known, SERVER, way, ALONE):
            numbers = (
                f"{_mean(of, lambda mine, base: mine.makespan_s / base.makespan_s):.2f}",
                f"{_mean(of, lambda mine, base: mine.mean_s() / base.mean_s()):.2f}",
                f"{_mean(of, lambda mine, _: find_share_over(mine, MAX)):.1%}",
            )
            lines.append(row_of((way.policy, f"{way.share_max:g}" if way.share_max else "none", *numbers)))
    return "\n".join(lines)

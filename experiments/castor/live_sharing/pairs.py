"""Which pairs live runs made, how fast each side went, and what it was worth.

Rule: pairs are counted from the attempts' times; xi is what the controller learned from the jobs' step times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Final, NamedTuple

from cotenant.controller.domain import LOSS_MIN
from experiments.castor.live_sharing import foretold, jobs, texts
from experiments.castor.live_sharing.foretold import Side, found
from experiments.shared.live.run import JobRow
from experiments.shared.tables import said

HEADS: Final = (
    "| kinds | pairs | s together | xi by the rule | learned: first, second | counted: first, second | "
    "benefit | |"
)


class Made(NamedTuple):
    """Two jobs that were on one device at the same time."""

    first: str
    second: str
    together_s: float
    """Both training."""


def made(rows: Sequence[JobRow]) -> list[Made]:
    """Pairs of a run, as the attempts' times tell them."""
    met_on: list[Made] = []
    for one, other in combinations(rows, 2):
        together_s, met = 0.0, False
        for a in one.attempts:
            for b in other.attempts:
                if set(a.devices) & set(b.devices) and a.ended_s and b.ended_s:
                    met |= min(a.ended_s, b.ended_s) > max(a.launched_s, b.launched_s)
                    if a.first_step_s is not None and b.first_step_s is not None:
                        span_s = min(a.ended_s, b.ended_s) - max(a.first_step_s, b.first_step_s)
                        together_s += max(0.0, span_s)
        if met:
            met_on.append(Made(one.name, other.name, together_s))
    return met_on


def tables(sides: Sequence[Side], measured: Mapping[str, jobs.Measured]) -> list[str]:
    lines: list[str] = []
    alone = foretold.steps_alone(side.run for side in sides)
    slower = median(step_s / measured[kind].pace.step_s for kind, step_s in alone.items()) if alone else 1.0
    for side in sides:
        counts, together_s = Counter[tuple[str, str]](), defaultdict[tuple[str, str], float](float)
        for pair in made(side.run.rows):
            first, second = sorted((side.run.kinds[pair.first], side.run.kinds[pair.second]))
            counts[first, second] += 1
            together_s[first, second] += pair.together_s
        if not counts:
            continue
        learned, rules = foretold.observed(side.run), foretold.rule(measured)
        counted, best = foretold.by_steps(side.run, alone), foretold.truest(side.run, alone)
        lines += [
            f"Under `{side.name}`:",
            "",
            HEADS,
            "| --- | --: | --: | --: | --: | --: | --: | --- |",
        ]
        for (first, second), count in sorted(counts.items()):
            both = (first, second), (second, first)
            seconds, by_rule = together_s[first, second], rules[first, second]
            cells = [f"{count}", f"{seconds:.0f}", f"{by_rule:.2f}"]
            cells += [", ".join(_xi(source.get(way)) for way in both) for source in (learned, counted)]
            one, two = (best.get(way) for way in both)
            lines.append(f"| {first} + {second} | {' | '.join(cells)} | {_benefit(one, two)} |")
        lines += ["", _gained(side, best), *_benefits(side, sides), ""]
    return [*lines, said(texts.PAIRS, even=LOSS_MIN, slower=slower)]


def _xi(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _benefit(one: float | None, two: float | None) -> str:
    if one is None or two is None:
        return "- | unsure"
    gain = 1.0 / one + 1.0 / two - 1.0
    return f"{gain:+.2f} | {'pays' if gain > LOSS_MIN else 'loses' if gain < -LOSS_MIN else 'even'}"


def _gained(side: Side, xi: foretold.Xi) -> str:
    """Sum over pairs of time together x benefit, in device-seconds, where both ways were measured."""
    gained_s = known_s = all_s = 0.0
    for pair in made(side.run.rows):
        first, second = side.run.kinds[pair.first], side.run.kinds[pair.second]
        one, two = xi.get((first, second)), xi.get((second, first))
        all_s += pair.together_s
        if one is not None and two is not None:
            known_s += pair.together_s
            gained_s += pair.together_s * (1.0 / one + 1.0 / two - 1.0)
    share = known_s / all_s if all_s else 0.0
    return said(texts.GAINED, all_s=all_s, share=share, gained_s=gained_s)


def guests(rows: Sequence[JobRow]) -> set[str]:
    """Jobs that were put beside one that was there."""
    first = {row.job_id: row for row in rows}
    return {
        row.name
        for row in rows
        for mine in row.attempts
        for other_id in mine.co_tenants
        for theirs in first[other_id].attempts
        if theirs.launched_s < mine.launched_s < (theirs.ended_s or 0.0)
    }


def _benefits(side: Side, sides: Sequence[Side]) -> list[str]:
    """What being a guest was worth, as the simulator counts it, and beside the real run without sharing."""
    told, benefit = [], side.told.benefit
    if benefit:
        told.append(said(texts.BENEFIT, guests=len(benefit), median=median(benefit), mean=fmean(benefit)))
    alone, names = found(sides, "sjf"), guests(side.run.rows)
    if alone is not None and names:
        ratios = [
            waited.jct_s / mine.jct_s
            for waited, mine in zip(alone.live, side.live, strict=True)
            if mine.name in names
        ]
        told.append(said(texts.GUESTS, guests=len(ratios), median=median(ratios), mean=fmean(ratios)))
    return told

"""The page and the pictures about live runs in which devices are shared.

Rule: a sentence that depends on a result is chosen by the result; nothing here was written after the fact.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, NamedTuple

import live_castor_foretold as foretold
import live_castor_jobs as jobs
import live_castor_texts as texts
from live_castor_foretold import Foretold
from live_castor_run import CastorRun
from live_errors import Errors, Told, compare, told_live
from live_run import DEVICES, JobRow

from cotenant.controller.demo.picture import render
from cotenant.controller.domain.pairs import LOSS_MIN

if TYPE_CHECKING:
    from live_castor import Planned

BASE: Final = "fifo"
CASTOR: Final = "castor:part=false"
OTHERS: Final = ("sjf-ffs:part=false", "sjf", "fifo")


class Side(NamedTuple):
    """One live run beside its two simulations."""

    name: str
    run: CastorRun
    live: list[Told]
    told: Foretold
    foreseen: Foretold

    @property
    def makespan_s(self) -> float:
        return makespan_s(self.live)


def write(runs: Sequence[CastorRun], planned: Planned, page: Path, pictures: Path) -> list[Path]:
    """What was written."""
    sides = beside(runs, planned.measured)
    drawn = _draw(sides, pictures)
    page.parent.mkdir(parents=True, exist_ok=True)
    links = {name: os.path.relpath(path.resolve(), page.parent.resolve()) for name, path in drawn.items()}
    page.write_text(text_of(sides, planned, links), encoding="utf-8")
    return [page, *drawn.values()]


def beside(runs: Sequence[CastorRun], measured: Mapping[str, jobs.Measured]) -> list[Side]:
    """Every run with what the simulator makes of it; runs of one policy are numbered."""
    base = next((run for run in runs if run.label == BASE), None)
    if base is None:
        raise SystemExit(f"a run under {BASE} is needed: it says how long each job trains alone")
    alone_s, seen, sides = foretold.alone_s(base), Counter[str](), []
    for run in runs:
        seen[run.label] += 1
        others = [other for other in runs if other is not run]
        xi = foretold.known(run, others, measured)
        sides.append(
            Side(
                name=run.label if seen[run.label] == 1 else f"{run.label}, again",
                run=run,
                live=told_live(run.rows),
                told=foretold.foretell(run, measured, alone_s, xi),
                foreseen=foretold.foreseen(run, measured),
            )
        )
    return sides


def text_of(sides: Sequence[Side], planned: Planned, links: Mapping[str, str]) -> str:
    parts = [
        "# castor, live: real jobs that share CPU slots",
        "\n".join(_what(sides, planned)),
        "## Side by side",
        "\n".join(_results(sides)),
        "\n\n".join(verdicts(sides)),
        "\n\n".join([texts.SLOT, texts.SHOWS]),
        "## The simulator's prediction",
        "\n".join(_predicted(sides)),
        texts.TOLD,
        texts.DIFFERENCES,
        "## Pairs",
        "\n".join(_pairs(sides, planned.measured)),
        "## Who was on which device",
        "\n\n".join(f"![{name}: who held which slot when, and who waited]({link})" for name, link in links.items()),
        "## Every job",
        "\n".join(_every_job(sides)),
        "## How",
        "\n".join(_how(sides, planned)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(sides: Sequence[Side], planned: Planned) -> list[str]:
    rows, base = sides[0].run.rows, _named(sides, BASE)
    names = ", ".join(f"`{side.name}`" for side in sides)
    span_s = planned.schedule[-1].at_s
    trained = sum(row.run_s * row.gpus for row in base.run.rows)
    loaded = trained + sum(row.load_s * row.gpus for row in base.run.rows)
    lines = [
        texts.WHAT.format(
            jobs=len(rows),
            singles=sum(row.gpus == 1 for row in rows),
            gangs=sum(row.gpus > 1 for row in rows),
            seed=planned.seed,
            policies=names,
        ),
        "",
        texts.OFFERED.format(
            span_s=span_s, load=trained / span_s / DEVICES, loaded=loaded / span_s / DEVICES
        ),
        "",
        "| kind | jobs | | devices | step alone, ms | busy | memory, MiB (half its batch) |",
        "| --- | --: | --- | --: | --: | --: | --: |",
    ]
    counts = Counter(arrival.kind for arrival in planned.schedule)
    for kind, one in planned.measured.items():
        lines.append(
            f"| {kind} | {counts[kind]} | {jobs.ABOUT[kind]} | {jobs.KINDS[kind].gpus} | "
            f"{one.pace.step_s * 1e3:.1f} | {one.duty_cycle:.0%} | {one.memory_mib(1):.0f} ({one.memory_mib(2):.0f}) |"
        )
    return lines


# --- Side by side ------------------------------------------------------------------------------------


def makespan_s(told: Sequence[Told]) -> float:
    """First arrival to last end."""
    return max(job.arrived_s + job.jct_s for job in told)


def mean_jct_s(side: Side) -> float:
    return fmean(job.jct_s for job in side.live)


def _results(sides: Sequence[Side]) -> list[str]:
    lines = [
        "| live, s | mean JCT | median JCT | makespan | mean wait | mean load | mean run | jobs that shared |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for side in sides:
        live = side.live
        cells = [
            mean_jct_s(side),
            median(job.jct_s for job in live),
            side.makespan_s,
            *(fmean(getattr(job, part) for job in live) for part in ("wait_s", "load_s", "run_s")),
        ]
        shared = sum(any(a.co_tenants for a in row.attempts) for row in side.run.rows)
        lines.append(f"| {side.name} | {' | '.join(f'{cell:.1f}' for cell in cells)} | {shared} |")
    return lines


def verdicts(sides: Sequence[Side]) -> list[str]:
    """Who is first, by how much, and whether that is more than two runs of one policy differ by."""
    castor = _found(sides, CASTOR)
    if castor is None:
        return []
    again = next((side for side in sides if side.name == f"{CASTOR}, again"), None)
    said = []
    if again is not None:
        noise = compare("again", castor.live, again.live)
        said.append(
            f"Two runs of `{CASTOR}` differ by {_apart(mean_jct_s(castor), mean_jct_s(again)):.1%} in mean JCT and "
            f"{_apart(castor.makespan_s, again.makespan_s):.1%} in makespan; job by job the median difference is "
            f"{noise.median:.1%}, P90 {noise.p90:.1%}: the noise."
        )
    floor = 0.0 if again is None else _apart(mean_jct_s(castor), mean_jct_s(again))
    for name in OTHERS:
        other = _found(sides, name)
        if other is not None:
            said.append(_against(castor, other, floor))
    return said


def _against(castor: Side, other: Side, noise: float) -> str:
    mine, theirs = mean_jct_s(castor), mean_jct_s(other)
    better = sum(a.jct_s < b.jct_s for a, b in zip(castor.live, other.live, strict=True))
    if abs(mine / theirs - 1.0) <= max(noise, 0.01):
        word = "no different from"
    else:
        word = "below" if mine < theirs else "ABOVE"
    return (
        f"castor's mean JCT is {word} {other.name}'s: {mine:.1f} against {theirs:.1f} s ({mine / theirs - 1.0:+.1%}); "
        f"{better} of {len(castor.live)} jobs ended sooner. Makespan {castor.makespan_s:.0f} against "
        f"{other.makespan_s:.0f} s ({castor.makespan_s / other.makespan_s - 1.0:+.1%})."
    )


def _apart(one: float, other: float) -> float:
    return abs(other / one - 1.0)


def _named(sides: Sequence[Side], name: str) -> Side:
    return next(side for side in sides if side.name == name)


def _found(sides: Sequence[Side], name: str) -> Side | None:
    return next((side for side in sides if side.name == name), None)


# --- The simulator -----------------------------------------------------------------------------------


def _predicted(sides: Sequence[Side]) -> list[str]:
    lines = [
        "| | mean JCT: live | told | foreseen | makespan: live | told | foreseen | "
        "error per job, told: median, P90 | foreseen: median, P90 |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for side in sides:
        errors = [
            compare(side.name, side.live, list(other.jobs)) for other in (side.told, side.foreseen)
        ]
        lines.append(
            f"| {side.name} | {mean_jct_s(side):.1f} | {side.told.mean_jct_s:.1f} | {side.foreseen.mean_jct_s:.1f} | "
            f"{side.makespan_s:.0f} | {side.told.makespan_s:.0f} | {side.foreseen.makespan_s:.0f} | "
            f"{' | '.join(_error(e) for e in errors)} |"
        )
    return [*lines, "", *_order(sides)]


def _error(e: Errors) -> str:
    return f"{e.median:.1%}, {e.p90:.1%}"


def _order(sides: Sequence[Side]) -> list[str]:
    """Whether the simulator would have chosen the same policy."""
    once = [side for side in sides if not side.name.endswith(", again")]
    if len(once) < 2:
        return []
    live = [side.name for side in sorted(once, key=mean_jct_s)]
    lines = [f"By mean JCT, live: {' < '.join(live)}."]
    for what, key in (("told", "told"), ("foreseen", "foreseen")):
        order = [side.name for side in sorted(once, key=lambda s: getattr(s, key).mean_jct_s)]
        pairs = list(combinations(live, 2))
        kept = sum(order.index(a) < order.index(b) for a, b in pairs)
        lines.append(f"Simulated, {what}: {' < '.join(order)}; {kept} of {len(pairs)} comparisons as live.")
    return lines


# --- Pairs -------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """Two jobs that were on one device at the same time."""

    first: str
    second: str
    together_s: float
    """Both training."""


def made(rows: Sequence[JobRow]) -> list[Made]:
    """Pairs of a run, as the attempts' times tell them."""
    found = []
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
            found.append(Made(one.name, other.name, together_s))
    return found


def _pairs(sides: Sequence[Side], measured: Mapping[str, jobs.Measured]) -> list[str]:
    lines: list[str] = []
    for side in sides:
        counts, together_s = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for pair in made(side.run.rows):
            first, second = sorted((side.run.kinds[pair.first], side.run.kinds[pair.second]))
            counts[first, second] += 1
            together_s[first, second] += pair.together_s  # type: ignore[assignment]
        if not counts:
            continue
        xi, rules = foretold.observed(side.run), foretold.rule(measured)
        lines += [
            f"Under `{side.name}`:",
            "",
            "| kinds | pairs | s together | xi by the rule | xi of the first | of the second | benefit | |",
            "| --- | --: | --: | --: | --: | --: | --: | --- |",
        ]
        for (first, second), count in sorted(counts.items()):
            one, two = xi.get((first, second)), xi.get((second, first))
            lines.append(
                f"| {first} + {second} | {count} | {together_s[first, second]:.0f} | {rules[first, second]:.2f} | "
                f"{_xi(one)} | {_xi(two)} | {_benefit(one, two)} |"
            )
        lines += ["", _gained(side, xi), ""]
    lines.append(
        "Benefit: 1 / xi of the one + 1 / xi of the other - 1, work done beyond taking turns; "
        f"within {LOSS_MIN:g} of 0 it counts as even."
    )
    return lines


def _xi(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"


def _benefit(one: float | None, two: float | None) -> str:
    if one is None or two is None:
        return "- | unsure"
    gain = 1.0 / one + 1.0 / two - 1.0
    return f"{gain:+.2f} | {'pays' if gain > LOSS_MIN else 'loses' if gain < -LOSS_MIN else 'even'}"


def _gained(side: Side, xi: foretold.Xi) -> str:
    """The sum over pairs of time together x benefit, in seconds of a device, where both ways were measured."""
    gained_s = known_s = all_s = 0.0
    for pair in made(side.run.rows):
        first, second = side.run.kinds[pair.first], side.run.kinds[pair.second]
        one, two = xi.get((first, second)), xi.get((second, first))
        all_s += pair.together_s
        if one is not None and two is not None:
            known_s += pair.together_s
            gained_s += pair.together_s * (1.0 / one + 1.0 / two - 1.0)
    share = known_s / all_s if all_s else 0.0
    return (
        f"{all_s:.0f} s of pairs training together, {share:.0%} of it with xi measured both ways: worth "
        f"{gained_s:+.0f} s of work beyond taking turns."
    )


# --- Every job, and how ------------------------------------------------------------------------------


def _every_job(sides: Sequence[Side]) -> list[str]:
    heads = " | ".join(f"{side.name}: live (told)" for side in sides)
    lines = [f"| job | devices | arrives, s | alone, s | {heads} |", "| --- |" + " --: |" * (3 + len(sides))]
    alone_s = foretold.alone_s(_named(sides, BASE).run)
    for number, job in enumerate(sides[0].live):
        cells = " | ".join(
            f"{side.live[number].jct_s:.1f} ({side.told.jobs[number].jct_s:.1f})" for side in sides
        )
        lines.append(
            f"| {job.name} | {job.gpus} | {job.arrived_s:.1f} | {alone_s[job.name]:.1f} | {cells} |"
        )
    return [*lines, "", "JCT in seconds; alone: training time in the run under fifo."]


def _how(sides: Sequence[Side], planned: Planned) -> list[str]:
    machine = sides[0].run.machine
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "commit")
    others = ", ".join(f"{side.run.others_ratio:.1%}" for side in sides)
    commits = ", ".join(dict.fromkeys(str(side.run.machine["commit"]) for side in sides))
    lines = [
        texts.HOW.format(
            plan_s=jobs.PLAN.measured_s_min, memory_mib=sides[0].run.slot_memory_mib
        ),
        "",
        f"Processes that were no part of it had this share of the cores in the runs, in their order: {others}.",
    ]
    lines += [
        f"While {kind} was measured alone: {note}."
        for kind, one in planned.measured.items()
        for note in one.notes
    ]
    return [*lines, "", f"Machine: {facts}. Commit: {commits}."]


def _draw(sides: Sequence[Side], folder: Path) -> dict[str, Path]:
    """One picture per policy, of its first run."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for side in sides:
        if side.run.timeline is not None and not side.name.endswith(", again"):
            plain = side.name.replace(":part=false", "-as-published")
            path = folder / f"live-castor-{plain}.svg"
            path.write_text(render(side.run.timeline), encoding="utf-8")
            drawn[side.name] = path
    return drawn

"""The page of a steered Slurm beside others, from what was kept of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any, Final

from experiments.shared.tables import header, row_of, said
from experiments.slurm.steer_runs import ARMS

Rows = Sequence[Mapping[str, Any]]
BASE: Final = "multifactor"
SHORT_S: Final = 1.0
"""Shorter jobs count as so long in a slowdown; ten minutes, scaled."""


def measured(rows: Rows) -> dict[str, float]:
    """Times of one arm and seed, in seconds."""
    waits = [float(row["waited_s"]) for row in rows]
    slowdowns = [max((row["waited_s"] + row["ran_s"]) / max(row["ran_s"], SHORT_S), 1.0) for row in rows]
    began_s = min(row["submitted_s"] for row in rows)
    ended_s = max(row["submitted_s"] + row["waited_s"] + row["ran_s"] for row in rows)
    return {
        "wait": fmean(waits),
        "p99": quantiles(waits, n=100)[98],
        "slowdown": fmean(slowdowns),
        "makespan": float(ended_s - began_s),
    }


def page(kept: Mapping[str, Mapping[str, Rows]], arms: Sequence[str], command: str, machine: str) -> str:
    runs = {name: by_arm for name, by_arm in kept.items() if set(arms) <= set(by_arm)}
    numbers = {name: {arm: measured(by_arm[arm]) for arm in arms} for name, by_arm in runs.items()}
    steered = [arm for arm in arms if arm not in ARMS]
    lines = ["# A real Slurm, steered", "", *_answer(numbers, steered), "", *_table(numbers, arms), ""]
    lines += [*_ratios(numbers, steered), "", *_how(runs, arms), "", "```", command, "```", "", machine]
    return "\n".join(lines) + "\n"


def _ratio(numbers: Mapping[str, Any], arm: str, base: str, what: str) -> list[float]:
    return [by_arm[arm][what] / by_arm[base][what] for by_arm in numbers.values()]


def _answer(numbers: Mapping[str, Any], steered: Sequence[str]) -> list[str]:
    parts = []
    for arm in steered:
        ratios = _ratio(numbers, arm, BASE, "wait")
        means = {base: fmean(_ratio(numbers, arm, base, "wait")) for base in ARMS}
        tails = {base: fmean(_ratio(numbers, arm, base, "p99")) for base in ARMS}
        parts.append(
            said(
                """Steered by `{arm}`, jobs of a real Slurm wait {mean:.2f} times as long as under its
                multifactor priority (mean of {count} seeds, {least:.2f} to {most:.2f}), {fifo:.2f} times
                as long as first come, first served, and {small:.2f} times as long as under multifactor
                with small jobs first. Some long jobs wait longer: the 99th percentile of waits is
                {tail_base:.2f} times multifactor's and {tail_fifo:.2f} times `fifo`'s. The last job ends
                after {makespan:.2f} times multifactor's time.""",
                arm=arm,
                mean=fmean(ratios),
                count=len(ratios),
                least=min(ratios),
                most=max(ratios),
                fifo=means["fifo"],
                small=means["favor-small"],
                tail_fifo=tails["fifo"],
                tail_base=tails[BASE],
                makespan=fmean(_ratio(numbers, arm, BASE, "makespan")),
            )
        )
    return parts


def _table(numbers: Mapping[str, Any], arms: Sequence[str]) -> list[str]:
    lines = header(["run", "arm", "mean wait, s", "p99 wait, s", "bounded slowdown", "makespan, s"])
    for name, by_arm in numbers.items():
        for arm in arms:
            found = by_arm[arm]
            texts = [f"{found['wait']:.1f}", f"{found['p99']:.0f}", f"{found['slowdown']:.1f}"]
            lines.append(row_of([name, arm, *texts, f"{found['makespan']:.0f}"]))
    return lines


def _ratios(numbers: Mapping[str, Any], steered: Sequence[str]) -> list[str]:
    lines = header(["steered by, against", "mean wait", "p99 wait", "bounded slowdown", "makespan"])
    for arm in steered:
        for base in ARMS:
            ratios = (
                fmean(_ratio(numbers, arm, base, what)) for what in ("wait", "p99", "slowdown", "makespan")
            )
            lines.append(row_of([f"{arm}, {base}", *(f"{each:.2f}" for each in ratios)]))
    return lines


def _how(runs: Mapping[str, Mapping[str, Rows]], arms: Sequence[str]) -> list[str]:
    counts = ", ".join(str(len(by_arm[arms[0]])) for by_arm in runs.values())
    return [
        "## How this page was made",
        "",
        said(
            """Each arm is a Slurm 22.05 of its own on this machine (four nodes of four processors,
            backfilling, slurmdbd), and the arms of a seed ran side by side on the same arrivals: {counts}
            jobs. The jobs sleep, and a second stands for ten minutes. `fifo` is priority/basic;
            multifactor weighs age, size and fair share with 1000 each and prefers large jobs, as Slurm
            does by default, and `favor-small` prefers small ones. The steered Slurm has multifactor and
            `cotenant steer slurm` beside it, with rounds of two seconds and run times learned from its
            accounts while it ran. There is one user, no real lengths and no thousands of jobs; waits are
            whole seconds, as Slurm keeps them.""",
            counts=counts,
        ),
    ]

"""What makes the difference: the same jobs in the simulator, in worlds that differ in one thing.

Rule: this explains a result after it was measured; nothing of what ran was chosen by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.controller.policies.base import Parameters
from experiments.castor.live_sharing import foretold, jobs, texts
from experiments.castor.live_sharing.side import BASE, Side, named
from experiments.shared.tables import said

POLICIES: Final[Mapping[str, tuple[str, Parameters]]] = {
    "fifo": ("fifo", {}),
    "sjf": ("sjf", {}),
    "srtf": ("srtf", {}),
    "sjf-ffs:part=false": ("sjf-ffs", {"part": False}),
    "castor:part=false": ("castor", {"part": False}),
    "castor": ("castor", {}),
    "castor-cost": ("castor-cost", {}),
}

BUSY: Final = 1.5
"""Pairs of which the duty-cycle rule says more than this are two busy kinds."""


def why(sides: Sequence[Side], measured: foretold.Measured) -> list[str]:
    """A table: mean JCT and makespan of each policy in each world."""
    base = named(sides, BASE)
    alone_s = foretold.alone_s(side.run for side in sides)
    known = foretold.known(base.run, [side.run for side in sides], measured)
    worlds = worlds_of(measured, known)
    lines = [said(texts.WHY), "", f"| mean JCT, s (makespan) | {' | '.join(worlds)} |"]
    lines.append("| --- |" + " --: |" * len(worlds))
    for name, label in POLICIES.items():
        cells = []
        for xi in worlds.values():
            found = foretold.foretell(base.run, measured, alone_s, xi, label=label)
            cells.append(f"{found.mean_jct_s:.1f} ({found.makespan_s:.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def worlds_of(measured: Mapping[str, jobs.Measured], known: foretold.Xi) -> dict[str, foretold.Xi]:
    """xi of every pair of kinds, world by world."""
    by_rule = foretold.rule(measured)
    pairs = [(one, other) for one in measured for other in measured]
    return {
        "xi as measured": known,
        "by the duty-cycle rule": by_rule,
        "2: taking turns": dict.fromkeys(pairs, 2.0),
        "1: nothing lost": dict.fromkeys(pairs, 1.0),
        "3 for two busy kinds": {p: 3.0 if by_rule[p] > BUSY else by_rule[p] for p in pairs},
    }

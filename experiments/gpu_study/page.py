"""The one page of the study: each question, what was expected beside what was measured, the verdict.

Rule: the first line says whether a GPU was there. The page is made from what is on disk alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from experiments.gpu_study.claims import CLAIMS, Claim, Found
from hwtests.pairs import write_section
from hwtests.slices import Outcome
from hwtests.summary import row_of

REHEARSAL: Final = (
    "**A rehearsal on CPU slots: it shows that the study runs, and nothing about GPUs.** Numbers and "
    "verdicts below are those of stand-ins."
)
SHORT: Final = "**A rehearsal in short slices: it shows that the study runs.** No verdict below counts."


def write_page(
    found: Found,
    names: Sequence[str],
    machine: Mapping[str, str],
    *,
    is_short: bool = False,
    claims: Iterable[Claim] = CLAIMS,
) -> str:
    """`names`: every slice of the study, in its order."""
    judged = [(claim, claim.judge(found)) for claim in claims]
    lines = ["# The study of one GPU", "", open_page(found, names, machine, is_short=is_short), ""]
    lines += ["| question | expected | refuted if | measured | verdict |", "| --- | --- | --- | --- | --- |"]
    lines += [
        row_of(claim.title, claim.figure, claim.refuted, one.measured, f"**{one.verdict}**")
        for claim, one in judged
    ]
    lines += [
        "",
        "Questions, figures and refutations were written before any GPU was seen: `preregistration.md`.",
    ]
    lines += ["", *write_section(found)]
    lines += ["## Slices", "", "| slice | outcome | s | units | why |", "| --- | --- | --: | --: | --- |"]
    lines += [describe_slice(name, found.get(name)) for name in names]
    lines += ["", "## Machine", "", "| | |", "| --- | --- |"]
    lines += [row_of(name, value) for name, value in machine.items()]
    return "\n".join(lines) + "\n"


def open_page(found: Found, names: Sequence[str], machine: Mapping[str, str], *, is_short: bool) -> str:
    """The page's first sentence."""
    if machine.get("device") != "cuda":
        return REHEARSAL
    if is_short:
        return SHORT
    missing = [
        name for name in names if name not in found or found[name].state not in ("done", "does not apply")
    ]
    left = f"Incomplete: {', '.join(missing)}." if missing else "Every slice is over."
    return f"On {machine.get('GPUs', 'a GPU')}, driver {machine.get('driver', 'unknown')}. {left}"


def describe_slice(name: str, outcome: Outcome | None) -> str:
    if outcome is None:
        return row_of(name, "not run yet", "", "", "")
    return row_of(name, outcome.state, f"{outcome.took_s:.0f}", f"{len(outcome.units)}", outcome.why)

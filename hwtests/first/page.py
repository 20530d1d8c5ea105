"""The page of the first nine minutes: each claim with its verdict and what follows, then all that was said.

Rule: pure; made from the kept results alone, after every question. Its first line says whether a GPU was
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from hwtests.first.claims import CLAIMS
from hwtests.first.questions import QUESTIONS, Asked
from hwtests.first.verdicts import Claim, Verdict, judge

CELL_CHARS: Final = 420
FACT_CHARS: Final = 1500


def write_page(asked: Mapping[str, Asked], device: str) -> str:
    verdicts = [(claim, judge(claim, asked)) for claim in CLAIMS]
    counts = Counter(verdict.word for _, verdict in verdicts)
    lines = ["# The first nine minutes on a GPU", "", open_page(asked, device), ""]
    lines += [", ".join(f"{count} {word}" for word, count in sorted(counts.items())) + ".", ""]
    lines += [
        "| question | decides | claim | verdict | seen | what to do |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        row_of(claim.question, claim.decides, claim.says, f"**{verdict.word}**", verdict.seen, verdict.todo)
        for claim, verdict in verdicts
        if verdict.word != "not measured"
    ]
    lines += ["", *write_missing(verdicts)]
    lines += ["## Questions", "", "| question | asks | outcome | s | limit | why |"]
    lines += ["| --- | --- | --- | --: | --: | --- |"]
    for question in QUESTIONS:
        one = asked.get(question.name)
        state, took, why = (
            ("not reached", "", "") if one is None else (one.state, f"{one.took_s:.1f}", one.why)
        )
        lines.append(row_of(question.name, question.asks, state, took, f"{question.limit_s:.0f}", why))
    lines += [
        "",
        "## What was said",
        "",
        "In full in `results.json`; what programs printed is in `raw/`.",
        "",
    ]
    for question in QUESTIONS:
        if facts := (asked[question.name].facts if question.name in asked else {}):
            lines += [f"### {question.name}", ""]
            lines += [f"* {name}: {in_line(value) or '(nothing)'}" for name, value in facts.items()]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write_missing(verdicts: Sequence[tuple[Claim, Verdict]]) -> list[str]:
    """What was not measured, by reason."""
    by_reason: dict[str, list[str]] = {}
    for claim, verdict in verdicts:
        if verdict.word == "not measured":
            by_reason.setdefault(in_line(verdict.seen, CELL_CHARS), []).append(
                f"{claim.question}: {claim.says}"
            )
    if not by_reason:
        return []
    lines = ["## Not measured", ""]
    for reason, claims in by_reason.items():
        lines += [f"{reason}:", "", *(f"* {claim}" for claim in claims), ""]
    return lines


def open_page(asked: Mapping[str, Asked], device: str) -> str:
    """The page's first sentence."""
    facts = asked["machine"].facts if "machine" in asked else {}
    spent_s = sum(one.took_s for one in asked.values())
    took = f"{len(asked)} of {len(QUESTIONS)} questions are over, in {spent_s:.0f} s."
    if device == "cpu":
        return (
            f"**A rehearsal: jobs ran on a CPU slot, and no number below says anything about a GPU.** {took}"
        )
    if "uuid" not in facts:
        return f"**No GPU answered: {facts.get('no gpu', 'the machine was not looked at')}.** {took}"
    return f"On {facts.get('nvidia-smi -L', facts['uuid'])}. {took}"


def row_of(*cells: str) -> str:
    """One line of a table, whatever a program said."""
    return f"| {' | '.join(in_line(cell, CELL_CHARS).replace('|', '/') for cell in cells)} |"


def in_line(value: object, most: int = FACT_CHARS) -> str:
    """A fact in one line, cut at its end."""
    if isinstance(value, dict):
        value = ", ".join(f"{name} {each}" for name, each in value.items())
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[:most]} [...]"

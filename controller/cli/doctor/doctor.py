"""`cotenant doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from cotenant.controller.cli.doctor.check import Check, Verdict
from cotenant.controller.cli.doctor.machine_checks import gather, run_all
from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
)
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.problem import FAILED, OK
from cotenant.controller.cli.frame.screen import LAST_WIDTH_MIN, cut, paint, say, terminal_width, wrapped
from cotenant.controller.domain import for_people

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WORST_FIRST: Final = ("fail", "warn", "ok")


def doctor(
    strict: Annotated[bool, option("--strict", help="Exit code 1 for a warning, too.")] = False,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> int:
    """Check this machine: what works, what does not, and what to do. Exit code 1 if anything fails.

    What fails comes first, then warnings: what works less well, or not yet. Ask as whoever runs the agent.

    For example:

      cotenant doctor
      cotenant doctor --strict -o json > /dev/null || echo see to $(hostname)
      cotenant doctor -o json | jq '.checks[] | select(.verdict != "ok")'
    """
    form = chosen(output, as_json)
    facts = gather(loaded_settings(endpoint), endpoint)
    checks = run_all(facts)
    if form in ("table", "wide"):
        say(page(for_people(checks), whole=form == "wide"))
    else:
        listing = Listing(
            noun="check",
            rows=checks,
            as_json=msgspec.structs.asdict,
            identity=lambda c: c.name,
            columns=(),
            extra={"verdict": worst(checks)},
        )
        show_listing(listing, form)
    return FAILED if worst(checks) in (("fail", "warn") if strict else ("fail",)) else OK


def worst(checks: Sequence[Check]) -> Verdict:
    return min((check.verdict for check in checks), key=WORST_FIRST.index, default="ok")


def page(checks: Sequence[Check], *, whole: bool = False) -> str:
    """What is wrong first. What works takes a line each on a terminal, unless `whole`."""
    width = max(len(check.name) for check in checks)
    indent = width + 8
    lines = [summary(checks)]
    for check in sorted(checks, key=lambda each: WORST_FIRST.index(each.verdict)):  # Stable.
        verdict = paint(f"{check.verdict:<4}", COLOURS[check.verdict])
        found = wrapped(check.found, indent)
        if check.verdict == "ok" and not whole and (room := terminal_width()) is not None:
            found = cut(check.found, max(LAST_WIDTH_MIN, room - indent))
        lines.append(f"{verdict}  {check.name:<{width}}  {found}")
        if check.todo:
            lines.append(" " * indent + wrapped(f"-> {check.todo}", indent))
        if check.command:  # In one piece, however long: it is there to be pasted.
            lines.append(" " * indent + f"$ {check.command}")
    return "\n".join(lines)


def summary(checks: Sequence[Check]) -> str:
    """`1 fails, 2 warn, 17 ok`."""
    words = {"fail": "fails", "warn": "warn", "ok": "ok"}
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in WORST_FIRST}
    told = [
        paint(f"{count} {'fail' if verdict == 'fail' and count > 1 else words[verdict]}", COLOURS[verdict])
        for verdict, count in counts.items()
        if count
    ]
    return ", ".join(told)

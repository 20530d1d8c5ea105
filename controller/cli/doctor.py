"""`cotenant doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

from typing import Final

from cotenant.controller.cli.asking import loaded_settings
from cotenant.controller.cli.check import Check
from cotenant.controller.cli.checks import gather, run_all
from cotenant.controller.cli.output import EndpointFlag, JsonFlag, Listing, OutputFlag, chosen, show_listing
from cotenant.controller.cli.problem import FAILED, OK
from cotenant.controller.cli.screen import paint, wrapped

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> int:
    """Check this machine: what works, what does not, and what to do. Exit code 1 if anything fails.

    A warning is something that works less well, or not yet.

    For example:

      cotenant doctor
      cotenant doctor --json | jq '.checks[] | select(.verdict != "ok")'
    """
    form = chosen(output, as_json)
    facts = gather(loaded_settings(endpoint), endpoint)
    checks = run_all(facts)
    if form in ("table", "wide"):
        print(page(checks))
    else:
        listing = Listing(
            noun="check",
            rows=checks,
            as_json=lambda c: {
                "name": c.name,
                "verdict": c.verdict,
                "found": c.found,
                "todo": c.todo,
                "command": c.command,
            },
            identity=lambda c: c.name,
            columns=(),
        )
        show_listing(listing, form)
    return FAILED if any(check.verdict == "fail" for check in checks) else OK


def page(checks: list[Check]) -> str:
    width = max(len(check.name) for check in checks)
    indent = width + 8
    lines = []
    for check in checks:
        verdict = paint(f"{check.verdict:<4}", COLOURS[check.verdict])
        lines.append(f"{verdict}  {check.name:<{width}}  {wrapped(check.found, indent)}")
        if check.todo:
            lines.append(" " * indent + wrapped(f"-> {check.todo}", indent))
        if check.command:  # In one piece, however long: it is there to be pasted.
            lines.append(" " * indent + f"$ {check.command}")
    return "\n".join(lines)

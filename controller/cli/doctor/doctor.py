"""`cotenant doctor`: what works here, what does not, and what to do: its page, and the order of its checks.

Rule: to add a check, write a function of `Facts` in the file of its topic (`check` says what it promises),
and put it into CHECKS; what to do, if it has a command, goes into `fixes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from cotenant.controller.cli.doctor import controller_checks, host_checks, mps_checks
from cotenant.controller.cli.doctor.check import Check, CheckFunction, CheckResult
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.gpu_checks import GPU_CHECKS
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, Listing, show_listing
from cotenant.controller.client.asking import loaded_settings
from cotenant.controller.domain import texts
from cotenant.controller.present.problem import FAILED, OK
from cotenant.controller.present.screen import paint, say, terminal_width, wrap_text
from cotenant.controller.present.tables import LAST_WIDTH_MIN, cut

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WORST_FIRST: Final[tuple[CheckResult, ...]] = ("fail", "warn", "ok")
CHECKS: Final[tuple[CheckFunction, ...]] = (
    host_checks.python,
    host_checks.torch,
    *GPU_CHECKS,
    mps_checks.mps,
    mps_checks.device_memory,
    mps_checks.mps_neighbours,
    host_checks.dcgm_neighbours,
    host_checks.network_cards,
    host_checks.cgroups,
    host_checks.survival,
    host_checks.other_agents,
    host_checks.fork_servers,
    host_checks.container,
    host_checks.limits,
    host_checks.settings_files,
    host_checks.shared_memory,
    host_checks.account,
    host_checks.agent,
    controller_checks.socket,
    controller_checks.controller,
    controller_checks.standby,
    controller_checks.hosts,
    controller_checks.messages,
    controller_checks.messages_to_people,
    controller_checks.journal_scrubbed,
    controller_checks.clock,
)


def doctor(
    strict: Annotated[bool, option("--strict", help="Exit code 1 for a warning, too.")] = False,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> int:
    """Check what works on this machine, what does not, and what to do. Exit code 1 if anything fails.

    What fails comes first, then warnings: what works less well, or not yet. Ask as whoever runs the agent.

    For example:

      cotenant doctor
      cotenant doctor --strict -o json > /dev/null || echo see to $(hostname)
      cotenant doctor -o json | jq '.checks[] | select(.verdict != "ok")'
    """
    checks = run_all(Facts(loaded_settings(endpoint), endpoint))
    if form in ("table", "wide"):
        say(page(texts.escape_texts(checks), whole=form == "wide"))
    else:
        listing = Listing(noun="check", as_json=msgspec.structs.asdict, identity=lambda c: c.name)
        show_listing(listing.fill(checks, verdict=worst(checks)), form)
    return FAILED if worst(checks) in (("fail", "warn") if strict else ("fail",)) else OK


def worst(checks: Sequence[Check]) -> CheckResult:
    return min((check.verdict for check in checks), key=WORST_FIRST.index, default="ok")


def page(checks: Sequence[Check], *, whole: bool = False) -> str:
    """The page of checks, with what is wrong first. What works takes a line each on a terminal, unless
    `whole`."""
    width = max(len(check.name) for check in checks)
    indent = width + 8
    lines = [summary(checks)]
    for check in sorted(checks, key=lambda each: WORST_FIRST.index(each.verdict)):  # Stable.
        verdict = paint(f"{check.verdict:<4}", COLOURS[check.verdict])
        found = wrap_text(check.found, indent)
        if check.verdict == "ok" and not whole and (room := terminal_width()) is not None:
            found = cut(check.found, max(LAST_WIDTH_MIN, room - indent))
        lines.append(f"{verdict}  {check.name:<{width}}  {found}")
        if check.todo:
            lines.append(" " * indent + wrap_text(f"-> {check.todo}", indent))
        if check.command:  # In one piece, however long: it is there to be pasted.
            lines.append(" " * indent + f"$ {check.command}")
    return "\n".join(lines)


def summary(checks: Sequence[Check]) -> str:
    """`1 fails, 2 warn, 17 ok`."""
    counts = Counter(check.verdict for check in checks)
    told = {verdict: f"{counts[verdict]} {verdict}" for verdict in WORST_FIRST if counts[verdict]}
    if counts["fail"] == 1:
        told["fail"] += "s"
    return ", ".join(paint(words, COLOURS[verdict]) for verdict, words in told.items())


def run_all(facts: Facts) -> list[Check]:
    """What each check says, in their order; those that do not apply here say nothing. It changes nothing;
    asking the driver may take some seconds."""
    said = [found for check in CHECKS if (found := check(facts)) is not None]
    return [*said, *([] if facts.is_guest else host_checks.folders(facts))]

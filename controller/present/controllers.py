"""Which controller leads and which follow, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cotenant.controller.present import units
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

NO_STANDBY_ADVICE: Final = "start one with `cotenant controller --standby` on another host"


def page(found: wire.ControllersView) -> str:
    """What `cotenant controller status` prints."""
    lines = list(_lines(found))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _lines(found: wire.ControllersView) -> Iterator[tuple[str, str]]:
    yield "leader", leader_text(found)
    for each in found.standbys:
        yield "standby", f"{each.endpoint} on {each.host}, {lag_text(each)}"
    if not found.standbys and found.term:
        yield "standby", f"none: {NO_STANDBY_ADVICE}"
    yield "journal", f"{found.journal}, {found.entries:,} entries"
    yield "asked", f"{found.endpoint}, the {found.role}"
    if found.problem:
        yield "problem", found.problem


def leader_text(found: wire.ControllersView) -> str:
    """Who leads, since when and why, in words."""
    where = f"{found.leader} on {found.leader_host}" if found.leader_host else found.leader or "nobody"
    since = f", since {units.local_time(wall_s(found.leads_since))}" if found.leads_since else ""
    return f"{where}{since}" + (f" (term {found.term}: {found.why})" if found.why else "")


def lag_text(standby: wire.StandbyView) -> str:
    """How far a standby is behind, in words."""
    if standby.behind_entries == 0 and standby.behind_s < 3.0:
        return "up to date"
    entries = "1 entry" if standby.behind_entries == 1 else f"{standby.behind_entries:,} entries"
    return f"{entries} and {standby.behind_s:.0f} s behind"

"""How the controller is reached from here, and what it says of itself, its hosts and its journal."""

from __future__ import annotations

import os
import stat
import time
from typing import Final

from cotenant.controller.cli.doctor.check import Finding, check, fail, name_some, ok, warn
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.client.submitter import own_webhook
from cotenant.controller.domain import DIVIDED, HostState
from cotenant.controller.present.controllers import NO_STANDBY_ADVICE, lag_text, leader_text
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.units import duration, plural
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import is_system_socket, socket_path
from cotenant.controller.system.keys import KeyProblem, find_key
from cotenant.controller.system.local_users import EVERYBODY
from cotenant.controller.wire import clients as wire

CLOCK_OFF_S: Final = 5.0
NAMED_MAX: Final = 5
REFUSED_MESSAGES: Final = {
    "bad_messages": "unreadable",
    "unauthenticated": "with an unknown key",
    "refused_agents": "from agents that were sent away",
}


@check("socket")
def socket(facts: Facts) -> Finding:
    settings = facts.loaded.settings
    try:
        where = paths.client_endpoint(settings)
        path = socket_path(where)
    except (ValueError, OSError) as error:
        return fail(str(error), "set controller.endpoint")
    if path is None:
        return _key(facts, where)
    if not path.exists():
        return ok(f"{path} (not there yet)")
    mode = stat.S_IMODE(path.stat().st_mode)
    if is_system_socket(path):
        users = settings.controller.users
        whom = {"": "for its owner alone", EVERYBODY: "for every account of this machine"}
        return ok(f"{path}, {whom.get(users, f'for the group {users}')}")
    if mode & 0o077:
        return fail(f"{path} has mode {mode:o}", "who can connect is its owner", f"chmod 600 {path}")
    return ok(f"{path}, for you alone")


def _key(facts: Facts, where: str) -> Finding:
    """The person's own, for a controller on TCP."""
    place = paths.keys_dir(facts.loaded.settings)
    try:
        find_key(place)
    except KeyProblem as error:
        todo = "an admin makes one with `cotenant init --user NAME`; set controller.keys_dir to it"
        chmod = f"chmod 600 {place}" if place.is_file() and os.access(place, os.R_OK) else ""
        return fail(f"{where}: {error}", todo, chmod)
    except OSError as error:
        return fail(f"{where}: {place}: {error.strerror}", "set controller.keys_dir")
    return ok(f"{where} (key in {place})")


@check("controller")
def controller(facts: Facts) -> Finding:
    from cotenant.controller.cli.setup.config import own_version

    status, why = facts.answers.status, facts.answers.why_unreachable
    if status is None:
        assert why is not None  # It has answered, or there is a reason.
        todo = why.hint or "start one with `cotenant up`"
        if facts.loaded.origins["controller.endpoint"] != "default":  # A controller should be there.
            return fail(why.message, todo)
        if facts.link is None:
            return warn(why.message, todo)
        todo = "for questions from here set controller.endpoint and controller.keys_dir to yours"
        return ok(f"that of the agent, {facts.link.endpoint}; {todo}")
    if status.version != own_version():
        found = f"version {status.version}, this is {own_version()}"
        return warn(found, "the controller is upgraded first, then agents and users")
    return ok(f"{status.endpoint}, policy {status.policy}, {plural(status.hosts, 'host')}")


@check("standby")
def standby(facts: Facts) -> Finding | None:
    """Checks that another controller could take over; only where they share a journal."""
    found = facts.answers.controllers
    if found is None or not found.term:
        return None
    leader = leader_text(found)
    if not found.standbys:
        return warn(f"nobody could take over from {leader}", NO_STANDBY_ADVICE)
    lags = "; ".join(f"{each.endpoint} is {lag_text(each)}" for each in found.standbys)
    if any(each.is_near for each in found.standbys):
        return ok(f"{lags}; leader: {leader}")
    todo = "its log says why: journalctl -u cotenant-controller on its host"
    return warn(f"{lags}; leader: {leader}", todo)


@check("hosts")
def hosts(facts: Facts) -> Finding | None:
    if facts.answers.nodes is None:
        return None
    nodes = facts.answers.nodes.nodes
    if bad := [f"{node.host} is {node.state.value}" for node in nodes if node.state is not HostState.OK]:
        return warn(", ".join(bad[:NAMED_MAX]), "cotenant nodes")
    if not nodes:
        return warn("no agent has joined", "cotenant agent")
    every = [device for node in nodes for device in node.devices]
    devices = [device for device in every if not device.note.startswith(DIVIDED)]
    if idle := [f"{device.device_id} ({device.note})" for device in devices if not device.healthy]:
        return warn(f"not offered: {', '.join(idle[:NAMED_MAX])}", "cotenant nodes")
    found = f"{plural(len(nodes), 'host')}, {plural(len(devices), 'device')}"
    lonely = ", ".join([str(node.host) for node in nodes if node.address.startswith("127.")][:NAMED_MAX])
    if lonely and len(nodes) > 1:
        found += f"; jobs over several hosts leave out {lonely}: agent.address is not set there"
    return ok(found)


@check("messages")
def messages(facts: Facts) -> Finding | None:
    """Checks what the controller dropped. Nothing of it did any harm; many of them have a cause worth
    knowing."""
    if facts.answers.status is None:
        return None
    counters = facts.answers.status.counters
    dropped = [f"{counters[key]} {what}" for key, what in REFUSED_MESSAGES.items() if counters.get(key)]
    if dropped:
        todo = "an older cotenant, a wrong key or a stray program; nothing of it was obeyed"
        return warn(f"dropped: {', '.join(dropped)}", todo)
    return ok(f"{plural(counters.get('messages', 0), 'message')}, none dropped")


@check("notify")
def messages_to_people(facts: Facts) -> Finding | None:
    """Checks your own settings, and the controller's ways to tell people, as far as they were used."""
    try:
        own_webhook(facts.loaded.settings.notify)
    except Problem as problem:
        return warn(problem.message, "see docs/notifications.md")
    ways = facts.answers.ways
    if broken := [f"{way} {state}" for way, state in ways.items() if state.startswith("failed")]:
        return warn("; ".join(broken), "mend the setting that it names", "cotenant notify test")
    if not ways:
        return None
    used = [f"{way} {'works' if state else 'not tried yet'}" for way, state in ways.items()]
    return ok(f"{', '.join(used)}; `cotenant notify test` tries them")


@check("entries")
def journal_scrubbed(facts: Facts) -> Finding | None:
    """What the controller found when it last looked at its whole journal."""
    status = facts.answers.status
    if status is None or status.journal_checked_s is None:
        return None
    if status.journal_damages:
        return warn(name_some(status.journal_damages, 3, "; "), wire.DAMAGED_JOURNAL_ADVICE)
    return ok(f"the journal was sound {duration(status.journal_checked_s)} ago")


@check("clock")
def clock(facts: Facts) -> Finding:
    """Durations, never clock times, cross the wire; a wrong clock only shows wrong times."""
    if facts.answers.status is None:
        return ok(time.strftime("%Y-%m-%d %H:%M:%S %Z"))
    off_s = abs(time.time() - facts.answers.status.wall_s)
    if off_s > CLOCK_OFF_S:
        return warn(f"{off_s:.0f} s off the controller's", "use NTP on both; only shown times are wrong")
    return ok("agrees with the controller's")

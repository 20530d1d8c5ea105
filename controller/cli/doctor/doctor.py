"""`cotenant doctor`: what works here, what does not, and what to do. One function per check; each looks, and
changes nothing.

Rule: a check says what it found, and for anything but ok what to do. To add one, write a function that
takes `DoctorFacts` and put it into CHECKS; what is about GPUs stands in `gpu_checks`, about MPS in
`host_checks`.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cotenant.controller.cli.doctor import gpu_host
from cotenant.controller.cli.doctor.agent_link import ask_as_agent, host_name
from cotenant.controller.cli.doctor.check import Check, CheckResult, DoctorFacts
from cotenant.controller.cli.doctor.containers import try_container
from cotenant.controller.cli.doctor.enabling import privileged_command
from cotenant.controller.cli.doctor.gpu_checks import GPU_CHECKS
from cotenant.controller.cli.doctor.host_checks import HOST_CHECKS, agent, device_memory, folders, mps, torch
from cotenant.controller.cli.doctor.surroundings import look_around
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen_format,
    show_listing,
)
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.client.connection import Refusal
from cotenant.controller.client.own_notify import own_webhook
from cotenant.controller.domain import DIVIDED, HostState, texts
from cotenant.controller.present.controllers import NO_STANDBY_ADVICE, lag_text, leader_text
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import paint, say, terminal_width, wrap_text
from cotenant.controller.present.tables import LAST_WIDTH_MIN, cut
from cotenant.controller.present.units import duration, plural, size
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import is_system_socket, socket_path
from cotenant.controller.system.keys import KeyProblem, find_key
from cotenant.controller.system.local_users import EVERYBODY
from cotenant.controller.system.sections import ProfilerSettings
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire import clients as wire
from cotenant.mps import detection
from cotenant.profiler.driver.cdi import why_no_names
from cotenant.profiler.driver.facts import DriverFacts
from cotenant.profiler.driver.probe_client import driver_facts
from cotenant.profiler.indicators.device_process import Explanation, explain
from cotenant.profiler.indicators.sources import Wanted

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WORST_FIRST: Final = ("fail", "warn", "ok")

CLOCK_OFF_S: Final = 5.0
DRIVER_S_MAX: Final = 30.0
"""A person waits for this; the agent allows more, since it must not misjudge a driver that starts slowly."""


def doctor(
    strict: Annotated[bool, option("--strict", help="Exit code 1 for a warning, too.")] = False,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> int:
    """Check what works on this machine, what does not, and what to do. Exit code 1 if anything fails.

    What fails comes first, then warnings: what works less well, or not yet. Ask as whoever runs the agent.

    For example:

      cotenant doctor
      cotenant doctor --strict -o json > /dev/null || echo see to $(hostname)
      cotenant doctor -o json | jq '.checks[] | select(.verdict != "ok")'
    """
    form = chosen_format(output, as_json)
    facts = gather(loaded_settings(endpoint), endpoint)
    checks = run_all(facts)
    if form in ("table", "wide"):
        say(page(texts.escape_texts(checks), whole=form == "wide"))
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
    words = {"fail": "fails", "warn": "warn", "ok": "ok"}
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in WORST_FIRST}
    told = [
        paint(f"{count} {'fail' if verdict == 'fail' and count > 1 else words[verdict]}", COLOURS[verdict])
        for verdict, count in counts.items()
        if count
    ]
    return ", ".join(told)


def gather(loaded: LoadedSettings, endpoint: str | None) -> DoctorFacts:
    """Everything the checks need. Changes nothing; asking the driver may take some seconds."""
    driver = driver_facts(DRIVER_S_MAX, diagnostics=True)
    facts = msgspec.structs.replace(_answers(loaded, endpoint), host=host_name(loaded.settings))
    knows_us = None if facts.nodes is None else facts.here is not None
    return msgspec.structs.replace(
        facts,
        driver=driver,
        files=gpu_host.look(),
        mps=detection.look(
            paths.mps_runtime_dir(loaded.settings.mps), allowed=loaded.settings.mps.mode != "off"
        ),
        indicators=_indicators(loaded.settings.profiler, driver),
        around=look_around(loaded, knows_us=knows_us),
        link=ask_as_agent(loaded.settings),
        container=try_container(),
        no_names=why_no_names(each.uuid for gpu in driver.gpus for each in gpu.instances or (gpu,)),
    )


def _answers(loaded: LoadedSettings, endpoint: str | None) -> DoctorFacts:
    """What the controller says, or why it says nothing."""
    try:
        with asking(endpoint, timeout_s=3.0) as client:
            status, nodes = client.ask(wire.GetStatus()), client.ask(wire.ListNodes())
            try:
                controllers = client.ask(wire.GetControllers())
            except Refusal:  # An older one does not know the question.
                controllers = None
            try:
                ways = client.ask(wire.GetNotice()).ways
            except Refusal:
                ways = {}
        return DoctorFacts(
            loaded=loaded,
            status=status,
            nodes=nodes,
            why_unreachable=None,
            controllers=controllers,
            ways=ways,
        )
    except Problem as problem:
        return DoctorFacts(loaded=loaded, status=None, nodes=None, why_unreachable=problem)


def _indicators(profiler: ProfilerSettings, driver: DriverFacts) -> Explanation | None:
    uuids = [gpu.uuid for gpu in driver.gpus if not gpu.problem and not gpu.mig]
    if not uuids:
        return None
    return explain(uuids, Wanted(source=profiler.source, dcgm=profiler.dcgm, exporter=profiler.exporter))


def run_all(facts: DoctorFacts) -> list[Check]:
    """What each check says, in their order; those that do not apply here say nothing."""
    said = [found for check in CHECKS if (found := check(facts)) is not None]
    return [*said, *([] if _is_guest(facts) else folders(facts))]


def _is_guest(facts: DoctorFacts) -> bool:
    """Whether all work here is done by services of the machine, for whose folders others answer."""
    with suppress(ValueError, OSError):
        path = socket_path(paths.client_endpoint(facts.loaded.settings))
        return path is not None and is_system_socket(path) and os.getuid() != 0
    return False


def python(_facts: DoctorFacts) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "ok", f"{version} at {sys.executable}")


def socket(facts: DoctorFacts) -> Check:
    try:
        where = paths.client_endpoint(facts.loaded.settings)
        path = socket_path(where)
    except (ValueError, OSError) as error:
        return Check("socket", "fail", str(error), "set controller.endpoint")
    if path is None:
        return _key(facts, where)
    if not path.exists():
        return Check("socket", "ok", f"{path} (not there yet)")
    mode = stat.S_IMODE(path.stat().st_mode)
    if is_system_socket(path):
        users = facts.loaded.settings.controller.users
        whom = {"": "for its owner alone", EVERYBODY: "for every account of this machine"}
        return Check("socket", "ok", f"{path}, {whom.get(users, f'for the group {users}')}")
    if mode & 0o077:
        return Check(
            "socket", "fail", f"{path} has mode {mode:o}", "who can connect is its owner", f"chmod 600 {path}"
        )
    return Check("socket", "ok", f"{path}, for you alone")


def _key(facts: DoctorFacts, where: str) -> Check:
    """The person's own, for a controller on TCP."""
    place = paths.keys_dir(facts.loaded.settings)
    try:
        find_key(place)
    except KeyProblem as error:
        todo = "an admin makes one with `cotenant init --user NAME`; set controller.keys_dir to it"
        chmod = f"chmod 600 {place}" if place.is_file() and os.access(place, os.R_OK) else ""
        return Check("socket", "fail", f"{where}: {error}", todo, chmod)
    except OSError as error:
        return Check("socket", "fail", f"{where}: {place}: {error.strerror}", "set controller.keys_dir")
    return Check("socket", "ok", f"{where} (key in {place})")


def shared_memory(facts: DoctorFacts) -> Check:
    """Data loaders with workers pass batches through it."""
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return Check(
            "/dev/shm",
            "warn",
            "not usable",
            "data loaders with workers will fail; mount a tmpfs there",
            privileged_command("sudo mount -t tmpfs -o size=4G,mode=1777 tmpfs /dev/shm", facts.files),
        )
    total_mib = shutil.disk_usage(path).total // 2**20
    if total_mib < 512:
        todo = "data loaders with workers need more; in a container: --shm-size=4g"
        command = privileged_command("sudo mount -o remount,size=4G /dev/shm", facts.files)
        return Check("/dev/shm", "warn", f"only {size(total_mib)}", todo, command)
    return Check("/dev/shm", "ok", size(total_mib))


def account(facts: DoctorFacts) -> Check:
    if facts.loaded.settings.agent.shared_account:
        todo = "unset agent.shared_account, or run the agent as root"
        return Check("account", "warn", "shared_account: everybody's jobs run as you. Unsafe", todo)
    who = "root: jobs run as their own users" if os.getuid() == 0 else "you: the agent runs your jobs only"
    if _is_guest(facts):
        who = "yours: the services of this machine run your jobs as you"
    return Check("account", "ok", who)


def clock(facts: DoctorFacts) -> Check:
    """Durations, never clock times, cross the wire; a wrong clock only shows wrong times."""
    if facts.status is None:
        return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))
    off_s = abs(time.time() - facts.status.wall_s)
    if off_s > CLOCK_OFF_S:
        return Check(
            "clock",
            "warn",
            f"{off_s:.0f} s off the controller's",
            "use NTP on both; only shown times are wrong",
        )
    return Check("clock", "ok", "agrees with the controller's")


def controller(facts: DoctorFacts) -> Check:
    from cotenant.controller.cli.setup.config import own_version

    if facts.status is None:
        assert facts.why_unreachable is not None  # gather sets one of the two
        why = facts.why_unreachable
        if facts.loaded.origins["controller.endpoint"] == "default":
            return _no_controller_wanted(facts, why)
        # An endpoint was set: a controller should be there.
        return Check("controller", "fail", why.message, why.hint or "start one with `cotenant up`")
    status = facts.status
    if status.version != own_version():
        found = f"version {status.version}, this is {own_version()}"
        return Check("controller", "warn", found, "the controller is upgraded first, then agents and users")
    return Check(
        "controller", "ok", f"{status.endpoint}, policy {status.policy}, {plural(status.hosts, 'host')}"
    )


def _no_controller_wanted(facts: DoctorFacts, why: Problem) -> Check:
    if facts.link is not None:
        todo = "for questions from here set controller.endpoint and controller.keys_dir to yours"
        return Check("controller", "ok", f"that of the agent, {facts.link.endpoint}; {todo}")
    return Check("controller", "warn", why.message, why.hint or "start one with `cotenant up`")


REFUSED_MESSAGES: Final = {
    "bad_messages": "unreadable",
    "unauthenticated": "with an unknown key",
    "refused_agents": "from agents that were sent away",
}


def messages(facts: DoctorFacts) -> Check | None:
    """Checks what the controller dropped. Nothing of it did any harm; many of them have a cause worth
    knowing."""
    if facts.status is None:
        return None
    counters = facts.status.counters
    dropped = [f"{counters[key]} {what}" for key, what in REFUSED_MESSAGES.items() if counters.get(key)]
    if dropped:
        todo = "an older cotenant, a wrong key or a stray program; nothing of it was obeyed"
        return Check("messages", "warn", f"dropped: {', '.join(dropped)}", todo)
    return Check("messages", "ok", f"{plural(counters.get('messages', 0), 'message')}, none dropped")


def journal_scrubbed(facts: DoctorFacts) -> Check | None:
    """What the controller found when it last looked at its whole journal."""
    status = facts.status
    if status is None or status.journal_checked_s is None:
        return None
    if status.journal_damages:
        more = len(status.journal_damages) - 3
        found = "; ".join(status.journal_damages[:3]) + (f" and {more} more" if more > 0 else "")
        return Check("entries", "warn", found, wire.DAMAGED_JOURNAL_ADVICE)
    return Check("entries", "ok", f"the journal was sound {duration(status.journal_checked_s)} ago")


def messages_to_people(facts: DoctorFacts) -> Check | None:
    """Checks your own settings, and the controller's ways to tell people, as far as they were used."""
    try:
        own_webhook(facts.loaded.settings.notify)
    except Problem as problem:
        return Check("notify", "warn", problem.message, "see docs/notifications.md")
    broken = [f"{way} {state}" for way, state in facts.ways.items() if state.startswith("failed")]
    if broken:
        return Check(
            "notify", "warn", "; ".join(broken), "mend the setting that it names", "cotenant notify test"
        )
    if not facts.ways:
        return None
    used = [f"{way} {'works' if state else 'not tried yet'}" for way, state in facts.ways.items()]
    return Check("notify", "ok", f"{', '.join(used)}; `cotenant notify test` tries them")


def standby(facts: DoctorFacts) -> Check | None:
    """Checks that another controller could take over; only where they share a journal."""
    found = facts.controllers
    if found is None or not found.term:
        return None
    leader = leader_text(found)
    if not found.standbys:
        return Check("standby", "warn", f"nobody could take over from {leader}", NO_STANDBY_ADVICE)
    lags = "; ".join(f"{each.endpoint} is {lag_text(each)}" for each in found.standbys)
    if not any(each.is_near for each in found.standbys):
        todo = "its log says why: journalctl -u cotenant-controller on its host"
        return Check("standby", "warn", f"{lags}; leader: {leader}", todo)
    return Check("standby", "ok", f"{lags}; leader: {leader}")


def hosts(facts: DoctorFacts) -> Check | None:
    if facts.nodes is None:
        return None
    bad = [
        f"{node.host} is {node.state.value}" for node in facts.nodes.nodes if node.state is not HostState.OK
    ]
    if bad:
        return Check("hosts", "warn", ", ".join(bad[:5]), "cotenant nodes")
    if not facts.nodes.nodes:
        return Check("hosts", "warn", "no agent has joined", "cotenant agent")
    every = [device for node in facts.nodes.nodes for device in node.devices]
    devices = [device for device in every if not device.note.startswith(DIVIDED)]
    idle = [f"{device.device_id} ({device.note})" for device in devices if not device.healthy]
    if idle:
        return Check("hosts", "warn", f"not offered: {', '.join(idle[:5])}", "cotenant nodes")
    found = f"{plural(len(facts.nodes.nodes), 'host')}, {plural(len(devices), 'device')}"
    lonely = [str(node.host) for node in facts.nodes.nodes if node.address.startswith("127.")]
    if lonely and len(facts.nodes.nodes) > 1:
        found += (
            f"; jobs over several hosts leave out {', '.join(lonely[:5])}: agent.address is not set there"
        )
    return Check("hosts", "ok", found)


CHECKS: Final[tuple[Callable[[DoctorFacts], Check | None], ...]] = (
    python,
    torch,
    *GPU_CHECKS,
    mps,
    device_memory,
    *HOST_CHECKS,
    shared_memory,
    account,
    agent,
    socket,
    controller,
    standby,
    hosts,
    messages,
    messages_to_people,
    journal_scrubbed,
    clock,
)

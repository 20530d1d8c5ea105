"""Which daemons a host should run as services, with which options: what its configuration says, or the user.

Rule: the settings that count are those that the services will read: of a machine those in /etc/cotenant,
since a service has nobody's home folder and nobody's environment.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.cli.setup.units import DAEMONS, DaemonName, UnitContext
from cotenant.controller.cli.setup.web import cannot_serve
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import paths, settings
from cotenant.controller.system.endpoint import (
    SYSTEM_ENDPOINT,
    BadEndpoint,
    any_address,
    endpoints_of,
    is_of_this_machine,
    is_system_socket,
    socket_path,
    this_host,
)
from cotenant.controller.system.keys import KeyProblem, find_key
from cotenant.controller.system.local_users import EVERYBODY

SETTINGS_FILE: Final = settings.SYSTEM_DIR / "cotenant.toml"
STATE_DIR: Final = "/var/lib/cotenant-"
CARRIED: Final = (settings.ENV_FILE, "PGPASSFILE")
"""Variables that services get from the shell that installs them."""


class HostServices(NamedTuple):
    """What `service install` makes of a host."""

    daemons: tuple[DaemonName, ...]
    context: UnitContext
    endpoint: str
    """Where the controller is asked."""
    host: str
    """The name of this host's agent."""
    settings_text: str
    """A settings file to write, for a machine that has none yet; empty: it has."""
    keys_dir: Path | None
    """The folder of keys that the controller reads; none: it needs none."""
    notes: tuple[str, ...]


def plan_services(
    asked: Collection[DaemonName], *, is_system: bool, users: str, program: str, environ: Mapping[str, str]
) -> HostServices:
    """Decides what this host runs. `asked`: what the user named; empty: what the configuration says. `users`:
    who shares a machine that has no settings yet.

    Raises:
        Problem: a setting is wrong or missing, or nothing is left to run.
    """
    loaded, text = _settings_of_services(is_system, users, environ)
    context = _unit_context(loaded, is_system=is_system, program=program, environ=environ)
    needs_keys = socket_path(paths.client_endpoints(loaded.settings)[0]) is None
    daemons, notes = (asked, []) if asked else _derive_daemons(loaded, is_system=is_system)
    if not daemons:
        raise Problem("refused", "; ".join(notes), "name what to run: --controller, --agent or --web")
    if is_system and "web" in daemons:
        raise Problem(
            "refused",
            "a page acts for one person, so it is no service of the machine",
            "as that person: cotenant service install --user --web",
        )
    if "web" in daemons and (problem := cannot_serve()) is not None:
        raise problem
    if is_system and needs_keys and "controller" in daemons and not loaded.settings.controller.keys_dir:
        raise Problem(
            "config", "a controller on TCP needs keys", f"set controller.keys_dir in {settings.SYSTEM_DIR}"
        )
    ignored = [name for name in sorted(environ) if settings.ENV_PATTERN.fullmatch(name)]
    if ignored:
        notes = [*notes, f"{', '.join(ignored)}: services do not see variables; put it into a settings file"]
    return HostServices(
        tuple(each for each in DAEMONS if each in daemons),
        context,
        paths.client_endpoint(loaded.settings),
        this_host(loaded.settings.agent.host),
        text,
        paths.keys_dir(loaded.settings) if needs_keys else None,
        tuple(notes),
    )


def _settings_of_services(
    is_system: bool, users: str, environ: Mapping[str, str]
) -> tuple[settings.LoadedSettings, str]:
    """The settings in force for services, and the text of a file that has to be written for that."""
    seen = {name: environ[name] for name in (settings.ENV_FILE, "HOME", "XDG_CONFIG_HOME") if name in environ}
    if is_system:
        home = pwd.getpwuid(0).pw_dir if os.geteuid() == 0 else "/nonexistent"
        seen = {**seen, "HOME": home, "XDG_CONFIG_HOME": ""}
    try:
        loaded = settings.load(environ=seen)
    except settings.SettingsError as error:
        raise Problem("config", str(error)) from None
    named = [key for key in ("controller.endpoint", "controller.listen", "agent.controller")
             if loaded.origins[key] != "default"]  # fmt: skip
    if not is_system or named:
        if users:
            where = f"set controller.users in {settings.SYSTEM_DIR}" if is_system else "add --system"
            raise Problem("usage", "--group is for a machine that has no settings yet", where)
        return loaded, ""
    flags = {
        "controller.endpoint": SYSTEM_ENDPOINT,
        "controller.users": users or EVERYBODY,
        "controller.state_dir": f"{STATE_DIR}controller",
        "agent.state_dir": f"{STATE_DIR}agent",
        "policy.fair_share_half_life_s": FAIR_SHARE_HALF_LIFE_S,
    }
    return settings.load(flags, environ=seen), FIRST_SETTINGS.format(*flags.values())


FAIR_SHARE_HALF_LIFE_S: Final = 7 * 86400
"""So that a hundred jobs of one person do not keep the others waiting."""
FIRST_SETTINGS: Final = """\
# One machine for all who have an account on it: each acts as who they are, and nobody needs a key.
# Written by `cotenant service install --system`, and yours to change; `cotenant config` explains every key.

[controller]
endpoint = "{}"
users = "{}"  # "*": every account; or the name of a group
state_dir = "{}"

[agent]
state_dir = "{}"

[policy]
fair_share_half_life_s = {}  # a week: who had less of the devices lately goes first; 0: nobody does
"""


def _derive_daemons(
    loaded: settings.LoadedSettings, *, is_system: bool
) -> tuple[tuple[DaemonName, ...], list[str]]:
    """What runs on a host with these settings; and why something does not."""
    page: tuple[DaemonName, ...] = () if is_system or cannot_serve() is not None else ("web",)
    asked = paths.client_endpoints(loaded.settings)[0]
    if not is_system and ((path := socket_path(asked)) is None or is_system_socket(path)):
        return page, [] if page else [
            f"the controller at {asked} is not yours, and the page is not installed"
        ]
    if not _has_controller(loaded):
        return ("agent", *page), []
    try:
        endpoint = paths.agent_endpoints(loaded.settings)[0]
        if socket_path(endpoint) is None:
            given, host = loaded.settings.agent.keys_dir, this_host(loaded.settings.agent.host)
            if not given:
                raise KeyProblem(
                    f"it needs a key (`cotenant init --host {host}`), and agent.keys_dir is not set"
                )
            find_key(Path(given).expanduser(), host=host)
    except (KeyProblem, OSError) as error:
        return ("controller", *page), [f"no agent here: {error}"]
    return ("controller", "agent", *page), []


def _is_shared(loaded: settings.LoadedSettings) -> bool:
    """Whether a user's controller is a service of this machine, for others as well."""
    asked = paths.client_endpoints(loaded.settings)[0]
    path = socket_path(asked)
    return is_of_this_machine(asked) if path is None else is_system_socket(path)


def _has_controller(loaded: settings.LoadedSettings) -> bool:
    """Whether the controller's endpoint is one of this host."""
    try:
        listed = endpoints_of(loaded.settings.controller.endpoint)
        if not listed and not loaded.settings.controller.listen:
            return not loaded.settings.agent.controller
        at = paths.controller_endpoint(loaded.settings)
        return socket_path(at) is not None or any_address(at) or is_of_this_machine(at)
    except (BadEndpoint, settings.SettingsError):
        return False


def _unit_context(
    loaded: settings.LoadedSettings, *, is_system: bool, program: str, environ: Mapping[str, str]
) -> UnitContext:
    given, state, runtime_name = loaded.settings.controller, "", ""
    options: dict[DaemonName, tuple[str, ...]] = {
        "controller": ("--standby",) if given.journal else (),
        # Others use this machine as well, and a browser's cookies do not tell the ports of an address apart.
        "web": ("--socket", str(paths.runtime_dir() / "page.sock")) if _is_shared(loaded) else (),
    }
    if is_system:
        if not given.state_dir:
            options["controller"] = ("--state-dir", f"{STATE_DIR}controller", *options["controller"])
        if not loaded.settings.agent.state_dir:
            options["agent"] = ("--state-dir", f"{STATE_DIR}agent")
        state = "" if given.state_dir == f"{STATE_DIR}controller" else given.state_dir
        path = socket_path(paths.controller_endpoint(loaded.settings)) if _has_controller(loaded) else None
        runtime_name = path.parent.name if path is not None and is_system_socket(path) else ""
    return UnitContext(
        program=program,
        is_system=is_system,
        environment={name: os.path.abspath(environ[name]) for name in CARRIED if environ.get(name)},
        options=options,
        state_dir=state,
        runtime_name=runtime_name,
    )

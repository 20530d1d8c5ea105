"""What the host of a standby needs to stand in for the controller of this one: its keys, its table of users,
and its settings with both endpoints.

Rule: the two controllers share one pair of keys, so agents and people keep theirs. Whoever has these files is
the controller: they are 0600 in a folder 0700, and go to that host alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.system.endpoint import (
    BadEndpoint,
    any_address,
    check_endpoints,
    endpoints_of,
    host_of,
    socket_path,
)
from cotenant.controller.system.keys import CONTROLLER_KEY, USERS_FILE, KeyProblem, read_key, write_key_file
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire import decode_text

SETTINGS_FILE: Final = "controller.toml"


class SecondHost(NamedTuple):
    endpoint: str
    """Of the controller there."""
    endpoints: tuple[str, ...]
    """Of all controllers of the cluster, this one included."""
    folder: Path
    """With the files to copy."""

    @property
    def next_steps(self) -> str:
        """What an admin does with them, in commands."""
        place, there, keys = self.endpoint.removeprefix("tcp://"), host_of(self.endpoint), self.folder.parent
        config = "/etc/cotenant/controller.toml"
        lines = (
            f"these files are the controller's identity: copy them to {there} only, as root:",
            f"  ssh {there} install -d -m 0700 {keys}",
            f"  rsync -a {self.folder}/ {there}:{keys}/",
            f"  ssh {there} mv {keys / SETTINGS_FILE} {config}",
            f"  ssh {there} COTENANT_CONFIG={config} cotenant controller --standby",
            f"here, for users and on servers (agent.controller): endpoint = {json.dumps(self.endpoints)}",
            f"after each --user, --host or --remove, again: cotenant init --standby {place} --force",
        )
        return "\n".join(lines)


def prepare_second_host(
    loaded: LoadedSettings, folder: Path, host: str, *, force: bool = False
) -> SecondHost:
    """Writes the files for `host` (or HOST:PORT) below the folder of keys.

    Raises:
        KeyProblem: no cluster here, or the files are there and `force` was not given.
        BadEndpoint: others do not reach this controller at its endpoint, or `host` is no other host.
    """
    listed = endpoints_of(loaded.settings.controller.endpoint)
    first = listed[0] if listed else "the socket of its user"
    if not listed or any_address(first) or socket_path(first) is not None:
        raise BadEndpoint(
            f"this controller listens at {first}, where other hosts do not find it: set controller.endpoint "
            "to tcp://NAME:PORT, and controller.listen to tcp://0.0.0.0:PORT"
        )
    second = f"tcp://{host}" if host.rpartition("]")[2].count(":") == 1 else f"tcp://{host}:{_port(first)}"
    endpoints = listed if second in listed[1:] else (*listed, second)
    check_endpoints("--standby", endpoints)
    read_key(folder / CONTROLLER_KEY)
    made = SecondHost(second, endpoints, folder / f"standby-{host_of(second)}")
    if made.folder.exists() and not force:
        raise KeyProblem(f"{made.folder} exists: --force writes it again")
    try:  # Root gives it to the controller's account, which may have put a link there.
        made.folder.mkdir(mode=0o700, exist_ok=True)
        opened = os.open(made.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise KeyProblem(f"{made.folder} is no folder that can be used: {error.strerror}") from None
    os.fchmod(opened, 0o700)
    if os.geteuid() == 0:
        os.fchown(opened, folder.stat().st_uid, folder.stat().st_gid)
    os.close(opened)
    for name in (CONTROLLER_KEY, USERS_FILE):
        write_key_file(made.folder / name, decode_text((folder / name).read_bytes()), force)
    write_key_file(made.folder / SETTINGS_FILE, _settings_text(loaded, folder, made), force)
    return made


def _settings_text(loaded: LoadedSettings, keys_dir: Path, made: SecondHost) -> str:
    """The settings that were given to this controller, for the other: it has to decide by the same ones."""
    values = {key: loaded.value(key) for key, origin in loaded.origins.items() if origin != "default"}
    values["controller.endpoint"] = made.endpoints
    values["controller.keys_dir"] = str(keys_dir.absolute())
    listen = values.pop("controller.listen", "")
    if any_address(listen):
        values["controller.listen"] = f"{listen.rpartition(':')[0]}:{_port(made.endpoint)}"
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section != "agent":
            sections.setdefault(section, []).append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    lines = [
        "# Made by `cotenant init --standby`: the settings of the other controller, with both endpoints."
    ]
    for section, settings in sections.items():
        outer, dot, inner = section.partition(".")
        lines += ["", f"[{outer}{dot}{json.dumps(inner, ensure_ascii=False) if inner else ''}]", *settings]
    return "\n".join(lines) + "\n"


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]

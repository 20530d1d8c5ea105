"""`cotenant init`: keys for a cluster over TCP. Who has a key is who they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import JsonFlag, write_json
from cotenant.controller.client.asking import loaded_settings
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import say
from cotenant.controller.system import keys, paths
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.second_host import prepare_second_host


def init(
    folder: Annotated[str, option("--keys-dir", metavar="DIR", help="Where the keys are kept.")] = "",
    user: Annotated[str, option("--user", metavar="NAME", help="A key for this person.")] = "",
    uid: Annotated[
        int,
        option(
            "--uid",
            metavar="UID",
            min=-1,
            show_default=False,
            help="Their uid, if not known on this machine.",
        ),
    ] = -1,
    admin: Annotated[bool, option("--admin", help="The person may change everything.")] = False,
    host: Annotated[str, option("--host", metavar="NAME", help="A key for this host's agent.")] = "",
    standby: Annotated[
        str, option("--standby", metavar="HOST", help="The files of a second controller there (HOST[:PORT]).")
    ] = "",
    remove: Annotated[
        str, option("--remove", metavar="NAME", help="Take a key's right away: NAME or agent@HOST.")
    ] = "",
    force: Annotated[bool, option("--force", help="Replace keys that exist.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make the keys of a cluster, and then one for each user and each host.

    Not needed on a single machine. Without --user and --host it makes the controller's key and an
    admin key for you. Give each key file to its owner only; it is all they need.

    For example:

      cotenant init                          on the controller's machine
      cotenant init --host gpu07             copy the file to gpu07
      cotenant init --user ada               give the file to ada
      cotenant init --standby head2          copy the folder to head2
    """
    if sum(map(bool, (user, host, standby, remove))) > 1:
        raise Problem("usage", "--user, --host, --standby and --remove exclude each other", "one at a time")
    if (admin or uid >= 0) and not user:
        raise Problem("usage", "--uid and --admin belong to --user", "cotenant init --user NAME --admin")
    loaded = loaded_settings()
    place = Path(folder).expanduser() if folder else paths.keys_dir(loaded.settings)
    try:
        if remove:
            _remove(place, remove)
            return
        if standby:
            second = prepare_second_host(loaded, place.absolute(), standby, force=force)
            made, advice = second.folder, second.next_steps
        else:
            made, advice = _make(place, user, uid, admin, host, force)
    except (keys.KeyProblem, BadEndpoint) as error:
        raise Problem("refused", str(error)) from None
    except OSError as error:
        raise Problem("refused", f"{error.filename or place}: {error.strerror}") from None
    if as_json:
        write_json({"schema": "key/1", "file": str(made), "keys_dir": str(place)})
        return
    say(f"wrote {made}")
    say(advice)


def _make(place: Path, user: str, uid: int, admin: bool, host: str, force: bool) -> tuple[Path, str]:
    if user:
        role = keys.add_user(
            place, user, uid if uid >= 0 else None, "admin" if admin else "user", force=force
        )
        return role, f"give it to {user} only: their controller.keys_dir names the file or its folder"
    if host:
        made = keys.add_agent(place, host, force=force)
        return made, f"copy it to {host} (0600): agent.keys_dir there names the file or its folder"
    made = keys.init_cluster(place, force=force)
    return made, "next: cotenant init --host HOST for each server, cotenant init --user NAME for each user"


def _remove(place: Path, name: str) -> None:
    if not keys.remove(place, name):
        raise Problem("not-found", f"{name} has no key in {place}", "agents are called agent@HOST")
    say(f"{name} has no access any more")

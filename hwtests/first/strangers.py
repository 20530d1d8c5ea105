"""Other accounts, daemons in the default folder, GPUs that are not there: who gets drawn into what."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import filemode
from typing import Final

from hwtests.first.control import (
    OTHER_UID,
    Daemon,
    Load,
    Silent,
    ask_client,
    daemon,
    plain_environment,
    python_of,
)
from hwtests.first.notes import Notes
from hwtests.first.place import Place

UNKNOWN: Final = "GPU-00000000-dead-beef-0000-000000000000"
CLIENT_S: Final = 4.0
SETTINGS: Final = (
    "set_default_active_thread_percentage 10",
    "get_default_active_thread_percentage",
    "set_default_device_pinned_mem_limit 0 1G",
    "get_default_device_pinned_mem_limit 0",
    f"start_server -uid {OTHER_UID}",
)


def ask_uid(note: Notes, place: Place) -> None:
    """Root's daemon in an open folder; then one in a folder of the account's own, closed to others."""
    try:
        python_of(OTHER_UID)
    except Silent as problem:
        note("not measured", str(problem))
        return
    with daemon(place.uuid, mode=0o755) as mps:
        note("open folder: modes", {each.name: filemode(each.stat().st_mode) for each in mps.pipe.iterdir()})
        for command in SETTINGS:
            note(f"open folder: uid {OTHER_UID} says {command}", mps.ask(command, OTHER_UID))
        env = plain_environment(place.uuid, str(mps.pipe))
        note(
            f"open folder: client of uid {OTHER_UID}",
            ask_client("open", env=env, within_s=CLIENT_S, uid=OTHER_UID),
        )
    with daemon(place.uuid, uid=OTHER_UID, mode=0o700) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))
        note(
            f"own folder: client of uid {OTHER_UID}",
            ask_client("open", env=env, within_s=CLIENT_S, uid=OTHER_UID),
        )
        note("own folder: servers", mps.ask("get_server_list"))
        other = OTHER_UID + 1
        for command in SETTINGS[:1]:
            note(f"own folder: uid {other} says {command}", mps.ask(command, other))
        note("own folder: control.log", mps.log("control"))
        note("own folder: server.log", mps.log("server", 600))


def ask_stray(note: Notes, place: Place) -> None:
    """In the very folder that CUDA looks in by itself, if nobody has it."""
    folder = Path(place.default_pipe)
    if folder.exists():
        note("not measured", f"{folder} is there already, and is not ours to use")
        return
    try:
        with _daemon_in(folder, place.uuid) as mps:
            fenced = plain_environment(place.uuid)
            silent = {name: value for name, value in fenced.items() if name != "CUDA_MPS_PIPE_DIRECTORY"}
            note("who never asked", _meet(mps, silent))
            note("fenced", _meet(mps, fenced))
            if os.getuid() == 0:
                note("who never asked, as another uid", _meet(mps, silent, OTHER_UID))
                note("fenced, as another uid", _meet(mps, fenced, OTHER_UID))
            note("control.log", mps.log("control"))
    except Silent as problem:
        note("not measured", str(problem))


def _meet(mps: Daemon, env: dict[str, str], uid: int | None = None) -> dict[str, object]:
    """What a program with this environment meets, and whether it becomes a client of that daemon."""
    with Load("open", "stay", env=env, uid=uid) as load:
        said = load.until("opened", CLIENT_S)
        found = {**load.facts(), **({} if "opened" in said else said), "is client": bool(mps.clients())}
        if "error" in said:
            load.kill()  # It may wait in the driver for as long as nobody ends it.
        return found


@contextmanager
def _daemon_in(folder: Path, uuid: str) -> Iterator[Daemon]:
    logs = folder.with_name(f"{folder.name}-logs-of-gpu-first")
    folder.mkdir(mode=0o755)
    try:
        logs.mkdir(mode=0o755)
        mps = Daemon(uuid, folder, logs)
        mps.start()
        try:
            yield mps
        finally:
            mps.close()
    finally:
        for each in (folder, logs):
            shutil.rmtree(each, ignore_errors=True)


def ask_devices(note: Notes, place: Place) -> None:
    """A GPU that nobody knows, first in a daemon's list and in a plain program's, and last."""
    lists = {"unknown first": f"{UNKNOWN},{place.uuid}", "unknown last": f"{place.uuid},{UNKNOWN}"}
    for name, visible in lists.items():
        note(
            f"{name}: a plain program", ask_client("open", env=plain_environment(visible), within_s=CLIENT_S)
        )
        with contextlib.suppress(Silent), daemon(visible) as mps:
            env = plain_environment(place.uuid, str(mps.pipe))
            note(f"{name}: a client", ask_client("open", env=env, within_s=CLIENT_S))
            note(f"{name}: servers", mps.ask("get_server_list"))
            note(f"{name}: control.log", mps.log("control", 600))
            note(f"{name}: server.log", mps.log("server", 600))

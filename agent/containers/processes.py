"""Processes in containers, as the host sees them; and the container program itself, run for a job's user.

Rule: a process is an attempt's if it has the attempt's own socket in its environment. The container's main
process is the one whose parent has not: podman's monitor and docker's daemon lie between us and it.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cotenant.agent.containers.command_lines import remove_command
from cotenant.agent.containers.runtimes import SEARCHED
from cotenant.agent.host.process_identity import stat_of
from cotenant.agent.ipc.records import Order
from cotenant.checkpoint.talk.protocol import ENV_SOCKET
from cotenant.controller.domain import Launch

REMOVE_S: Final = 20.0
RANK_BYTES_MAX: Final = 32
OUTPUT_BYTES_MAX: Final = 64 * 1024
WORDS_CHARS_MAX: Final = 400


def client_environment(uid: int) -> dict[str, str]:
    """What a container program needs of its user's environment. A job's user may have no session here, and so
    no XDG_RUNTIME_DIR; podman then makes a place of its own."""
    env = {"PATH": SEARCHED, "LANG": "C.UTF-8"}
    with suppress(KeyError):  # Known to the submitter's host, not to this one.
        account = pwd.getpwuid(uid)
        env |= {"HOME": account.pw_dir, "USER": account.pw_name}
    session = Path(f"/run/user/{uid}")
    with suppress(OSError):
        if session.stat().st_uid == uid:
            env["XDG_RUNTIME_DIR"] = str(session)
    return env


def users_rights(launch: Launch) -> dict[str, Any]:
    """Arguments of `subprocess` for a process of the job's user."""
    if os.geteuid() != 0:
        return {}
    return {"user": launch.uid, "group": launch.gid, "extra_groups": launch.groups or (launch.gid,)}


def remove_containers(order: Order, folder: Path, wait_s: float = REMOVE_S) -> str:
    """End and remove what there may be of an attempt's containers. Returns what went wrong, for a person."""
    command = remove_command(order, folder) if order.runtime is not None else []
    if not command:
        return ""
    try:
        with subprocess.Popen(
            command,
            cwd="/",
            env=client_environment(order.launch.uid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **users_rights(order.launch),
        ) as process:
            said = _last_words(process, time.monotonic() + wait_s).strip().splitlines()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its containers cannot be removed: {str(error)[:WORDS_CHARS_MAX]}"
    if process.returncode == 0 or (said and "No such container" in said[-1]):  # As docker has it.
        return ""
    return f"its containers cannot be removed: {said[-1][:WORDS_CHARS_MAX] if said else process.returncode}"


def _last_words(process: subprocess.Popen[bytes], until_s: float) -> str:
    """The end of what a user's program says, which may be any amount, for as long as it likes: it is killed
    at the time. Raises TimeoutExpired."""
    assert process.stderr is not None
    said = b""
    try:
        while select.select([process.stderr], [], [], max(0.0, until_s - time.monotonic()))[0]:
            data = os.read(process.stderr.fileno(), OUTPUT_BYTES_MAX)
            if not data:
                break
            said = (said + data)[-OUTPUT_BYTES_MAX:]
            if time.monotonic() >= until_s:
                break
        process.wait(max(0.0, until_s - time.monotonic()))
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return said.decode(errors="replace")


def find_mains(socket: Path, clients: Collection[int]) -> Iterator[tuple[int, str]]:
    """The main processes of an attempt's containers, each with its RANK, empty where it has none. `clients`:
    the programs that have started them."""
    sign = f"{ENV_SOCKET}={socket}".encode()
    seen: dict[int, str] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        if sign in (env := _environment(name)):
            rank = next((each for each in env if each.startswith(b"RANK=")), b"RANK=")
            seen[int(name)] = rank[5:RANK_BYTES_MAX].decode(errors="replace")
    for pid, rank_said in seen.items():
        stat = stat_of(pid)
        if stat is not None and stat.state not in "ZX" and stat.parent not in seen and pid not in clients:
            yield pid, rank_said


def _environment(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # Gone meanwhile, or another user's.
        return []

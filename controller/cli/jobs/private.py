"""A controller and an agent of one's own, started by `run` where none answers.

Rule: started under a lock, as one detached `cotenant up` that ends by itself after ten idle minutes.
Only on the user's own socket: where another endpoint is configured, nothing is started behind it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cotenant.controller.cli.frame.asking import asking, loaded_settings
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.domain.cluster import HostState
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.system.locks import Lock, LockTaken
from cotenant.controller.wire.clients import GetStatus, ListNodes

IDLE_EXIT_S: Final = 600.0
START_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.1
LOG_NAME: Final = "up.log"


def ensure_controller(endpoint: str | None) -> None:
    """Returns once a controller answers; where none does, one is started with an agent.

    Raises:
        Problem: it cannot be started, or is somewhere else and does not answer.
    """
    try:
        ask_status(endpoint)
        return
    except Problem as problem:
        where = paths.client_endpoint(loaded_settings(endpoint).settings)
        if problem.code != "unreachable" or socket_path(where) is None:
            raise
    folder = paths.runtime_dir()
    with one_at_a_time(folder / "start.lock"):
        try:
            ask_status(endpoint)
            return
        except Problem as problem:
            if problem.code != "unreachable":
                raise
        start(folder, endpoint)


def ask_status(endpoint: str | None) -> None:
    with asking(endpoint, timeout_s=5.0) as client:
        client.ask(GetStatus())


def start(folder: Path, endpoint: str | None) -> None:
    tell("no controller answers: starting one here, with an agent (it ends after 10 idle minutes)")
    log = folder / LOG_NAME
    words = [sys.executable, "-m", "cotenant.controller.cli.main", "up", "--idle-exit", f"{IDLE_EXIT_S:g}s"]
    words += ["--endpoint", endpoint] if endpoint else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    wait_until_ready(process, log, endpoint)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, endpoint: str | None) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise Problem(
                "failed", f"could not start: {last_line(log)}", "try `cotenant up` or `cotenant doctor`"
            )
        if has_host(endpoint):
            return
        time.sleep(LOOK_EVERY_S)
    raise Problem(
        "failed", f"no agent within {START_WITHIN_S:.0f} s: {last_line(log)}", "try `cotenant doctor`"
    )


def has_host(endpoint: str | None) -> bool:
    try:
        with asking(endpoint, timeout_s=2.0) as client:
            return any(node.state is HostState.OK for node in client.ask(ListNodes()).nodes)
    except Problem as problem:
        if problem.code == "unreachable":
            return False
        raise


def last_line(log: Path) -> str:
    """What it said last; where that only points at "its message above", the message itself."""
    lines = log.read_text(errors="replace")[-4096:].strip().splitlines() or ["it said nothing"]
    if "see its message above" in lines[-1] and len(lines) > 1:
        lines.pop()
    return re.sub(r"^error\[[\w-]+\]: ", "", lines[-1])


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Two `run`s that start together start one controller."""
    deadline_s = time.monotonic() + START_WITHIN_S
    while (lock := _taken(path)) is None:
        if time.monotonic() > deadline_s:
            raise Problem("failed", f"someone else holds {path}", "is another `cotenant run` stuck?")
        time.sleep(LOOK_EVERY_S)
    try:
        yield
    finally:
        lock.release()


def _taken(path: Path) -> Lock | None:
    try:
        return Lock(path)
    except LockTaken:
        return None

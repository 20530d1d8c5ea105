"""The processes of this machine that concern us: agents, their fork servers, MPS daemons, DCGM's engines.

Rule: it looks and changes nothing. What a process hides from us is None or empty.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

import msgspec

from cotenant.mps.environment import PIPE_DIRECTORY
from cotenant.mps.process import CONTROL as MPS_CONTROL

SYSTEMCTL_S_MAX: Final = 5.0
WORDS_MAX: Final = 16
ENGINES: Final = ("nv-hostengine", "dcgm-exporter")
DEFAULT_PIPES: Final = "/tmp/nvidia-mps"


class SeenProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this machine."""

    pid: int
    user: str = ""
    uid: int = -1
    words: tuple[str, ...] = ()
    pipes: str | None = None
    """The pipe directory of an MPS daemon; None: its environment cannot be read."""
    since: str = ""
    """When it started, in local time."""
    parent: int = 0
    memory_mib: float = 0.0
    """Resident memory of a fork server, shared pages included."""

    def runs(self, *names: str) -> bool:
        """Whether its program is one of these."""
        return bool(self.words) and os.path.basename(self.words[0]) in names

    @property
    def is_agent(self) -> bool:
        return self.words[1:3] == ("-m", "cotenant.agent")

    @property
    def is_fork_server(self) -> bool:
        """It is a fork server or one of its forks, which have the same command line and other parents."""
        return any("cotenant_forkserver" in word for word in self.words)

    def is_mps_daemon(self, *, outside: str) -> bool:
        """Whether it is a daemon with its pipes outside of this folder (empty: anywhere), and not a front
        end: a program of the same name that asks a daemon."""
        is_inside = bool(outside) and (self.pipes or "").startswith(outside.rstrip("/") + "/")
        return self.runs(MPS_CONTROL) and bool({"-d", "-f"} & set(self.words)) and not is_inside


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    user: str
    uid: int
    cgroup: str = ""
    kill_mode: str = ""
    """KillMode of its unit; empty: it has none, or systemd does not say."""


def running() -> list[SeenProcess]:
    """The running processes that some check asks for."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "username", "uids", "ppid", "create_time"]):
        info = process.info
        each = SeenProcess(
            pid=process.pid,
            user=info["username"] or "",
            uid=-1 if info["uids"] is None else info["uids"].real,
            words=tuple(info["cmdline"] or ())[:WORDS_MAX],
            since=time.strftime("%F %H:%M", time.localtime(info["create_time"])),
            parent=info["ppid"] or 0,
        )
        if not (each.is_agent or each.is_fork_server or each.runs(MPS_CONTROL, *ENGINES)):
            continue
        with suppress(psutil.Error, OSError):
            each = msgspec.structs.replace(each, memory_mib=process.memory_info().rss / 2**20)
            each = msgspec.structs.replace(each, pipes=process.environ().get(PIPE_DIRECTORY, DEFAULT_PIPES))
        found.append(each)
    return found


def find_agent(seen: Sequence[SeenProcess], uids: Sequence[int], endpoint: str) -> SeenProcess | None:
    """The agent that serves our jobs: of these users, the first one's before the next one's, and of several
    the one of our controller. What its command line does not say it has from settings, which we assume to be
    ours."""

    def endpoint_of(process: SeenProcess) -> str:
        told = dict(pairwise(process.words))
        told |= {name: value for name, mark, value in (word.partition("=") for word in process.words) if mark}
        flags = ("--controller", "agent.controller", "controller.endpoint")
        return next((told[flag] for flag in flags if flag in told), endpoint)

    found = [each for each in seen if each.is_agent and each.uid in uids and endpoint_of(each) == endpoint]
    return min(found, key=lambda each: uids.index(each.uid), default=None)


def unit_of(group: str) -> str:
    """The unit of systemd that a control group belongs to; empty: none."""
    return next((part for part in reversed(group.split("/")) if part.endswith((".service", ".scope"))), "")


def kill_mode(unit: str) -> str:
    """What systemd does to a service's processes when it ends; empty: it does not say."""
    if not unit.endswith(".service") or shutil.which("systemctl") is None:
        return ""
    words = ["systemctl", "show", unit, "--property=KillMode", "--value"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SYSTEMCTL_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()

"""Whose a process on a GPU is: a job's of ours, our MPS server's, or a foreign one's.

Rule: the same proof as in `reaper.py`, and two more for what has left its session (a container that the
script started, a service of its own). The environment names a socket, which is that of an attempt of this
agent's (of a rank that was forked from a server the kernel shows no other variable); else it is in the
attempt's cgroup, whose name has a hash of that folder; else a supervisor of ours led its session or is an
ancestor. A supervisor takes in whatever its job leaves behind, so a container of podman has it as an
ancestor; one that a daemon starts (docker) has none of the four unless the script hands the variables on.
Reading another process's environment can block on it, so only the watcher child asks here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.agent.gpus.probe_results import ProcessOwner
from cotenant.agent.host.cgroups import group_tag
from cotenant.agent.host.process_identity import ProcessStat, began_at, boot_id, stat_of
from cotenant.agent.ipc import files, records
from cotenant.checkpoint.talk.protocol import ENV_SOCKET
from cotenant.profiler.driver import process_info

COMMAND_CHARS: Final = 80
KNOWN_MAX: Final = 4096
_MPS_SERVER: Final = "nvidia-cuda-mps-server"
_MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
_GROUP: Final = re.compile(r"/(?P<job>[0-9A-Za-z_]+)-a(?P<attempt>\d+)-(?P<tag>[0-9a-f]{8})(?=/)")
_ANCESTORS_MAX: Final = 64


class Owners:
    """Remembers what it found out: a process keeps its owner, and asking costs time."""

    def __init__(self, attempts: Path, mps_runtime: str = "", agent_pid: int | None = None) -> None:
        """Prepares to tell whose processes are. `mps_runtime`: below it live our MPS daemons; empty = we have
        none. `agent_pid`: our agent's, a child of which that is no job's tries CUDA."""
        self._attempts = attempts
        self._mps_runtime, self._agent_pid = mps_runtime, agent_pid
        self._known: dict[int, tuple[int, ProcessOwner]] = {}
        """By process number: when it began, in ticks, and whose it is or was."""

    def owner(self, pid: int) -> ProcessOwner:
        """Whose a process is, or was if it has ended and its number is free."""
        stat = stat_of(pid)
        start_ticks, owner = self._known.get(pid, (None, ProcessOwner(kind="hidden")))
        if stat is None or stat.start_ticks == start_ticks:
            return owner
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        owner = self._find_out(pid, stat)
        self._known[pid] = (stat.start_ticks, owner)
        return owner

    def _find_out(self, pid: int, stat: ProcessStat) -> ProcessOwner:
        user, command = process_info.user(pid), process_info.command(pid, COMMAND_CHARS)
        environment = process_info.environment(pid)
        found = self._listens(environment.get(ENV_SOCKET, "")) or self._find_by_cgroup(pid)
        found = found or self._find_by_leader({stat.session, *_ancestors(stat)}, stat.start_ticks)
        if found is not None:
            return ProcessOwner(kind="attempt", user=user, command=command, job_id=found[0], attempt=found[1])
        if stat.parent == self._agent_pid:
            return ProcessOwner(kind="agent", user=user, command=command)
        if _MPS_SERVER in command and self._is_our_mps(environment):
            return ProcessOwner(kind="mps", user=user, command=command)
        return ProcessOwner(kind="foreign", user=user, command=command, since=began_at(stat.start_ticks))

    def _is_our_mps(self, environment: dict[str, str]) -> bool:
        pipe = environment.get(_MPS_PIPE, "")
        return bool(self._mps_runtime) and pipe.startswith(f"{self._mps_runtime.rstrip('/')}/")

    def _listens(self, socket: str) -> tuple[str, int] | None:
        """The attempt whose socket that is."""
        for job_id, attempt in self._folders() if socket else ():
            if str(records.job_socket(records.attempt_folder(self._attempts, job_id, attempt))) == socket:
                return job_id, attempt
        return None

    def _folders(self) -> Iterator[tuple[str, int]]:
        try:
            names = os.listdir(self._attempts)
        except OSError:
            return
        for match in map(records.FOLDER_NAME.fullmatch, names):
            if match is not None:
                yield match["job"], int(match["attempt"])

    def _find_by_cgroup(self, pid: int) -> tuple[str, int] | None:
        """The attempt in whose cgroup it is."""
        for match in _GROUP.finditer(process_info.read_proc(Path(f"/proc/{pid}/cgroup"))):
            job_id, attempt = match["job"], int(match["attempt"])
            if match["tag"] == group_tag(records.attempt_folder(self._attempts, job_id, attempt)):
                return job_id, attempt
        return None

    def _find_by_leader(self, leaders: set[int], start_ticks: int) -> tuple[str, int] | None:
        """The attempt whose supervisor is one of these."""
        for job_id, attempt in self._folders():
            folder = records.attempt_folder(self._attempts, job_id, attempt)
            try:
                leader = files.read_record(folder / records.SUPERVISOR, records.ProcessIdentity)
            except (files.BadRecord, OSError):
                continue
            if leader is None or leader.pid not in leaders or leader.boot_id != boot_id():
                continue
            if start_ticks >= leader.start_ticks:
                return job_id, attempt
        return None


def _ancestors(process: ProcessStat) -> set[int]:
    found: set[int] = set()
    stat: ProcessStat | None = process
    while stat is not None and stat.parent > 1 and stat.parent not in found and len(found) < _ANCESTORS_MAX:
        found.add(stat.parent)
        stat = stat_of(stat.parent)
    return found

"""The processes of a storm's cluster, found from outside: ranks, their loaders and supervisors, whole hosts.

Rule: a process is known by what it was started with, never by its number alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cotenant.controller.domain import JobId
from tests.live.cluster import Cluster
from tests.live.storm_plan import HOSTS

TENANTS_MAX = 2


@dataclass(frozen=True, kw_only=True)
class Member:
    """One living rank of an attempt."""

    job_id: JobId
    attempt: int
    pid: int


def members(cluster: Cluster, host: str = "") -> list[Member]:
    """Living ranks, of one host or of all, by job and rank."""
    found = []
    for path in sorted(cluster.witness.glob("*.starts")):
        job_id = JobId(path.stem.rpartition("-r")[0])
        for words in map(str.split, path.read_text().splitlines()):
            if words[0] == "start" and len(words) == 4 and is_rank(int(words[1]), job_id, int(words[2])):
                found.append(Member(job_id=job_id, attempt=int(words[2]), pid=int(words[1])))
    return [each for each in found if not host or host_of(cluster, each) == host]


def host_of(cluster: Cluster, member: Member) -> str:
    """That whose supervisor it runs under; empty if it is gone."""
    above = ancestors(member.pid)
    held = (host for host in HOSTS if cluster.supervisor(host, member.job_id, member.attempt) in above)
    return next(held, "")


def loaders(cluster: Cluster, host: str) -> list[tuple[Member, int]]:
    return [(member, pid) for member in members(cluster, host) for pid in children(member.pid)]


def supervisors(cluster: Cluster, host: str) -> list[int]:
    attempts = {(each.job_id, each.attempt) for each in members(cluster, host)}
    pids = [cluster.supervisor(host, *key) for key in sorted(attempts)]
    return [pid for pid in pids if pid is not None and psutil.pid_exists(pid)]


def whole_host(cluster: Cluster, host: str) -> list[psutil.Process]:
    """The agent, what carries its folder in its command or environment, and all below them."""
    agent, sign = cluster.agents[host].pid, os.fsencode(cluster.state(host))
    found: dict[int, psutil.Process] = {}
    for pid in cluster.processes():
        if pid == agent or sign in read(pid, "cmdline") + b"\0" + read(pid, "environ"):
            try:
                root = psutil.Process(pid)
                found |= {each.pid: each for each in (root, *root.children(recursive=True))}
            except psutil.NoSuchProcess:
                continue
    return list(found.values())


def crowds(there: Sequence[Member], placed: Mapping[tuple[JobId, int], Sequence[str]]) -> list[str]:
    """Devices with the processes of too many jobs at one moment: those still alive after all were found."""
    on: dict[str, set[JobId]] = {}
    for each in there:
        if is_rank(each.pid, each.job_id, each.attempt):
            for device in placed.get((each.job_id, each.attempt), ()):
                on.setdefault(device, set()).add(each.job_id)
    return [f"{device}: {sorted(jobs)}" for device, jobs in on.items() if len(jobs) > TENANTS_MAX]


def is_rank(pid: int, job_id: JobId, attempt: int) -> bool:
    """Whether that process lives and is still that rank, and no other that got its number."""
    environment = b"\0" + read(pid, "environ")
    wanted = (f"\0COTENANT_JOB={job_id}\0", f"\0COTENANT_ATTEMPT={attempt}\0")
    return all(word.encode() in environment for word in wanted)


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def ancestors(pid: int) -> set[int]:
    try:
        return {each.pid for each in psutil.Process(pid).parents()}
    except psutil.NoSuchProcess:
        return set()


def children(pid: int) -> list[int]:
    try:
        return sorted(each.pid for each in psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return []

"""Slurm's commands: how they are called, what their answers mean, and what `squeue` and the hosts that have
joined say of allocations. Pure.

Rule: `sbatch --parsable`, `squeue -h -o`, `scancel` and `scontrol show`, and nothing else: they have said the
same for many versions, and need no rights but a user's. What a person gave for `sbatch` comes last, and wins.

Rule: what Slurm does not list is over, and only a whole answer counts: without one nothing has changed. A
Slurm job with a name of ours that the journal does not know was asked for in a history that is lost; it is
ended.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import Allocation, AllocationQueue, Host, HostId, HostShape, texts
from cotenant.controller.slurm.answers import count_in, gpus_in
from cotenant.controller.submission.quantities import slurm_duration_s

ENDPOINT_FILE: Final = "endpoint"
"""In a queue's folder: where its agents find the controller."""
MARK: Final = "cotenant"
SQUEUE_FORMAT: Final = "%i|%T|%N|%r|%j"
WAITS: Final = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)


class SlurmRow(NamedTuple):
    """A line of `squeue`, in parts."""

    slurm_id: str
    state: str
    node: str
    reason: str
    name: str

    @property
    def waits(self) -> bool:
        return self.state in WAITS


def prefix_of(journal: str) -> str:
    """Slurm jobs of a cluster have names that begin so."""
    return f"{MARK}-{journal[:8]}-"


def key_file(folder: Path, host_id: str) -> Path:
    return folder / f"{host_id}.key"


# --- Calls -----------------------------------------------------------------------------------------


def squeue(uid: int) -> tuple[str, ...]:
    return ("squeue", "-h", "-u", str(uid), "-o", SQUEUE_FORMAT)


def scancel(slurm_ids: Iterable[str]) -> tuple[str, ...]:
    return ("scancel", *slurm_ids)


def scontrol_show(what: str) -> tuple[str, ...]:
    return ("scontrol", "show", what, "-o")


def sbatch(queue: AllocationQueue, allocation: Allocation) -> tuple[str, ...]:
    """The script comes on its stdin."""
    shape = queue.terms.shape
    words = ["sbatch", "--parsable", f"--job-name={allocation.name}", "--nodes=1", "--ntasks=1"]
    words += ["--no-requeue", f"--time={ceil(queue.terms.time_limit_s / 60)}"]
    words.append(f"--output={log_file(queue, allocation)}")
    if shape.kind == "cuda" and not last_given(
        queue.terms.options, "--gres", "-G", "--gpus", "--gpus-per-node"
    ):
        words.append(f"--gres=gpu:{f'{shape.type}:' if shape.type else ''}{shape.devices}")
    if shape.cpus:
        words.append(f"--cpus-per-task={shape.cpus}")
    if shape.memory_mib:
        words.append(f"--mem={shape.memory_mib}M")
    return (*words, *queue.terms.options)


def log_file(queue: AllocationQueue, allocation: Allocation) -> Path:
    return Path(queue.terms.folder) / "logs" / f"{allocation.host_id}-%j.log"


def script(queue: AllocationQueue, allocation: Allocation) -> str:
    """The script that runs on the node. `exec`: Slurm's signals reach the agent's keeper, and no shell
    between."""
    shape, folder = queue.terms.shape, Path(queue.terms.folder)
    devices = "cuda" if shape.kind == "cuda" else f"cpu:{shape.devices}"
    words = [queue.python, "-m", "cotenant.agent.slurm.allocation", "--host", allocation.host_id]
    words += ["--folder", str(folder), "--devices", devices]
    words += ["--time-limit-s", f"{queue.terms.time_limit_s:g}", "--grace-s", f"{queue.terms.grace_s:g}"]
    lines = [
        "#!/bin/bash",
        *([queue.terms.before] if queue.terms.before else []),
        f"exec {shlex.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def last_given(options: Sequence[str], *flags: str) -> str | None:
    """The last value that was given for one of these options; None: nothing was."""
    found = None
    for at, word in enumerate(options):
        for flag in flags:
            if word == flag:
                found = options[at + 1] if at + 1 < len(options) else ""
            elif flag.startswith("--") and word.startswith(f"{flag}="):
                found = word.partition("=")[2]
            elif not flag.startswith("--") and word.startswith(flag) and not word.startswith("--"):
                found = word[len(flag) :]
    return found


# --- Answers ---------------------------------------------------------------------------------------


def submitted_id(answer: str) -> str:
    """Reads the number in the answer of `sbatch --parsable`: `123` or `123;cluster`.

    Raises:
        ValueError: something else.
    """
    number = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not texts.is_whole_number(number):
        raise ValueError(f"sbatch said {answer.strip()[:200]!r}, and not the number of a job")
    return number


def rows(answer: str) -> list[SlurmRow]:
    """Reads the rows of `squeue`; lines that are none are left out."""
    parts = (line.split("|", 4) for line in answer.splitlines())
    return [SlurmRow(*map(str.strip, each)) for each in parts if len(each) == 5]


def records(answer: str) -> list[dict[str, str]]:
    """Reads the answer of `scontrol show ... -o`: a line per thing, of `Key=value` words."""
    found = (dict(re.findall(r"(\S+?)=(.*?)(?=\s+\S+?=|\s*$)", line)) for line in answer.splitlines())
    return [each for each in found if each]


# --- Could a node of this shape be there? ----------------------------------------------------------


def why_impossible_here(
    queue: AllocationQueue, partitions: Sequence[dict[str, str]], nodes: Sequence[dict[str, str]]
) -> str:
    """Why Slurm could never give such a host, as far as it says what it has; empty: it might."""
    named = last_given(queue.terms.options, "-p", "--partition")
    names = (
        named.split(",") if named else [p["PartitionName"] for p in partitions if p.get("Default") == "YES"]
    )
    here = [each for each in partitions if each.get("PartitionName") in names]
    if named and not here:
        known = ", ".join(each.get("PartitionName", "?") for each in partitions)
        return f"there is no partition {named}; there are {known}"
    limits = [slurm_duration_s(each.get("MaxTime", "")) for each in here]
    if limits and all(limit is not None and limit < queue.terms.time_limit_s for limit in limits):
        most = max(limit or 0.0 for limit in limits)
        where = ", ".join(names)
        return f"partition {where} allows {most:g} s, and --time-limit asks for {queue.terms.time_limit_s:g}"
    offered = [n for n in nodes if not here or set(n.get("Partitions", "").split(",")) & set(names)]
    if offered and not any(_holds(queue.terms.shape, each) for each in offered):
        most_of = "; ".join(sorted({_describe_node(each) for each in offered})[:4])
        where = ", ".join(names) or "this cluster"
        return f"no node of {where} has {shape_in_words(queue.terms.shape)}: they have {most_of}"
    return ""


def _holds(shape: HostShape, node: dict[str, str]) -> bool:
    if shape.kind == "cuda" and gpus_in(node.get("Gres", ""), shape.type) < shape.devices:
        return False
    cpus, memory_mib = count_in(node.get("CPUTot", "")), count_in(node.get("RealMemory", ""))
    least_cpus = shape.cpus or (shape.devices if shape.kind == "cpu" else 0)
    return cpus >= least_cpus and memory_mib >= shape.memory_mib


def shape_in_words(shape: HostShape) -> str:
    kind = "GPUs" if shape.kind == "cuda" else "slots"
    words = [f"{shape.devices} {shape.type or ''} {kind}".replace("  ", " ")]
    words += [f"{shape.cpus} CPUs"] if shape.cpus else []
    words += [f"{shape.memory_mib} MiB"] if shape.memory_mib else []
    return ", ".join(words)


def _describe_node(node: dict[str, str]) -> str:
    gres = node.get("Gres", "").replace("(null)", "") or "no GPUs"
    return f"{gres}, {node.get('CPUTot', '?')} CPUs, {node.get('RealMemory', '?')} MiB"


SUBMITTED_WITHIN_S: Final = 120.0
"""From asking `sbatch` until its job can be seen."""
JOINED_WITHIN_S: Final = 600.0
"""From the start of a Slurm job until its host has joined."""


class AllocationNews(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that has changed: in a new state, or with another reason to wait."""

    allocation: Allocation
    failed: bool = False
    """It has ended, or is to, without having brought a host."""
    lost: HostId | None = None
    """This host is gone with it."""


def follow(
    allocations: Iterable[Allocation],
    rows: Sequence[SlurmRow],
    hosts: Mapping[HostId, Host],
    now_s: float,
) -> list[AllocationNews]:
    by_id, by_name = {row.slurm_id: row for row in rows}, {row.name: row for row in rows}
    found = []
    for each in allocations:
        row = by_id.get(each.slurm_id) if each.slurm_id else by_name.get(each.name)
        host = hosts.get(each.host_id)
        is_here = host is not None and bool(each.slurm_id) and host.report.allocation == each.slurm_id
        if row is None:
            news = _find_gone(each, is_here and host is not None and not host.lost, now_s)
        else:
            news = _there(each, row, is_here, now_s)
        if news is not None:
            found.append(news)
    return found


def _find_gone(each: Allocation, is_here: bool, now_s: float) -> AllocationNews | None:
    if each.state == "submitting":
        if now_s - each.since_s < SUBMITTED_WITHIN_S:
            return None
        return AllocationNews(allocation=each.move("over", now_s, "sbatch has brought no job"), failed=True)
    why = {
        "pending": "Slurm dropped it before it ran, or somebody cancelled it",
        "starting": "its Slurm job ended before its host had joined; its log says why",
        "working": "its Slurm job has ended",
    }.get(each.state, each.why)
    return AllocationNews(
        allocation=each.move("over", now_s, why),
        failed=each.state in ("pending", "starting"),
        lost=each.host_id if is_here else None,
    )


def _there(each: Allocation, row: SlurmRow, is_here: bool, now_s: float) -> AllocationNews | None:
    if each.state == "submitting":
        why = _waits(row) if row.waits else "found in Slurm after a start of the controller"
        return AllocationNews(allocation=each.move("pending", now_s, why, slurm_id=row.slurm_id))
    if each.state in ("pending", "starting") and is_here:
        why = f"its host has joined from {row.node}"
        return AllocationNews(allocation=each.move("working", now_s, why, node=row.node))
    if each.state == "pending":
        if row.waits:
            why = _waits(row)
            changed = msgspec.structs.replace(each, why=why)
            return AllocationNews(allocation=changed) if why != each.why else None
        why = f"it runs on {row.node}, and its host has not joined yet"
        return AllocationNews(allocation=each.move("starting", now_s, why, node=row.node))
    if each.state == "starting" and now_s - each.since_s >= JOINED_WITHIN_S:
        why = f"its host did not join within {JOINED_WITHIN_S:.0f} s; its log says why"
        return AllocationNews(allocation=each.move("ending", now_s, why), failed=True)
    return None


def _waits(row: SlurmRow) -> str:
    return f"Slurm lets it wait ({row.reason})" if row.reason not in ("", "None") else "Slurm lets it wait"


def orphans(rows: Iterable[SlurmRow], known: Iterable[str], prefix: str) -> list[str]:
    """Slurm jobs with names of ours that the journal does not know."""
    names = set(known)
    return [row.slurm_id for row in rows if row.name.startswith(prefix) and row.name not in names]

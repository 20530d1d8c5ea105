"""Identifiers are not bare strings."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
"""`7`, or `7_3` for task 3 of an array: the controller numbers jobs from 1."""

HostId = NewType("HostId", str)

DeviceId = NewType("DeviceId", str)
"""`HOST/LOCAL`, e.g. `gpu07/0` or `laptop/cpu1`; unique in the cluster, stable over restarts."""

CommandId = NewType("CommandId", int)
"""Numbered by the engine; agents obey each at most once."""

AttemptNo = NewType("AttemptNo", int)
"""Launches of one job, from 1. Fences everything the attempt writes."""


def natural_key(job_id: str) -> tuple[tuple[int, str], ...]:
    """Order `9` before `10` and `7_2` before `7_10`: ties between jobs break by this."""
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in job_id.split("_"))


def array_of(job_id: str) -> str:
    """The number of the array that a task is of; of any other job its own."""
    return job_id.partition("_")[0]

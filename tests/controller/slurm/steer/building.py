"""Jobs and queues of a Slurm, in as few words as the test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.controller.slurm.steer.core.queue import QueueJob, QueueNode, SlurmQueue


def job(job_id: int, **more: Any) -> QueueJob:
    given: dict[str, Any] = {
        "state": "PD", "priority": 100, "submitted_s": float(job_id), "limit_s": 600.0, "cpus": 1,
        "gpus": 0, "partition": "main", "user": "ann", "name": "train",
    }  # fmt: skip
    return QueueJob(job_id=job_id, **(given | more))


def with_priorities(ids: Sequence[int], priorities: Mapping[int, int]) -> list[QueueJob]:
    return [job(each, priority=priorities[each]) for each in ids]


def node(name: str = "n1", cpus: int = 8, **more: Any) -> QueueNode:
    given: dict[str, Any] = {
        "cpus": cpus, "free_cpus": cpus, "gpus": 0, "free_gpus": 0, "partitions": ("main",),
    }  # fmt: skip
    return QueueNode(name=name, **(given | more))


def queue(*jobs: QueueJob, nodes: Sequence[QueueNode] = (), now_s: float = 1000.0) -> SlurmQueue:
    return SlurmQueue(now_s=now_s, jobs=jobs, nodes=tuple(nodes) or (node(),))

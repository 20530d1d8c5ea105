"""Small workloads and clusters by hand, for tests of the simulated world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cotenant.controller.sim.world.workload import Cluster, Workload


class JobRow(NamedTuple):
    """One job; the defaults are those of most tests."""

    submit_s: float
    duration_s: float
    gpus: int = 1
    load_s: float = 30.0
    pause_s: float = 8.0
    model: str = ""
    hp: bool = False
    expected_s: float | None = None


def workload(*rows: JobRow) -> Workload:
    models = tuple(dict.fromkeys(row.model for row in rows if row.model))
    index = {name: number for number, name in enumerate(models)}

    def seconds(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)

    return Workload(
        name="by hand",
        synthetic=True,
        submit_s=seconds([row.submit_s for row in rows]),
        duration_s=seconds([row.duration_s for row in rows]),
        expected_s=seconds([row.duration_s if row.expected_s is None else row.expected_s for row in rows]),
        gpus=np.array([row.gpus for row in rows], dtype=np.int32),
        load_s=seconds([row.load_s for row in rows]),
        pause_s=seconds([row.pause_s for row in rows]),
        model=np.array([index.get(row.model, -1) for row in rows], dtype=np.int16),
        models=models,
        hp=np.array([row.hp for row in rows], dtype=np.bool_),
        organisation=np.full(len(rows), -1, dtype=np.int16),
        organisations=(),
        excluded={},
    )


def cluster(hosts: int, gpus_per_host: int = 1) -> Cluster:
    return Cluster(hosts=hosts, gpus_per_host=gpus_per_host)

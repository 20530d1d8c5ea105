"""The grounds of two other papers: GFS's two classes, and PCS's windows with what people were told.

Rule: the policies of a ground get the same jobs. Neither ground lets devices be shared, for neither workload
says which jobs would do what to each other: what is compared is order, preemption and prediction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.controller.sim import Scenario, policies_named, run_all, tasks
from experiments.cotenant.cells import FOLDER, MINE
from experiments.gfs import scheduling_runs
from experiments.pcs.runs import config
from experiments.shared import kept_runs

DAYS: Final = 2
SEEDS: Final = 3
SPOT_POLICIES: Final = (f"gfs-rise:order={MINE}", "gfs-rise", "gfs", "yarn-cs")
SPOT_LOADS: Final = {"gfs": "1x", "gfs-2x": "2x", "gfs-4x": "4x"}

PCS_VCS: Final = ("0e4a51", "b436b2", "6c71a0")
"""PCS's figure 7 has them whole, on 64 devices; here the first of their jobs."""
PCS_JOBS: Final = 400
TOLD_POLICIES: Final = (MINE, "srtf", "pcs-bal")


def spot_cells() -> list[scheduling_runs.Cell]:
    """Where preempted jobs save: cotenant's jobs resume."""
    return [
        scheduling_runs.Cell(DAYS, "save", load, policy, seed)
        for seed in range(SEEDS)
        for load in SPOT_LOADS
        for policy in SPOT_POLICIES
    ]


class ToldCell(msgspec.Struct, frozen=True, kw_only=True):
    """A VC under a policy of the catalogue, or `pcs-NAME` with a published configuration."""

    vc: str
    policy: str

    @property
    def file(self) -> Path:
        return FOLDER / f"told-{self.vc}-{self.policy}.json"


class ToldResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; of ETAs what `sim compare --eta` says."""

    cell: ToldCell
    commit: str
    mean_s: float
    median_s: float
    p99_s: float
    eta: dict[str, Any]
    prediction_error: dict[str, Any]
    cpu_s: float


def told_cells() -> Iterator[ToldCell]:
    for vc in PCS_VCS:
        yield from (ToldCell(vc=vc, policy=policy) for policy in TOLD_POLICIES)


def load_told(cell: ToldCell) -> ToldResult | None:
    try:
        return msgspec.json.decode(cell.file.read_bytes(), type=ToldResult)
    except (OSError, msgspec.DecodeError):
        return None


def run_told(cell: ToldCell, commit: str) -> None:
    """In a process of its own."""
    began_s = time.process_time()
    name, _, form = cell.policy.partition("-")
    parameters = config(cell.vc, form).as_parameters() if form else {}
    asked = Scenario(trace=f"philly/{cell.vc}", jobs=PCS_JOBS, pairs="none", eta=True)
    (choice,) = policies_named(name)
    (found,) = run_all(tasks(asked, [choice._replace(parameters=parameters)], [0]), workers=1)
    jct_s = found.summary["jct_s"]
    result = ToldResult(
        cell=cell,
        commit=commit,
        mean_s=jct_s["mean"],
        median_s=jct_s["p50"],
        p99_s=jct_s["p99"],
        eta=found.summary["eta"],
        prediction_error=found.summary["prediction_error"],
        cpu_s=time.process_time() - began_s,
    )
    kept_runs.keep(result, cell.file)

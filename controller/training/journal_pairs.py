"""The pairs that a journal has measured, as a table to train a model of interference on: its entries folded,
profiles and ratios collected.

Rule: a row needs at least one measured ratio and the profiles of both kinds of job; nothing is filled in.
A reader of the table sees the commands of the jobs, without folders and numbers: they tell pairs apart, and
no model is given them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.controller.domain import AnyCommand, Job, JobSpec, csv_cells
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.knowledge import Observed, signature
from cotenant.controller.models.interference.features import VOCABULARY, job_features
from cotenant.controller.sim.past.journal import follow


def measured_pairs(where: Path | str) -> tuple[str, int, int]:
    """CSV, its rows, and how many measured pairs lack a profile; of a state folder or a journal file.

    Raises:
        JournalError: there is no journal, or it cannot be read.
        NothingToReplay: it is empty.
    """
    kinds = Kinds()

    def look(engine: Engine, event: ev.AnyEvent, _: list[AnyCommand]) -> None:
        if isinstance(event, ev.JobArrived | ev.ProfileLearned):
            job = engine.jobs.get(event.spec.job_id if isinstance(event, ev.JobArrived) else event.job_id)
            if job is not None:
                kinds.learn(job, only_type(engine))

    engine = follow(where, look)
    return kinds.table(engine.snapshot().ledger.pairs)


def only_type(engine: Engine) -> str:
    """The type of all devices, if they are of one."""
    types = {device.type for host in engine.hosts.values() for device in host.report.devices}
    return types.pop() if len(types) == 1 else ""


NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d+(\.\d*)?([eE][-+]?\d+)?(?![\w.])")
KINDS_MAX: Final = 50_000


class Kinds:
    """The kinds of jobs seen, with one job of each kind that has a profile; the newest profile counts."""

    def __init__(self) -> None:
        self._by_signature: dict[str, tuple[str, str, Mapping[str, float]]] = {}

    def __len__(self) -> int:
        return len(self._by_signature)

    def learn(self, job: Job, gpu_type: str) -> None:
        """Take in a job as it is now; `gpu_type` is where it ran, empty if that is not known."""
        if job.measured.profile is None:
            return
        kind = signature(job.spec)
        if kind not in self._by_signature and len(self._by_signature) >= KINDS_MAX:
            del self._by_signature[next(iter(self._by_signature))]
        values = dict(zip(VOCABULARY, job_features(job, VOCABULARY), strict=True))
        self._by_signature[kind] = (model_name(job.spec), job.spec.gpu_type or gpu_type, values)

    def table(self, entries: Mapping[str, Observed]) -> tuple[str, int, int]:
        """The CSV, its rows, and how many pairs were left out for want of a profile."""
        pairs = sorted({_sorted_pair(*key.split(":")) for key, seen in entries.items() if seen.count})
        rows = [row for row in (self._row(entries, *pair) for pair in pairs) if row is not None]
        names = [
            name for name in VOCABULARY if any(row.get(f"solo{n}_{name}") for row in rows for n in (1, 2))
        ]
        solo = [f"solo{n}_{name}" for n in (1, 2) for name in names if name != "batch"]
        text = io.StringIO()
        names = [*COLUMNS, *solo, "pair"]
        csv_cells.write_rows(text, (names, *([row.get(name, "") for name in names] for row in rows)))
        return text.getvalue(), len(rows), len(pairs) - len(rows)

    def _row(self, entries: Mapping[str, Observed], first: str, second: str) -> dict[str, str] | None:
        kinds = [self._by_signature.get(kind) for kind in (first, second)]
        if None in kinds:
            return None
        row: dict[str, str] = {}
        seen = (entries.get(f"{first}:{second}"), entries.get(f"{second}:{first}"))
        for n, (kind, side) in enumerate(zip(kinds, seen, strict=True), start=1):
            assert kind is not None
            model, gpu_type, values = kind
            row |= {f"model{n}": model, f"batch{n}": _text(values["batch"]), "gpu_type": gpu_type}
            row |= {f"solo{n}_{name}": _text(value) for name, value in values.items()}
            if side is not None and side.count:
                row |= {
                    f"xi{n}": _text(side.xi),
                    f"norm{n}": _text(1.0 / side.xi),
                    f"count{n}": str(side.count),
                }
        return {**row, "pair": pair_name(row["model1"], row["model2"])}


COLUMNS: Final = (
    "gpu_type",
    "model1",
    "batch1",
    "model2",
    "batch2",
    "xi1",
    "xi2",
    "norm1",
    "norm2",
    "count1",
    "count2",
)


def model_name(spec: JobSpec) -> str:
    """The command without folders, numbers masked: `python train.py --net resnet18 --lr #`. Runs that differ
    in a batch size or a seed are one model, so that they are never on both sides of a split."""
    words = [word.rpartition("/")[2] for word in spec.launch.argv]
    return NUMBER.sub("#", " ".join(words)).replace("+", "-") or spec.name or "no command"


def pair_name(first: str, second: str) -> str:
    """What two jobs' models are called as a pair; empty if one is not known."""
    return "+".join(sorted((first, second))) if first and second else ""


def _sorted_pair(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)


def _text(value: float) -> str:
    return csv_cells.Figure("" if math.isnan(value) else f"{value:.9g}")

"""The table of jobs of docs/traces.md: CSV with a header, one job a row, times in seconds.

Rule: three columns are needed (submit_time_s, duration_s, gpus); every other may be missing or empty, which
means that the source does not have it. Unknown columns are passed over.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np

from cotenant.controller.domain import csv_cells
from cotenant.controller.sim.traces.drafting import Source, counts
from cotenant.controller.sim.traces.table import TextTable, table
from cotenant.controller.sim.traces.trace import Labels, Trace, TraceProblem
from cotenant.controller.system.files import write_output

REQUIRED = ("submit_time_s", "duration_s", "gpus")
COLUMNS = (
    "job_id",
    "submit_time_s",
    "duration_s",
    "gpus",
    "user",
    "vc",
    "gpu_type",
    "state",
    "type",
    "pods",
    "gpus_per_pod",
    "model",
    "organisation",
    "synthetic",
)
"""As they are written; `pods` and `gpus_per_pod` are always empty here, for `gpus` counts the whole job.

The last two are written only where there is something to say. A generated trace stays one in every file.
"""

SCHEMA = {
    "submit_s": "submit_time_s",
    "duration_s": "duration_s",
    "gpus": "gpus",
    "job_ids": "job_id",
    **{field: field for field in ("user", "organisation", "model", "gpu_type", "state")},
}
OTHER_NAMES = "`cotenant sim trace import` reads other names with --map submit=A,duration=B,gpus=C"


def read_schema(text: str, *, name: str, source: str = "", licence: str = "") -> Trace:
    """The trace in a CSV of the schema.

    Raises:
        TraceProblem: the text is not in the schema, or no job is left.
    """
    jobs = table(text, name, wanted=(*COLUMNS, "trace"), required=REQUIRED, otherwise=OTHER_NAMES)
    kinds = Labels.make(tuple(kind.lower() for kind in jobs.text("type")))
    return Source(source, SCHEMA, {"duration_s": counts}, licence).trace(
        jobs,
        name,
        vc=_vcs(jobs),
        hp=kinds.codes == kinds.names.index("hp") if "hp" in kinds.names else np.zeros(len(jobs), np.bool_),
        synthetic="yes" in jobs.text("synthetic"),
    )


def _vcs(jobs: TextTable) -> Labels:
    """The VC of each job, from column vc; where that is empty, column `trace` (several traces in one file)
    takes its place."""
    vcs = Labels.make(jobs.text("vc"))
    return vcs if vcs.known else Labels.make(jobs.text("trace"))


def write_csv(trace: Trace, path: Path) -> None:
    """Writes the trace in the schema, gzip'd if the name ends in .gz; the same trace gives the same bytes.

    Raises:
        TraceProblem: the file cannot be written.
    """
    data = schema_text(trace).encode()
    try:
        write_output(path, _gzip_bytes(data) if path.suffix == ".gz" else data)
    except OSError as error:
        raise TraceProblem(f"cannot be written: {error.strerror}", file=str(path)) from None


def _gzip_bytes(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=9, mtime=0)


def schema_text(trace: Trace) -> str:
    """The trace as CSV; numbers are exact (`repr` of the float, whole numbers without a point)."""
    n = len(trace)
    empty = [""] * n
    kinds = (["hp" if hp else "spot" for hp in trace.hp.tolist()]) if np.any(trace.hp) else empty
    columns = {
        "job_id": list(trace.job_ids) or [str(row) for row in range(n)],
        "submit_time_s": [plain(value) for value in trace.submit_s.tolist()],
        "duration_s": [plain(value) for value in trace.duration_s.tolist()],
        "gpus": [plain(value) for value in trace.gpus.tolist()],
        "user": trace.user.texts(),
        "vc": trace.vc.texts(),
        "gpu_type": trace.gpu_type.texts(),
        "state": trace.state.texts(),
        "type": kinds,
        "pods": empty,
        "gpus_per_pod": empty,
        "model": trace.model.texts(),
        "organisation": trace.organisation.texts(),
        "synthetic": ["yes"] * n,
    }
    without = {"organisation": not trace.organisation.known, "synthetic": not trace.synthetic}
    shown = [name for name in COLUMNS if not without.get(name)]
    out = io.StringIO(newline="")
    csv_cells.write_rows(out, (shown, *zip(*(columns[name] for name in shown), strict=True)))
    return out.getvalue()


def plain(value: float) -> csv_cells.Figure:
    """The shortest text that reads as the same number."""
    is_whole = value.is_integer() and abs(value) < 2**53
    return csv_cells.Figure(int(value) if is_whole else repr(value))

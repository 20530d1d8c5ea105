"""`read`: a trace from its bundled name or its file, in any format that is known.

    philly/0e4a51 | jobs.csv.gz | cluster_job_log | cluster_log.csv | pai_task_table.csv | x.swf | sacct.txt

Rule: the format is recognised by what the file holds, not by what it is called.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from cotenant.controller.sim.traces.bundled import NAMES, is_bundled, read_bundled
from cotenant.controller.sim.traces.problems import TraceProblem, nearest
from cotenant.controller.sim.traces.schema import read_schema
from cotenant.controller.sim.traces.table import content, decoded
from cotenant.controller.sim.traces.trace import Trace

Format = Literal["auto", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)


def read(name_or_path: str | Path, *, format: str = "auto") -> Trace:
    """The trace of that name (see `bundled.NAMES`), or in that file.

    Raises:
        TraceProblem: no such trace or file, an unknown format, or something is wrong in it.
    """
    if format not in FORMATS:
        hint = nearest(format, FORMATS) or f"known: {', '.join(FORMATS)}"
        raise TraceProblem(f"{format} is not a format of traces", hint=hint)
    path = Path(name_or_path)
    if is_bundled(str(name_or_path)) and not path.exists():
        return read_bundled(str(name_or_path))
    if not path.exists():
        near = nearest(str(name_or_path), NAMES)
        hint = near or f"bundled: {', '.join(NAMES)}"
        raise TraceProblem("there is no such file", file=str(name_or_path), hint=hint)
    text = decoded(content(path), str(path))
    return dataclasses.replace(read_schema(text, name=str(path)), source=str(path))

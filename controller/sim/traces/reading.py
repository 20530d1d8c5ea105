"""`read`: a trace from its bundled name or its file, in any format that is known.

    philly/0e4a51 | jobs.csv.gz | cluster_job_log | cluster_log.csv | pai_task_table.csv | x.swf | sacct.txt

Rule: the format is recognised by what the file holds, not by what it is called (PAI's tables aside, which
have no header).

Rule: only data whose licence lets everyone use it for anything is bundled; NOTICE names the sources. Bundled
is Microsoft's Philly of 2017, CC-BY-4.0. The files are in the schema, with only the columns that their source
fills. How each was made:

* `philly-<vc>.csv.gz`: `simulation/traces/trace_<vc>.csv` of abdullahfsm/PCS (62a6ca30), whose service in
  GPU-seconds was divided by the GPU count. Nine of twelve VCs. `model` was assigned by the authors of PCS.
* `philly.csv.gz`: `simulator/traces/philly.csv` of petuum/adaptdl (branch osdi21-artifact), twelve VCs on one
  clock. Its durations are half of those in the literature: use it for arrivals, the VCs for durations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from cotenant.controller.sim.traces.batch_logs import FIELDS, read_sacct, read_swf
from cotenant.controller.sim.traces.mapped import read_mapped
from cotenant.controller.sim.traces.published import is_pai, read_helios, read_pai, read_philly
from cotenant.controller.sim.traces.schema import read_schema
from cotenant.controller.sim.traces.table import content, decode_utf_8, separator_of, unpack_gzip
from cotenant.controller.sim.traces.trace import Labels, Trace, TraceProblem, nearest
from cotenant.controller.trace_names import NAMES

LICENCE = "CC-BY-4.0"
_ORIGIN = "Microsoft Philly 2017 (Jeon et al., ATC '19; msr-fiddle/philly-traces)"
_VCS = f"{_ORIGIN}, via the artifact of PCS (abdullahfsm/PCS), one clock per VC"
_ONE_CLOCK = f"{_ORIGIN}, via the artifact of Pollux (petuum/adaptdl, osdi21-artifact), one clock"


def is_bundled(name: str) -> bool:
    """Whether the name means a bundled trace, rightly or wrongly spelt, and not a file."""
    return name == "philly" or name.startswith("philly/")


def read_bundled(name: str) -> Trace:
    """A bundled trace by its name.

    Raises:
        TraceProblem: there is no such trace.
    """
    if name not in NAMES:
        hint = nearest(name, NAMES) or f"there are {', '.join(NAMES)}"
        raise TraceProblem(f"{name} is not a bundled trace", hint=hint)
    vc = name.removeprefix("philly").removeprefix("/")
    file = f"{name.replace('/', '-')}.csv.gz"
    packed = (files("cotenant.controller.sim") / "data" / file).read_bytes()
    source = _VCS if vc else _ONE_CLOCK
    trace = read_schema(
        decode_utf_8(unpack_gzip(packed, file), file), name=name, source=source, licence=LICENCE
    )
    if not vc:
        return trace
    ids = tuple(f"{vc}-{row}" for row in range(len(trace)))
    return dataclasses.replace(trace, job_ids=ids, vc=Labels.same(vc, len(trace)))


FORMATS = ("auto", "csv", "philly", "helios", "pai", "swf", "sacct")


def read(
    name_or_path: str | Path,
    *,
    format: str = "auto",
    processors_per_gpu: int = 1,
    columns: Mapping[str, str] | None = None,
) -> Trace:
    """The trace of that name (see `NAMES`), or in that file, in one of FORMATS.

    A bundled name wins over a file that is called the same: write ./philly for the file.

    Args:
        processors_per_gpu: how many processors of the Standard Workload Format make a GPU.
        columns: of a table in no format of ours, by field (`mapped.FIELDS`).

    Raises:
        TraceProblem: no such trace or file, an unknown format, or something is wrong in it.
    """
    if format not in FORMATS:
        hint = nearest(format, FORMATS) or f"known: {', '.join(FORMATS)}"
        raise TraceProblem(f"{format} is not a format of traces", hint=hint)
    path = _trace_path(name_or_path)
    if path is None and columns is not None:
        raise TraceProblem(f"{name_or_path} is a bundled trace, and --map is for a file", hint="leave it out")
    if path is None:
        return read_bundled(str(name_or_path))
    if format == "pai" or (format == "auto" and columns is None and is_pai(path)):
        return read_pai(path)
    if path.is_dir():
        hint = "name the file; a folder is read only if it holds Alibaba PAI's tables"
        raise TraceProblem("is a folder", file=str(path), hint=hint)
    text = decode_utf_8(content(path), str(path))
    if columns is not None:
        return read_mapped(text, columns, name=str(path))
    return parse(text, name=str(path), format=format, processors_per_gpu=processors_per_gpu)


def parse(text: str, *, name: str, format: str = "auto", processors_per_gpu: int = 1) -> Trace:
    """The trace in a text; `name` stands for its file in messages.

    Raises:
        TraceProblem: the format is not recognised, or something is wrong in it.
    """
    match detect_format(text) if format == "auto" else format:
        case "csv":
            trace = read_schema(text, name=name)
            origin = f"{name}: generated, no recorded jobs" if trace.synthetic else name
            return dataclasses.replace(trace, source=origin)
        case "philly":
            return read_philly(text, name=name)
        case "helios":
            return read_helios(text, name=name)
        case "swf":
            return read_swf(text, name=name, processors_per_gpu=processors_per_gpu)
        case "sacct":
            return read_sacct(text, name=name)
    raise TraceProblem(
        "is in no format that is known",
        file=name,
        line=1,
        hint="see docs/traces.md: a CSV needs a header with submit_time_s, duration_s and gpus, or --map",
    )


def detect_format(text: str) -> str | None:
    """The format that the first lines look like; None = none."""
    start = text[:65_536].lstrip()
    first = start.partition("\n")[0].strip()
    if first.startswith(("[", "{")):
        return "philly"
    if "|" in first:
        return "sacct"
    if first.startswith(";") or (len(first.split()) == len(FIELDS) and first[0] in "-0123456789"):
        return "swf"
    separator = separator_of(first)
    if not first.replace("\t", "").isprintable() or separator not in first:
        return None
    header = {name.strip().strip('"') for name in first.split(separator)}
    return "helios" if {"gpu_num", "submit_time"} <= header else "csv"


def _trace_path(name_or_path: str | Path) -> Path | None:
    """The file or folder that is meant; None = a bundled trace."""
    path, name = Path(name_or_path), str(name_or_path)
    if name_or_path in NAMES:
        return None
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    if there:
        return path
    if is_bundled(name):
        return None
    near = nearest(name, NAMES)
    raise TraceProblem("there is no such file", file=name, hint=near or f"bundled: {', '.join(NAMES)}")

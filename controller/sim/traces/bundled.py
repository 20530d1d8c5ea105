"""The traces that come with cotenant: Microsoft's Philly of 2017, CC-BY-4.0.

Rule: only data whose licence lets anybody use it for anything is bundled; NOTICE names the sources. The
files are in the schema, with only the columns that their source fills. How each was made:

* `philly-<vc>.csv.gz`: `simulation/traces/trace_<vc>.csv` of abdullahfsm/PCS (62a6ca30), whose service in
  GPU-seconds was divided by the GPU count. Nine of twelve VCs. `model` was assigned by the authors of PCS.
* `philly.csv.gz`: `simulator/traces/philly.csv` of petuum/adaptdl (branch osdi21-artifact), twelve VCs on one
  clock. Its durations are half of those in the literature: use it for arrivals, the VCs for durations.
"""

from __future__ import annotations

import dataclasses
from importlib.resources import files

from cotenant.controller.sim.traces.problems import TraceProblem, nearest
from cotenant.controller.sim.traces.schema import read_schema
from cotenant.controller.sim.traces.table import decoded, unpacked
from cotenant.controller.sim.traces.trace import Labels, Trace

PHILLY_VCS = ("0e4a51", "103959", "51b7ef", "6214e9", "6c71a0", "b436b2", "e13805", "ed69ec", "ee9e8c")
NAMES = ("philly", *(f"philly/{vc}" for vc in PHILLY_VCS))
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
    trace = read_schema(decoded(unpacked(packed, file), file), name=name, source=source, licence=LICENCE)
    if not vc:
        return trace
    ids = tuple(f"{vc}-{row}" for row in range(len(trace)))
    return dataclasses.replace(trace, job_ids=ids, vc=Labels.same(vc, len(trace)))

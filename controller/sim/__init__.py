"""The simulator: the engine and the policies of production, driven by a virtual clock over a trace.

    trace (file, or generated) -> workload (what arrives) -> simulate (one policy) -> outcome -> summary

Rule: nothing here decides. The world carries out the engine's commands and reports what happened; a policy
knows no more here than in production.

`drive.py` is the loop, of simulations as of the roll-outs of `eta/`.

Packages: `traces/`, `world/` (hosts and jobs), `results/` (numbers, documents, plots), `past/` (a
controller's own journal).
"""

# fmt: off
from cotenant.controller.sim import scenario, windows
from cotenant.controller.sim.choices import BadChoice, PolicyChoice, policies_named
from cotenant.controller.sim.compare import OnTaskProgress, Task, TaskProgress, TaskRun, WorkerLost, run_all
from cotenant.controller.sim.drive import answer_inline
from cotenant.controller.sim.preparing import add_knowledge, prepare
from cotenant.controller.sim.scenario import Scenario, open_trace, tasks, workload_of
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.speedups import elastic_workload, measured_speedups, speedups_of
from cotenant.controller.sim.traces.mapped import column_map
from cotenant.controller.sim.traces.reading import read
from cotenant.controller.sim.traces.schema import write_csv
from cotenant.controller.sim.traces.synth import synthesise
from cotenant.controller.sim.traces.table import GZIP_MAGIC, TextTable, decode_utf_8, table, unpack_gzip
from cotenant.controller.sim.traces.trace import Labels, Trace, TraceProblem, describe, nearest, show_value
from cotenant.controller.sim.world.knowledge import Knowledge
from cotenant.controller.sim.world.outcome import NAN, Columns, RunResult
from cotenant.controller.sim.world.physics import COLUMNS, NoPairTable, Physics, pair_data
from cotenant.controller.sim.world.workload import (
    Cluster,
    HostAsk,
    SimulatedHost,
    SimulatedSubmission,
    Workload,
)
from cotenant.controller.sim.world.world import World

__all__ = [
    "COLUMNS", "GZIP_MAGIC", "NAN", "BadChoice", "Cluster", "Columns", "HostAsk", "Knowledge", "Labels",
    "NoPairTable", "RunResult", "Physics", "PolicyChoice", "OnTaskProgress", "Scenario",
    "SimulatedHost", "SimulatedSubmission", "Task", "TaskProgress", "TaskRun", "TextTable",
    "Trace", "TraceProblem", "WorkerLost", "Workload", "World", "answer_inline",
    "elastic_workload", "column_map", "decode_utf_8", "describe",
    "add_knowledge", "measured_speedups", "nearest", "open_trace",
    "pair_data", "policies_named", "prepare", "read", "run_all", "scenario", "show_value",
    "simulate", "speedups_of", "synthesise", "table", "tasks", "unpack_gzip", "windows",
    "workload_of", "write_csv",
]
# fmt: on

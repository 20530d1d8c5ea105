"""The flags that all simulations share, and what they become. Errors of traces and tables leave as one line.

Rule: everything is checked before the first run begins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final, Literal

from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.policies import registry
from cotenant.controller.sim.choices import BadChoice, PolicyChoice, policies_named
from cotenant.controller.sim.compare import Task
from cotenant.controller.sim.scenario import Scenario, tasks
from cotenant.controller.sim.traces.problems import TraceProblem
from cotenant.controller.sim.world.physics import NoPairTable

DEFAULT_POLICIES: Final = "fifo,sjf,srtf"
MAKE_IT: Final = "cotenant sim trace list"


def complete_trace(incomplete: str) -> list[str]:
    from cotenant.controller.sim.traces.reading import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in registry.available() if name.startswith(last)]


TraceArgument = Annotated[
    str,
    argument(
        metavar="TRACE",
        help="A file, a bundled name (`cotenant sim trace list`) or synth:NAME[:JOBS].",
        complete=complete_trace,
    ),
]
FormatFlag = Annotated[str, option("--format", metavar="NAME", help="Of the file, if not recognised.")]
VcFlag = Annotated[str | None, option("--vc", metavar="ID", help="Only this virtual cluster.")]
JobsFlag = Annotated[int | None, option("--jobs", metavar="N", help="Only the first N jobs.")]
FromFlag = Annotated[
    float | None, option("--from-s", metavar="S", help="Only jobs submitted at or after S seconds.")
]
PairsFlag = Annotated[
    str,
    option(
        "--pairs",
        metavar="gavel-v100|gavel-p100|gavel-k80|FILE|none",
        help="How much jobs slow each other down; none: devices are not shared.",
    ),
]
XiFlag = Annotated[
    Literal["learned", "measured"],
    option("--xi", metavar="learned|measured", help="What policies know of the pairs beforehand."),
]
LoadScaleFlag = Annotated[
    float, option("--load-scale", metavar="F", help="F times as many arrivals per hour.")
]
NoiseFlag = Annotated[
    float,
    option(
        "--noise",
        metavar="SIGMA",
        help="Error of expected durations: lognormal, median 1, this sigma.",
    ),
]
LoadTimeFlag = Annotated[
    float,
    option("--load-time-scale", metavar="F", help="Load times times F."),
]
LaunchFlag = Annotated[
    Literal["warm", "cold"],
    option("--launch", metavar="warm|cold", help="Load times of warm starts, or of cold ones (default)."),
]
FailuresFlag = Annotated[
    float | None,
    option(
        "--failures",
        metavar="MTBF_H",
        help="Each host fails every MTBF_H hours on average.",
    ),
]
TrimFlag = Annotated[
    float,
    option(
        "--trim",
        metavar="F",
        help="The first and the last F of the jobs (0.1: a tenth) run and are not counted.",
    ),
]
WindowsFlag = Annotated[
    int | None,
    option(
        "--windows",
        metavar="N",
        min=1,
        max=10_000,
        help="On N warm windows of the trace; intervals over them.",
    ),
]
WindowJobsFlag = Annotated[
    int, option("--window-jobs", metavar="J", min=1, help="Jobs that count in each window.")
]
HostsFlag = Annotated[int, option("--hosts", metavar="H", min=1, max=100_000, help="Hosts.")]
GpusFlag = Annotated[int, option("--gpus-per-host", metavar="G", min=1, max=1_024, help="GPUs of each host.")]
SeedFlag = Annotated[int, option("--seed", metavar="S", min=0, help="Of everything that is drawn.")]
SeedsFlag = Annotated[
    int, option("--seeds", metavar="K", min=1, max=1_000, help="K seeds from --seed on; intervals.")
]
PoliciesFlag = Annotated[
    str,
    option(
        "--policies",
        metavar="A,B,...",
        help="Policies, with options as in lazer:chain=last,dwq_offered=true; your own as MODULE:NAME.",
        complete=complete_policies,
    ),
]
WorkersFlag = Annotated[
    int | None,
    option("--workers", metavar="N", min=1, max=1_024, help="Processes (default: one per core)."),
]
OutFlag = Annotated[
    str | None, option("--out", metavar="DIR", help="Write JSON, plots and a CSV of the jobs there.")
]


def chosen_policies(text: str) -> tuple[PolicyChoice, ...]:
    """Modules of one's own (`MODULE:NAME`) are looked for in this folder as well, after all others.

    Raises:
        Problem: a policy or a parameter that there is not.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return policies_named(text)
    except BadChoice as error:
        raise Problem("usage", str(error), error.hint) from None


def one_policy(text: str) -> PolicyChoice:
    """Raises Problem."""
    choices = chosen_policies(text)
    if len(choices) > 1:
        raise Problem("usage", f"--policy takes one policy, got {len(choices)}", "try cotenant sim compare")
    return choices[0]


def prepared(scenario: Scenario, policies: Sequence[PolicyChoice], seeds: Sequence[int]) -> list[Task]:
    """Raises Problem."""
    with as_problems():
        return tasks(scenario, policies, seeds)


@contextmanager
def as_problems() -> Iterator[None]:
    """What is wrong with a trace, a table of pairs or a number, as one line."""
    try:
        yield
    except TraceProblem as error:
        missing = "there is no such file" in error.message
        raise Problem("not-found" if missing else "usage", error.message, error.hint) from None
    except MemoryError:
        raise Problem("failed", "out of memory", "take fewer jobs with --jobs") from None
    except ValueError as error:
        code = "not-found" if isinstance(error, NoPairTable) else "usage"
        raise Problem(code, str(error), "`cotenant sim compare --help` has examples") from None

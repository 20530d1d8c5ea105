"""Generated jobs of small hosts whose commands come again: families of runs of one program. SYNTHETIC.

The spread between and within families, their sizes and the share of jobs that come again are from a published
table: Helios, cluster Venus, VC vcvGl, 1 to 26 September 2020 (Hu et al., SC '21; data under CC-BY-4.0, as in
`../shared/traces/helios_venus_sept_vcvGl.csv.gz`). A family there is five or more completed jobs of one user
on as many GPUs, each submitted within five minutes of the one before: 22 families with 283 of 702 jobs. The
table names no commands, and that VC is of wide jobs.

Rule: all other numbers are chosen, as those of `small_hosts.py`. Within a family lengths are independent:
nothing but the program tells them, so that the same command again says no more than another of its family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.sim import Cluster, SimulatedSubmission, Trace
from experiments.default import small_hosts
from experiments.default.small_hosts import DAYS, LOAD, Job, as_trace, upto

BETWEEN_SIGMA: Final = 0.95
"""Published: standard deviation of the families' mean log lengths, without what their small sizes add."""
WITHIN_SIGMAS: Final = (0.03, 0.09, 0.42, 0.65, 1.22)
"""Published: least, quartiles and greatest of the standard deviation of log lengths within a family."""
FAMILY_JOBS: Final = (6, 8, 10, 14, 42)
"""Published: least, quartiles and greatest number of jobs of a family."""
REPEATED: Final = 0.4
"""Published: the share of jobs in families. Here: of tries; the others are of programs that run once."""
USERS: Final = {1: 3, 2: 6}
"""By hosts."""
SWEEP_S_MAX: Final = 86_400.0
PROGRAMS: Final = 2
"""Of each user."""
WIDTHS: Final = {1: (1, 1, 1, 2), 2: (1, 1, 2, 4)}
"""By hosts: GPUs of a program in sweeps, each as likely. Its tries take one."""


class Program(NamedTuple):
    """A script of a user: what its runs have in common."""

    user: str
    script: str
    median_s: float
    sigma: float
    """Of its runs' log lengths."""

    def length_s(self, draw: np.random.Generator, scale: float = 1.0) -> float:
        return scale * self.median_s * float(draw.lognormal(0.0, self.sigma))

    def submission(self, draw: np.random.Generator, *words: str) -> SimulatedSubmission:
        """A run with those words and a learning rate of its own."""
        rate = f"{10.0 ** draw.uniform(-5.0, -1.0):.3g}"
        return SimulatedSubmission(argv=("python", self.script, *words, "--lr", rate), user=self.user)


def draw_quantile(draw: np.random.Generator, quantiles: Sequence[float]) -> float:
    """A draw from a distribution of which least, quartiles and greatest are known."""
    return float(np.interp(draw.random(), np.linspace(0.0, 1.0, len(quantiles)), quantiles))


def draw_program(draw: np.random.Generator, user: str, script: str, median_s: float) -> Program:
    """`median_s`: of the medians of all programs."""
    between = median_s * float(draw.lognormal(0.0, BETWEEN_SIGMA))
    return Program(user, script, between, draw_quantile(draw, WITHIN_SIGMAS))


def generated(cluster: Cluster, seed: int) -> Trace:
    """Tries and sweeps in the shares of `small_hosts.py`, each by a user with a program."""
    hosts = cluster.hosts
    draw = np.random.default_rng([seed, hosts, 1])
    horizon_s = DAYS[hosts] * 86_400.0
    work_gpu_s = LOAD * cluster.gpus * horizon_s
    programs = [
        draw_program(draw, f"user{user}", f"train{number}.py", small_hosts.SWEEP_S_MEDIAN)
        for user in range(USERS[hosts])
        for number in range(PROGRAMS)
    ]
    widths = draw.choice(WIDTHS[hosts], len(programs))

    def tries() -> list[Job]:
        return [*_tries(draw, draw.uniform(0.0, horizon_s), programs[draw.integers(len(programs))])]

    def sweep() -> list[Job]:
        number, at_s = int(draw.integers(len(programs))), draw.uniform(0.0, horizon_s)
        program, count = programs[number], round(draw_quantile(draw, FAMILY_JOBS))
        return [
            Job(at_s, min(SWEEP_S_MAX, program.length_s(draw)), int(widths[number]), program.submission(draw))
            for _ in range(count)
        ]

    jobs = upto(small_hosts.TRIES_OF_WORK * work_gpu_s, tries)
    jobs += upto((1.0 - small_hosts.TRIES_OF_WORK) * work_gpu_s, sweep)
    return as_trace(f"synthetic-families-{seed}", f"generated (seed {seed}): families of commands", jobs)


def _tries(draw: np.random.Generator, at_s: float, program: Program) -> Iterator[Job]:
    """One after the other: of the user's program with a word that makes it short, or of a script that runs
    once."""
    scale = small_hosts.TRY_S_MEDIAN / small_hosts.SWEEP_S_MEDIAN
    for _ in range(draw.integers(*small_hosts.TRIES, endpoint=True)):
        is_repeated = draw.random() < REPEATED
        tried = program if is_repeated else _program_run_once(draw, program.user)
        length_s = min(small_hosts.TRY_S_MAX, tried.length_s(draw, scale))
        yield Job(at_s, length_s, 1, tried.submission(draw, *(["--debug"] if is_repeated else [])))
        at_s += length_s + draw.uniform(*small_hosts.PAUSE_S)


def _program_run_once(draw: np.random.Generator, user: str) -> Program:
    script = f"once{draw.integers(1_000_000)}.py"
    return draw_program(draw, user, script, small_hosts.SWEEP_S_MEDIAN)

"""Are ETAs right for real jobs? What each of sixty DDP jobs on two CPU slots was told when it came, and what
came of it; writes experiments/results/live-eta.md.

    python experiments/eta/live_eta.py [--jobs 60] [--seed 7] [--load 0.9] [--policy srtf]   about 15 minutes
    python experiments/eta/live_eta.py --page                 only the page, from the run that is there

Rule: the first interval that the controller shows of a job counts, calibrated or not; nothing else is known
here than what `cotenant eta` and `cotenant show` say.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy as np

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s
from experiments.shared import paths
from experiments.shared.live.given import write
from experiments.shared.live.run import DEVICES, JobRow, Play, job_row, job_spec, no_job_left, warm_up
from experiments.shared.live.schedule import KINDS, Arrival, Pace, draw

SIGMA: Final = 0.7
WARM_UP_JOBS: Final = len(KINDS)
EXPECTED: Final = 0.8
"""One in ten ends before p10, one in ten after p90."""


PAGE: Final = """\
# ETAs of real jobs

Of {jobs} real DDP jobs on {devices} CPU slots under `{policy}`, {told} were told an interval for their end
while they were there; {held} ended within it. The 95 % interval of that share, {low} to {high}, {verdict}
the {wanted} that would be right.

| told | jobs | held | 95 % interval | median bias | median error | width / time |
| --- | --: | --: | --: | --: | --: | --: |
{rows}

The owner of each job expected its true length times a lognormal factor (sigma {sigma}, seed {seed}). Arrivals
come in bursts at an offered load of {load} without loading. A job counts as told when the controller first
shows an interval, a second or two after its submission. The median bias is actual / p50 - 1.

`python experiments/eta/live_eta.py` makes this page; {machine}.
"""


class ToldFinish(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after the job was submitted."""

    p10_s: float
    p50_s: float | None
    p90_s: float | None
    is_calibrated: bool


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """One job: what its owner expected, what it was told, when it ended."""

    name: str
    expected_s: float
    told: ToldFinish | None
    """None: it ended before anything was worked out."""
    row: JobRow


class EtaRun(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    seed: int
    load: float
    machine: dict[str, str | int | float]
    jobs: tuple[Foretold, ...]


class Watching(Play):
    """Notes the first interval of each job's end."""

    told: dict[JobId, ToldFinish]

    def _look(self) -> bool:
        for eta in self._client.ask(wire.ListEtas()).etas:
            if eta.job_id in self.jobs and eta.job_id not in self.told and eta.finish is not None:
                since_s = wall_s(self._jobs[eta.job_id].submitted_at) if eta.job_id in self._jobs else None
                if since_s is not None:
                    p50_s, p90_s = wall_s(eta.finish.p50_at), wall_s(eta.finish.p90_at)
                    self.told[eta.job_id] = ToldFinish(
                        p10_s=wall_s(eta.finish.p10_at) - since_s,
                        p50_s=None if p50_s is None else p50_s - since_s,
                        p90_s=None if p90_s is None else p90_s - since_s,
                        is_calibrated=eta.is_calibrated,
                    )
        return super()._look()


def run_live(options: argparse.Namespace, say: Callable[[str], None]) -> EtaRun:
    schedule = draw(options.seed, options.jobs, options.load)
    factors = np.exp(SIGMA * np.random.default_rng(options.seed).standard_normal(len(schedule)))
    factor_of = {arrival.name: float(factor) for arrival, factor in zip(schedule, factors, strict=True)}
    folder = Path(tempfile.mkdtemp(prefix="cotenant-live-"))
    os.environ.setdefault(LOCK_DIR_ENV, str(folder / "locks"))
    say(f"seed {options.seed}, {len(schedule)} jobs over {schedule[-1].at_s:.0f} s; state and logs: {folder}")
    with (
        PrivateCluster(folder, f"cpu:{DEVICES}") as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        paces = warm_up(client, folder, say)

        def spec_of(arrival: Arrival) -> JobSpec:
            pace = paces[arrival.kind]
            steps = pace.steps(arrival.length_s)
            expected_s = factor_of[arrival.name] * pace.expected_s(steps)
            spec = job_spec(folder, arrival.name, KINDS[arrival.kind], steps, expected_s=expected_s)
            return msgspec.structs.replace(spec, iterations=None)

        def row_of(shown: wire.Shown, arrival: Arrival) -> JobRow:
            pace: Pace = paces[arrival.kind]
            return job_row(
                shown, factor_of[arrival.name] * pace.expected_s(pace.steps(arrival.length_s)), pace
            )

        client.ask(wire.SetPolicy(name=options.policy))
        play = Watching(client, folder, schedule, spec_of, row_of, say)
        play.told = {}
        play.play(lambda rows: None)
    jobs = [
        Foretold(name=row.name, expected_s=row.expected_s, told=play.told.get(JobId(row.job_id)), row=row)
        for row in play.rows()
    ]
    return EtaRun(
        policy=options.policy,
        seed=options.seed,
        load=options.load,
        machine=machine.facts(),
        jobs=tuple(jobs),
    )


# --- The page ----------------------------------------------------------------------------------------


def held(job: Foretold) -> bool:
    """It ended within what it was told; an end without a known bound holds."""
    told = job.told
    assert told is not None
    return told.p10_s <= job.row.jct_s <= (math.inf if told.p90_s is None else told.p90_s)


def row(what: str, jobs: Sequence[Foretold]) -> str:
    if not jobs:
        return f"| {what} | 0 | | | | | |"
    many, hits = len(jobs), sum(map(held, jobs))
    low, high = wilson(hits, many)
    biases = [job.row.jct_s / job.told.p50_s - 1 for job in jobs if job.told and job.told.p50_s]
    widths = [
        (job.told.p90_s - job.told.p10_s) / job.row.jct_s for job in jobs if job.told and job.told.p90_s
    ]
    bias = f"{median(biases):+.0%}" if biases else "-"
    off = f"{median(map(abs, biases)):.0%}" if biases else "-"
    width = f"{median(widths):.2f}" if widths else "-"
    return f"| {what} | {many} | {hits / many:.0%} | {low:.0%} to {high:.0%} | {bias} | {off} | {width} |"


def wilson(hits: int, many: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    share, wide = hits / many, z * z / many
    middle = (share + wide / 2) / (1 + wide)
    half = z * math.sqrt(share * (1 - share) / many + wide / (4 * many)) / (1 + wide)
    return middle - half, middle + half


def page(run: EtaRun) -> str:
    told = [job for job in run.jobs if job.told is not None]
    calibrated = [job for job in told if job.told is not None and job.told.is_calibrated]
    low, high = wilson(sum(map(held, told)), len(told))
    rows = (
        row("all", told),
        row("calibrated", calibrated),
        row("before 15 outcomes were known", [job for job in told if job not in calibrated]),
    )
    return PAGE.format(
        jobs=len(run.jobs),
        devices=DEVICES,
        policy=run.policy,
        told=len(told),
        held=sum(map(held, told)),
        low=f"{low:.0%}",
        high=f"{high:.0%}",
        verdict="includes" if low <= EXPECTED <= high else "does not include",
        wanted=f"{EXPECTED:.0%}",
        rows="\n".join(rows),
        sigma=SIGMA,
        seed=run.seed,
        load=run.load,
        machine=", ".join(f"{key} {value}" for key, value in run.machine.items()),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--load", type=float, default=0.9, help="offered load aimed at, loading not counted")
    parser.add_argument("--policy", default="srtf")
    parser.add_argument("--data", type=Path, default=paths.EXPERIMENTS / "eta" / "live.json")
    parser.add_argument("--out", type=Path, default=paths.RESULTS / "live-eta.md")
    parser.add_argument("--page", action="store_true", help="run nothing: only what was measured before")
    options = parser.parse_args()
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    if options.page and not options.data.exists():
        print(f"live_eta: nothing was measured yet: {options.data}", file=sys.stderr)
        return 1
    if not options.page:
        write(options.data, run_live(options, say))
    options.out.write_text(page(msgspec.json.decode(options.data.read_bytes(), type=EtaRun)))
    print("written:", options.out)
    return 0


if __name__ == "__main__":
    os.chdir(paths.ROOT)
    sys.exit(main())

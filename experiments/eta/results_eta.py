"""Are ETAs right? Three VCs under three policies: runs what is missing, then writes results/eta.md.

    python experiments/eta/results_eta.py               about 100 processor seconds a cell
    python experiments/eta/results_eta.py --minutes 20  begins no new run after so long
    python experiments/eta/results_eta.py --page        only the page, from the runs that are there

Rule: the runs are kept beside the page, one file each. The VCs were chosen by size and load before any of
them was run, and nothing was tuned on them.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec

from cotenant.controller.sim import Scenario, policies_named, run_all, tasks
from experiments.shared import paths
from experiments.shared.kept_runs import complete, keep
from experiments.shared.tables import said

SIGMA: Final = 0.7
VCS: Final = {"philly/ed69ec": 2, "philly/e13805": 5, "philly/103959": 3}
"""VC -> hosts of 8 GPUs, for an offered load of about .75."""
POLICIES: Final = ("srtf", "tiresias", "pcs")
"""`pcs` with its defaults: weighted fair queueing of three classes by size."""
POOLED: Final = (0.75, 0.85)
EACH: Final = (0.70, 0.90)
BIAS_MAX: Final = 0.15
WIDTH_MAX: Final = 2.5
PREDICTIONS_MIN: Final = 400

ABOUT: Final = """
    Estimates of lengths are wrong by a lognormal factor (sigma {sigma}) at an offered load of about 0.75.
    Right is a pooled share of 75 to 85 %; in each case 70 to 90 % or a flag, a median bias of at most 15 %,
    a width of at most 2.5 JCT and 400 predictions. Policies that share, other sigmas and loads above 1 were
    not tried.
"""


class EtaCell(NamedTuple):
    folder: Path
    vc: str
    policy: str

    @property
    def file(self) -> Path:
        return self.folder / f"{self.vc.partition('/')[2]}-{self.policy}.json"


class EtaCellRun(msgspec.Struct, frozen=True, kw_only=True):
    vc: str
    policy: str
    commit: str
    offered_load: float
    cpu_s: float
    eta: dict[str, Any]


def load(cell: EtaCell) -> EtaCellRun | None:
    return msgspec.json.decode(cell.file.read_bytes(), type=EtaCellRun) if cell.file.exists() else None


def run(cell: EtaCell, commit: str) -> None:
    scenario = Scenario(trace=cell.vc, hosts=VCS[cell.vc], noise=SIGMA, pairs="none", eta=True)
    (found,) = run_all(tasks(scenario, policies_named(cell.policy), [0]), workers=1)
    summary = found.summary
    if summary["interrupted"]:
        raise RuntimeError("interrupted: a part of a cell is not kept")
    result = EtaCellRun(
        vc=cell.vc,
        policy=cell.policy,
        commit=commit,
        offered_load=summary["offered_load"],
        cpu_s=summary["cpu_s"],
        eta=summary["eta"],
    )
    keep(result, cell.file)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=1e5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    options = parser.parse_args()
    cells = [EtaCell(options.out / "eta", vc, policy) for policy, vc in product(POLICIES, VCS)]
    if not options.page:
        complete(cells, load, run, workers=options.workers, minutes=options.minutes)
    runs = [found for cell in cells if (found := load(cell)) is not None]
    if not runs:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    (options.out / "eta.md").write_text(page(runs, len(cells)))
    print(f"{options.out / 'eta.md'}: {len(runs)} of {len(cells)} cells")
    return 0


def page(runs: list[EtaCellRun], wanted: int) -> str:
    """Opens with the answer, and says what is missing."""
    counted = sum(each.eta["predictions"] for each in runs)
    pooled = sum(each.eta["coverage_80"] * each.eta["predictions"] for each in runs) / counted
    missing = "" if len(runs) == wanted else f" **{wanted - len(runs)} of {wanted} cases have not been run.**"
    width = fmean(each.eta["width_over_jct"] for each in runs)
    least, *_, most = sorted(each.eta["median_abs_error"] for each in runs)
    first = (
        f"Of {counted:,} calibrated intervals told at submission {pooled:.1%} held, where 80 % should: "
        f"{verdict(pooled, POOLED)} over {len(runs)} cases. An interval is {width:.2f} times as wide as the "
        f"job's completion time (JCT) on average, and the median prediction errs by {least:.0%} to "
        f"{most:.0%}.{missing}"
    )
    commits = ", ".join(sorted({each.commit for each in runs}))
    last = f"`make results-eta`; runs of commit {commits}, seed 0, in [eta/](eta/). {machine.sentences()}"
    titles = (
        "VC", "policy", "counted", "held", "median bias", "median error", "width / JCT", "flagged", "right",
    )  # fmt: skip
    head = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    table = "\n".join([*head, *map(row, runs)])
    return "\n\n".join(["# Are ETAs right?", said(first), table, said(ABOUT, sigma=SIGMA), last]) + "\n"


def row(each: EtaCellRun) -> str:
    eta = each.eta
    fair = eta["flagged"] or EACH[0] <= eta["coverage_80"] <= EACH[1]
    right = (
        fair
        and abs(eta["median_bias"]) <= BIAS_MAX
        and eta["width_over_jct"] <= WIDTH_MAX
        and eta["predictions"] >= PREDICTIONS_MIN
    )
    words = ("no", "yes")
    return (
        f"| {each.vc} | `{each.policy}` | {eta['predictions']} | {eta['coverage_80']:.1%} "
        f"| {eta['median_bias']:+.1%} | {eta['median_abs_error']:.0%} | {eta['width_over_jct']:.2f} "
        f"| {words[eta['flagged']]} | {words[right]} |"
    )


def verdict(value: float, bounds: tuple[float, float]) -> str:
    return "right" if bounds[0] <= value <= bounds[1] else "NOT right"


if __name__ == "__main__":
    sys.exit(main())

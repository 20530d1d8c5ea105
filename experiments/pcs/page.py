"""results/pcs.md: PCS's figures, ours beside the paper's, with a verdict each.

Rule: a verdict is computed from the runs; a number of the paper's stands in `paper.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from experiments.pcs import fronts, promises, runs
from experiments.pcs.runs import PAPER, Cell
from experiments.shared.tables import header, row_of, said

PAPERS_NAME: Final = {"afs-l": "AFS", "srsf": "Tiresias", "themis": "Themis", "fifo": "FIFO"}
EXACT: Final = 0.001
NEAR: Final = 0.03
"""What the three digits of a figure, and its five seeds, may hide."""


RATIOS: Final = "7a"

ANSWER: Final = """
    **{met} of the {all} claims about PCS hold here.** {exact} Keeping predictions costs time: beside `srsf`,
    the balanced configuration takes this many times the mean completion time (and errs by this much):
    {price}.
"""
SEVEN: Final = """
    Of figure {figure}'s mean JCTs over AFS's (Tiresias, Themis and FIFO), {met} of {all} are within
    {near:.0f} % of the paper's.
"""
LIMITS: Final = """
    {best} This is the fluid world: jobs hold parts of devices, and changes cost nothing.
    [elastic.md](elastic.md) shows what whole devices and pauses make of it. Where sizes are wrong (figure
    10), so are predictions: {noise}. The paper's testbed and its workloads 1 and 3 are not here. Where a
    figure needs a workload that was not published, a Philly VC stands in.
"""


class Claim(NamedTuple):
    """One thing the paper or its code says, and what came of it."""

    figure: str
    claim: str
    found: str
    holds: bool


def text(facts: str, folder: Path) -> str:
    claims = list(all_claims())
    met = sum(claim.holds for claim in claims)
    ratios = [claim.holds for claim in claims if claim.figure == RATIOS]
    parts = [
        "# PCS: speed against kept predictions",
        said(ANSWER, met=met, all=len(claims), exact=exact_sentence(), price=price_sentence()),
        promises.picture(folder),
        "\n".join(
            [
                "## The paper's claims",
                "",
                *header(["figure", "claim", "here", "verdict"]),
                *(
                    row_of([claim.figure, claim.claim, claim.found, "holds" if claim.holds else "**no**"])
                    for claim in claims
                    if claim.figure != RATIOS
                ),
                "",
                said(SEVEN, figure=RATIOS, near=100.0 * NEAR, met=sum(ratios), all=len(ratios)),
            ]
        ),
        promises.section(),
        "## What this does not show",
        said(LIMITS, best=best_sentence(), noise=figure_10()),
        "## How this page was made",
        f"`make results-pcs` runs what is missing and writes this page.\n\n{facts}",
    ]
    return "\n\n".join(parts) + "\n"


def found(vc: str, policy: str) -> dict[str, Any]:
    """Raises KeyError: it has not been run."""
    cell = next(cell for cell in runs.figure_7() + runs.others() if (cell.vc, cell.policy) == (vc, policy))
    value = runs.load(cell)
    if value is None:
        raise KeyError(f"{vc} {policy} has not been run: leave --page out")
    return value


def p99(value: dict[str, Any]) -> float:
    return float(value["errors"][99])


def exact_sentence() -> str:
    off = [abs(ours / theirs - 1.0) for _, _, ours, theirs in oracle_rows()]
    most = f"{100.0 * max(off):.4f} %"
    return f"Our {len(off)} mean completion times differ from the published code's by at most {most}."


def price_sentence() -> str:
    told = []
    for vc in PAPER["figure_7"]["workloads"]:
        fast, kept = found(vc, "srsf"), found(vc, "pcs-bal")
        told.append(
            f"{kept['mean_jct_s'] / fast['mean_jct_s']:.2f} times on {vc} "
            f"({100.0 * kept['mean_error']:.2f} % instead of {100.0 * fast['mean_error']:.0f} %)"
        )
    return ", ".join(told)


def best_sentence() -> str:
    told = []
    for vc in PAPER["figure_7"]["workloads"]:
        times = {
            cell.policy: found(vc, cell.policy)["mean_jct_s"] for cell in runs.figure_7() if cell.vc == vc
        }
        first = min(times, key=lambda policy: times[policy])
        ours = min(times[policy] for policy in times if policy.startswith("pcs"))
        told.append(f"`{first}` on {vc} ({ours / times[first]:.2f})")
    return said(
        """The policy with the lowest mean completion time, and how many times it the fastest PCS takes, is
        {told}.""",
        told=", ".join(told),
    )


def oracle_rows() -> list[tuple[str, str, float, float]]:
    return [
        (vc, policy, found(vc, policy)["mean_jct_s"], float(theirs))
        for vc, policies in PAPER["mean_jct_s"].items()
        for policy, theirs in policies.items()
    ]


def all_claims() -> Iterator[Claim]:
    rows = oracle_rows()
    exact = [abs(ours / theirs - 1.0) <= EXACT for _, _, ours, theirs in rows]
    yield Claim(
        "-", "mean JCT of the published code within 0.1 %", f"{sum(exact)} of {len(exact)}", all(exact)
    )
    for policy, theirs in runs.TOY_PAPERS.items():
        ours, paper = runs.toy_played(policy), PAPER["figure_1"][theirs]
        yield Claim(
            "1",
            f"{theirs}: mean JCT {paper['mean_jct']}, error {paper['mean_pred_error']} %",
            f"{ours.mean_jct:g}, {100.0 * ours.mean_error:.0f} %",
            ours.mean_jct == paper["mean_jct"] and round(100.0 * ours.mean_error) == paper["mean_pred_error"],
        )
    yield from ratio_claims()
    base = found("0e4a51", "srsf")
    for figure, name, ours, theirs in (
        (
            "4",
            "error at p90 of pcs-pred, of srsf",
            found("0e4a51", "pcs-pred")["errors"][90],
            base["errors"][90],
        ),
        (
            "6a",
            "unfairness at p99 of pcs-jct, of srsf",
            found("0e4a51", "pcs-jct")["late"][99],
            base["late"][99],
        ),
    ):
        yield Claim(figure, f"{name}: lower", f"{100.0 * ours:.1f} %, {100.0 * theirs:.1f} %", ours < theirs)
    b436 = found("b436b2", "pcs-bal"), found("b436b2", "srsf")
    times = b436[0]["mean_jct_s"] / b436[1]["mean_jct_s"]
    yield Claim(
        "7",
        "b436b2 balanced: error at most 0.6 %, p99 15 %, 2.6 times SRSF's JCT",
        f"{100.0 * b436[0]['mean_error']:.2f} %, {100.0 * p99(b436[0]):.1f} %, {times:.2f}",
        b436[0]["mean_error"] <= 0.006 and p99(b436[0]) <= 0.15 and times <= 2.6,
    )
    searched = runs.loaded(runs.search_file())
    if searched is not None:
        yield Claim(
            "9b",
            f"a front of {searched['evaluations']} takes under 20 min on two cores",
            f"{searched['cpu_s'] / 60.0:.1f} CPU min, one core",
            searched["cpu_s"] / 2.0 <= 1200.0,
        )
    longest_min = promises.longest_min()
    yield Claim(
        "9b",
        f"a front of {fronts.MANY:,} takes under 60 min on two cores",
        f"at most {longest_min:.1f} CPU min, one core",
        longest_min / 2.0 <= 60.0,
    )


def ratio_claims() -> Iterator[Claim]:
    paper = PAPER["figure_7"]
    for place, vc in enumerate(paper["workloads"]):
        base = found(vc, "afs-l")["mean_jct_s"]
        for policy, theirs in PAPERS_NAME.items():
            if policy == "afs-l" or (policy == "themis" and vc != "0e4a51"):
                continue
            ours, wanted = found(vc, policy)["mean_jct_s"] / base, paper["jct"][theirs][place]
            yield Claim(
                RATIOS,
                f"{vc}: {theirs} has {wanted} times AFS's mean JCT",
                f"{ours:.3f}",
                abs(ours / wanted - 1) <= NEAR,
            )


def figure_10() -> str:
    told = []
    for policy in dict.fromkeys(cell.policy for cell in runs.figure_10()):
        of: list[Cell] = [cell for cell in runs.figure_10() if cell.policy == policy]
        errors = [100.0 * value["mean_error"] for cell in of if (value := runs.load(cell)) is not None]
        told.append(f"`{policy}` errs by {' and '.join(f'{error:.1f}' for error in errors)} %")
    sigmas = " and ".join(f"{sigma:g}" for sigma in runs.NOISES)
    return f"with lognormal factors of sigma {sigmas}, {', '.join(told)}"

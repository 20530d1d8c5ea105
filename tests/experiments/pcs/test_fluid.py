"""The fluid world: PCS's own numbers to the second, and what holds of every rule."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.papers.pcs import parse_published
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import Scenario, measured_speedups, open_trace
from experiments.pcs.fluid import (
    NEVER,
    POLICIES,
    FluidJob,
    FluidResult,
    Play,
    Speedup,
    fluid_jobs,
    fluid_workload,
    policy_named,
    predicted_end_s,
    simulate_fluid,
)
from experiments.pcs.fluid.__main__ import main

CONFIGS = {
    "0e4a51-jct": ((1627, 969473), (0.95, 0.048, 0.002), 0.598, 0.23536),
    "0e4a51-bal": ((2139, 1533489), (0.93993994, 0.0570570571, 0.003003003), 0.6326, 0.50166),
    "0e4a51-pred": ((5758, 4600151), (0.95, 0.048, 0.002), 0.3185, 0.16764),
    "b436b2-bal": ((102661,), (0.941, 0.059), 0.764419, 0.111536),
    "6c71a0-bal": ((330591,), (0.93, 0.07), 0.104604, 0.448391),
}
"""Of PCS's artifact (abdullahfsm/PCS, MIT): thresholds, weights, zeta_min, delta."""


def parameters(name: str) -> Parameters:
    thresholds, rates, zeta_min, delta = CONFIGS[name]
    published = {
        "class_thresholds": [*thresholds, "inf"],
        "class_rates": rates,
        "clip_demand_factor": zeta_min,
        "delta": delta,
    }
    return parse_published(published).as_parameters()


def ran(
    vc: str, policy: str, given: Parameters | None = None, asked: int = 0, noise: float = 0.0
) -> FluidResult:
    asked_for = Scenario(trace=f"philly/{vc}", noise=noise)
    workload = fluid_workload(asked_for, open_trace(asked_for.trace))
    return simulate_fluid(workload, asked_for.cluster, policy, given, asked=asked)


@pytest.mark.parametrize(
    ("vc", "policy", "mean_jct_s"),
    [
        ("0e4a51", "fifo", 2_205_647),
        ("0e4a51", "srsf", 252_227),
        ("0e4a51", "jct", 337_440),
        ("0e4a51", "bal", 456_328),
        ("0e4a51", "pred", 771_194),
        ("b436b2", "fifo", 12_610_473),
        ("b436b2", "srsf", 276_693),
        ("b436b2", "bal", 699_818),
        ("6c71a0", "bal", 185_472),
    ],
)
def test_published_mean_completion_times_come_out_to_the_second(
    vc: str, policy: str, mean_jct_s: int
) -> None:
    known = policy in POLICIES
    outcome = ran(vc, policy if known else "pcs", None if known else parameters(f"{vc}-{policy}"))
    assert outcome.finished.all()
    assert outcome.jct_s.mean() == pytest.approx(mean_jct_s, abs=1.0)


def errors(outcome: FluidResult) -> np.ndarray:
    asked = np.isfinite(outcome.predicted_s)
    return np.abs(outcome.jct_s[asked] - outcome.predicted_s[asked]) / outcome.predicted_s[asked]


def test_published_prediction_errors_come_out() -> None:
    """Of Figure 7's first workload: 26.6 % with 313 at the 99th percentile."""
    error = errors(ran("0e4a51", "srsf", asked=2465))
    assert len(error) == 2465
    assert error.mean() == pytest.approx(0.26619, abs=1e-4)
    assert np.percentile(error, 99) == pytest.approx(3.13503, abs=1e-4)


def test_afs_comes_out_within_the_digits_of_the_figure() -> None:
    """Figure 7 gives SRSF as 1.064 times AFS."""
    assert 252_227 / ran("0e4a51", "afs-l").jct_s.mean() == pytest.approx(1.064, abs=0.0005)


def test_first_come_first_served_keeps_every_promise() -> None:
    assert errors(ran("0e4a51", "fifo", asked=50)).max() < 1e-9


def test_what_is_predicted_rests_on_what_was_told() -> None:
    exact = ran("0e4a51", "fifo", asked=50)
    noisy = ran("0e4a51", "fifo", asked=50, noise=0.7)
    assert np.array_equal(exact.jct_s, noisy.jct_s), "under fifo an estimate changes nothing else"
    assert errors(noisy).mean() > 0.05


SHAPES = st.sampled_from(
    [Speedup(curve[:gpus]) for curve in measured_speedups().values() for gpus in (1, 2, 4)]
)
JOBS = st.lists(
    st.builds(
        lambda after_s, work, shape: (after_s, FluidJob(0.0, work, work, shape)),
        st.floats(0.0, 200.0),
        st.floats(1.0, 5_000.0),
        SHAPES,
    ),
    min_size=1,
    max_size=12,
)
RULES = {name: policy.make for name, policy in POLICIES.items() if name != "pcs"} | {
    "pcs": lambda given: POLICIES["pcs"].make(
        {"thresholds_gpu_s": "100,1500", "weights": ".6,.3,.1", "zeta_min": 0.8, "delta": 0.1}
    )
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25)
@given(drawn=JOBS)
def test_every_rule_gives_away_all_that_can_be_used(name: str, drawn: list[tuple[float, FluidJob]]) -> None:
    jobs, now_s = [], 0.0
    for after_s, job in drawn:
        now_s += after_s
        jobs.append(job._replace(submit_s=now_s))
    play, ended = Play(jobs, 6, RULES[name]({})), []
    for number, until_s in enumerate([*(job.submit_s for job in jobs), NEVER]):
        while play.left_gpu_s and (who := play.advance(until_s)) is not None:
            ended.append(who)
            check(play, name)
        if number < len(jobs):
            play.now_s = until_s
            play.arrive(number)
            check(play, name)
            before = dict(play.left_gpu_s)
            assert predicted_end_s(play, number) >= play.now_s
            assert play.left_gpu_s == before, "a prediction changes nothing"
    assert sorted(ended) == list(range(len(jobs)))


def check(play: Play, name: str) -> None:
    given = dict(play.running)
    wanted = {job: play.jobs[job].speedup.gpus_max for job in play.left_gpu_s}
    assert given.keys() <= wanted.keys()
    assert all(0.0 < gpus <= wanted[job] + 1e-9 for job, gpus in given.items())
    used, usable = sum(given.values()), min(6, sum(wanted.values()))
    # Sia's sizes are powers of two, so a device may be one too many.
    assert used == pytest.approx(usable) if name != "sia" else 0 < used <= usable + 1e-9 or not wanted


def test_a_trace_without_models_gets_curves_and_a_wide_job_one_that_is_wide_enough(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_time_s,duration_s,gpus\na,0,100,1\nb,10,100,24\n")
    workload = fluid_workload(Scenario(trace=str(trace)), open_trace(str(trace)))
    assert set(workload.models) <= set(measured_speedups())
    jobs = fluid_jobs(workload)
    assert [job.work_gpu_s for job in jobs] == pytest.approx([100.0, 2400.0])
    assert [job.speedup.gpus_max for job in jobs] == [1, 24]
    assert workload.duration_s[1] > 100.0


def test_a_comparison_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    several = tmp_path / "several.json"
    several.write_text(
        json.dumps(
            {
                "configs": {
                    "near": {"class_thresholds": ["inf"], "class_rates": [1.0]},
                    "far": {"class_thresholds": [1000, "inf"], "class_rates": [0.9, 0.1]},
                }
            }
        )
    )
    words = f"philly/51b7ef fifo pcs:config={several}#far"
    assert main(words.split()) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["label"] for run in runs] == ["fifo", f"pcs:config={several}#far"]
    assert runs[0]["prediction_error"]["mean"] == pytest.approx(0.0, abs=1e-9)
    assert runs[0]["prediction_error"].keys() == {"mean", "p50", "p95", "p99", "jobs", "signed"}
    assert runs[1]["parameters"]["thresholds_gpu_s"] == "1000"
    assert math.isfinite(runs[1]["unfairness"]["mean"])
    for text, says in (
        (f"pcs:config={several}", "near, far"),
        ("sjf", "fluid"),
        ("themis:lease=1", "lease_s"),
    ):
        with pytest.raises(ValueError, match=says):
            policy_named(text)

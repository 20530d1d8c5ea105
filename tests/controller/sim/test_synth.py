"""Generated traces meet what was published, for every seed, and say that they are generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim.preparing import prepare
from cotenant.controller.sim.traces.reading import read
from cotenant.controller.sim.traces.schema import write_csv
from cotenant.controller.sim.traces.synth import KINDS, medians, synthesise
from cotenant.controller.sim.traces.trace import TraceProblem
from cotenant.controller.sim.world.workload import Cluster
from cotenant.controller.trace_names import TITLES

TABLE_1 = {"earth": (427_000, 59.5, 39.0), "saturn": (698_000, 72.2, 80.0), "uranus": (329_000, 128.1, 243.0)}


@pytest.mark.parametrize("seed", [0, 7, 2**40])
@pytest.mark.parametrize("kind", TABLE_1)
def test_lazers_table_1_is_met(kind: str, seed: int) -> None:
    jobs, mean_min, gap_s = TABLE_1[kind]
    trace = synthesise(kind, seed=seed)
    assert len(trace) == jobs
    assert float(np.mean(trace.duration_s)) == pytest.approx(mean_min * 60, rel=0.005), seed
    assert float(np.mean(np.diff(trace.submit_s))) == pytest.approx(gap_s, rel=0.005), seed
    assert trace.synthetic and "generated" in trace.source and str(seed) in trace.notes[0]


def test_what_is_listed_can_be_generated() -> None:
    assert set(TITLES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_durations_are_heavy_tailed_and_arrivals_bursty(kind: str) -> None:
    trace = synthesise(kind, seed=3)
    median_s, p99_s, longest_s = np.quantile(trace.duration_s, (0.5, 0.99, 1.0))
    assert median_s == pytest.approx(KINDS[kind].duration_s_median, rel=0.06)
    assert p99_s > 50_000 and longest_s > 20 * 86_400
    gaps_s = np.diff(trace.submit_s)
    assert np.median(gaps_s) < np.mean(gaps_s) / 3, "many come together"
    assert np.std(gaps_s) > 2 * np.mean(gaps_s), "a Poisson process has 1"


def test_gaps_and_durations_of_generated_philly_are_near_those_of_the_recorded_one() -> None:
    """What SWEEP_MEAN, SWEEP_GAP_S, LONG_SHARE and the sigmas were set by."""
    generated, recorded = np.diff(synthesise("philly", seed=5).submit_s), np.diff(read("philly").submit_s)
    for level, most in ((0.5, 2.0), (0.9, 1.6), (0.99, 1.3)):
        ratio = np.quantile(generated, level) / np.quantile(recorded, level)
        assert 1 / most < ratio < most, (level, ratio)
    vcs = ("6214e9", "6c71a0", "b436b2", "ee9e8c", "0e4a51", "103959", "e13805", "ed69ec", "51b7ef")
    recorded_s = np.concatenate([read(f"philly/{vc}").duration_s for vc in vcs])
    generated_s = synthesise("philly", seed=5).duration_s
    for level in (0.9, 0.95, 0.99):
        ratio = np.quantile(generated_s, level) / np.quantile(recorded_s, level)
        assert 0.7 < ratio < 1.4, (level, ratio)


@given(kind=st.sampled_from([*KINDS]), seed=st.integers(0, 2**32), jobs=st.integers(2, 3000))
@settings(max_examples=60, deadline=None)
def test_a_part_meets_the_means_too(kind: str, seed: int, jobs: int) -> None:
    trace = synthesise(kind, seed=seed, jobs=jobs)
    assert len(trace) == jobs and trace.submit_s[0] == 0.0
    assert float(np.mean(np.diff(trace.submit_s))) == pytest.approx(
        KINDS[kind].interarrival_s_mean, rel=0.005
    )
    assert float(np.mean(trace.duration_s)) == pytest.approx(KINDS[kind].duration_s_mean, rel=0.005)
    assert set(trace.gpus.tolist()) <= set(map(float, KINDS[kind].gpus))


def test_a_seed_gives_the_same_trace_and_another_seed_another() -> None:
    one, again, other = (synthesise("earth", seed=seed, jobs=500) for seed in (1, 1, 2))
    for column in ("submit_s", "duration_s", "gpus"):
        np.testing.assert_array_equal(getattr(one, column), getattr(again, column))
        assert not np.array_equal(getattr(one, column), getattr(other, column))


def test_a_generated_trace_stays_one_in_a_file(tmp_path: Path) -> None:
    write_csv(synthesise("earth", seed=1, jobs=50), tmp_path / "earth.csv.gz")
    trace = read(tmp_path / "earth.csv.gz")
    assert trace.synthetic and "generated" in trace.source
    made = prepare(trace, cluster=Cluster(hosts=64, gpus_per_host=8), seed=1)
    assert made.synthetic, "and so does every workload that is made of it"


def test_one_job_arrives_at_once() -> None:
    assert synthesise("earth", seed=1, jobs=1).submit_s.tolist() == [0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_mixture_has_the_median_and_mean_it_was_made_for(kind: str) -> None:
    wanted = KINDS[kind]
    short_s, long_s = medians(wanted)
    random = np.random.default_rng(11)
    long = random.random(400_000) < 0.08
    normal = random.standard_normal(400_000)
    drawn = np.where(long, long_s * np.exp(1.3 * normal), short_s * np.exp(1.7 * normal))
    assert float(np.median(drawn)) == pytest.approx(wanted.duration_s_median, rel=0.05)
    assert float(np.mean(drawn)) == pytest.approx(wanted.duration_s_mean, rel=0.05)
    assert sum(wanted.gpus.values()) == pytest.approx(1.0)


def test_offered_loads_at_512_gpus_are_those_that_the_documentation_names() -> None:
    loads = {kind: round(wanted.offered_load(), 2) for kind, wanted in KINDS.items()}
    assert loads == {"earth": 0.56, "saturn": 0.33, "uranus": 0.19, "philly": 0.76}


@pytest.mark.parametrize(
    ("kind", "seed", "jobs", "message", "hint"),
    [
        ("eart", 0, None, "eart is no kind", "did you mean earth?"),
        ("earth", 0, 0, "0 jobs cannot be generated", "1 to"),
        ("earth", -1, 5, "-1 is no seed", "0 or more"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    kind: str, seed: int, jobs: int | None, message: str, hint: str
) -> None:
    with pytest.raises(TraceProblem, match=message) as caught:
        synthesise(kind, seed=seed, jobs=jobs)
    assert hint in caught.value.hint

"""From a trace to a workload: the window, the load, and draws that do not disturb each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim.preparing import LIMITS_S, prepare
from cotenant.controller.sim.traces.reading import parse, read
from cotenant.controller.sim.traces.trace import TraceProblem
from cotenant.controller.sim.world.overheads import (
    PARAMETERS,
    START_UP_S,
    WARM_START_UP_RATIO,
    Overhead,
    Overheads,
    launch_overheads,
    modelled_overhead,
)
from cotenant.controller.sim.world.workload import Cluster, Workload

SMALL = Cluster(hosts=8, gpus_per_host=8)
JOBS = """job_id,submit_time_s,duration_s,gpus,type,model,vc
a,10,100,1,hp,,x
b,20,200,0.5,spot,bert,y
c,20,300,128,spot,,y
d,50,400,4,hp,bert,x
e,90,500,2,spot,,x
"""


def workload(**options: Any) -> Workload:
    chosen: dict[str, Any] = {"cluster": SMALL, "seed": 1} | options
    return prepare(parse(JOBS, name="t"), **chosen)


def philly(**options: Any) -> Workload:
    chosen: dict[str, Any] = {"cluster": SMALL, "seed": 1} | options
    return prepare(read("philly/e13805"), **chosen)


def test_time_zero_is_the_first_job_and_a_part_of_a_gpu_counts_as_one() -> None:
    made = workload()
    assert made.job_ids == ("a", "b", "d", "e")
    assert made.submit_s.tolist() == [0.0, 10.0, 40.0, 80.0]
    assert made.duration_s.tolist() == [100.0, 200.0, 400.0, 500.0]
    assert made.gpus.tolist() == [1, 1, 4, 2]
    assert made.hp.tolist() == [True, False, True, False]
    assert made.excluded == {"wider than 64 GPUs": 1}
    assert [made.organisations[number] for number in made.organisation] == ["x", "y", "x", "x"]


def test_a_window_is_the_same_whatever_the_cluster() -> None:
    assert workload(from_s=15, jobs=3).job_ids == ("b", "d"), "c is one of the three"
    wide = Cluster(hosts=16, gpus_per_host=8)
    assert workload(from_s=15, jobs=3, cluster=wide).job_ids == ("b", "c", "d")
    assert workload(from_s=20, jobs=1).submit_s.tolist() == [0.0]


def test_a_load_scale_divides_times_between_arrivals() -> None:
    np.testing.assert_allclose(philly(load_scale=4.0).submit_s * 4.0, philly().submit_s)
    assert philly(load_scale=4.0).offered_load(64) == pytest.approx(4 * philly().offered_load(64))


def test_limits_are_never_too_low_and_round() -> None:
    exact, limits = philly(), philly(limits=True)
    assert np.all(limits.expected_s >= exact.duration_s)
    assert set(limits.expected_s[limits.expected_s < LIMITS_S[-1]]) <= set(LIMITS_S.tolist())
    assert 1.5 < np.median(limits.expected_s / exact.duration_s) < 6.0
    np.testing.assert_array_equal(limits.duration_s, exact.duration_s)
    np.testing.assert_array_equal(limits.expected_s, philly(limits=True).expected_s)


def test_estimates_are_exact_without_noise_and_right_in_the_median_with_it() -> None:
    exact, noisy = philly(), philly(noise=0.5)
    np.testing.assert_array_equal(exact.expected_s, exact.duration_s)
    error = np.log(noisy.expected_s / noisy.duration_s)
    assert abs(float(np.median(error))) < 0.08 and float(np.std(error)) == pytest.approx(0.5, rel=0.1)


def test_missing_models_are_drawn_from_the_table_and_known_ones_are_kept() -> None:
    made = workload()
    models = [made.models[number] for number in made.model]
    assert models[1] == models[2] == "bert"
    assert models[0] in PARAMETERS and models[3] in PARAMETERS
    assert made.load_s[0] == modelled_overhead(PARAMETERS[models[0]]).load_s


def test_models_may_be_given_and_leave_load_times_alone() -> None:
    plain, named = philly(), philly(models=("resnet", "lm"))
    assert named.models == ("resnet", "lm")
    assert 0.4 < float(np.mean(named.model)) < 0.6
    np.testing.assert_array_equal(plain.load_s, named.load_s)


def test_a_trace_without_models_gets_each_class_about_as_often() -> None:
    made = prepare(read("philly"), cluster=SMALL, seed=3, jobs=7000)
    counts = np.bincount(made.model, minlength=7)
    assert made.models == tuple(PARAMETERS) and counts.min() > 850 and counts.max() < 1150


SAME_PAUSE = Overheads(
    table={name: Overhead(load_s=one.load_s, pause_s=1.0) for name, one in Overheads().table.items()}
)
OPTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "noise": ({"noise": 0.7}, {"expected_s"}),
    "hp_share": ({"hp_share": 0.3}, {"hp"}),
    "load_scale": ({"load_scale": 2.0}, {"submit_s"}),
    "overheads": ({"overheads": Overheads(load_time_scale=4.0)}, {"load_s"}),
    "pauses": ({"overheads": SAME_PAUSE}, {"pause_s"}),
    "models": ({"models": ("a", "b")}, {"model"}),
    "cluster": ({"cluster": Cluster(hosts=20, gpus_per_host=8)}, set()),
}
COLUMNS = ("submit_s", "duration_s", "expected_s", "gpus", "load_s", "pause_s", "model", "hp", "organisation")


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_only_what_it_is_about(option: str) -> None:
    given_options, changed = OPTIONS[option]
    base = {"noise": 0.3, "hp_share": 0.5} | ({"hp_share": 0.6} if option == "hp_share" else {})
    before, after = philly(**base), philly(**(base | given_options))
    differ = {name for name in COLUMNS if not np.array_equal(getattr(before, name), getattr(after, name))}
    assert differ == changed


@given(seed=st.integers(0, 2**32), jobs=st.integers(1, 200), more=st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_a_longer_window_only_adds_jobs_at_its_end(seed: int, jobs: int, more: int) -> None:
    options: dict[str, Any] = {"seed": seed, "noise": 0.4, "hp_share": 0.5, "models": ("a", "b", "c")}
    short, long = philly(jobs=jobs, **options), philly(jobs=jobs + more, **options)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(short, name), getattr(long, name)[: len(short)], err_msg=name)


def test_one_seed_gives_one_workload_and_another_seed_others() -> None:
    one, again, other = (philly(seed=seed, noise=0.3, hp_share=0.5) for seed in (4, 4, 5))
    assert all(np.array_equal(getattr(one, name), getattr(again, name)) for name in COLUMNS)
    assert {name for name in COLUMNS if not np.array_equal(getattr(one, name), getattr(other, name))} == {
        "expected_s", "load_s", "pause_s", "hp",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_scale": 0.0}, "a load scale of 0.0"),
        ({"load_scale": float("nan")}, "a load scale of nan"),
        ({"noise": -1.0}, "a noise of -1.0"),
        ({"hp_share": 1.5}, "a share of hp jobs of 1.5"),
        ({"jobs": 0}, "0 jobs are too few"),
        ({"from_s": float("inf")}, "a start of inf s"),
        ({"from_s": 1e9}, "no job was submitted at or after 1e\\+09 s"),
        ({"vc": "z"}, "t has no VC z"),
        ({"from_s": 15, "jobs": 2, "cluster": Cluster(hosts=1, gpus_per_host=1)}, None),
        (
            {"from_s": 50, "cluster": Cluster(hosts=1, gpus_per_host=1)},
            "none of the 2 chosen jobs fits on 1 GPUs",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert workload(**options).job_ids == ("b",)
        return
    with pytest.raises(TraceProblem, match=message):
        workload(**options)


def test_several_clocks_need_a_vc() -> None:
    trace = parse("submit_time_s,duration_s,gpus,vc\n0,1,1,x\n9,1,1,x\n0,1,1,y\n4,1,1,y\n", name="t")
    with pytest.raises(TraceProblem, match="2 VCs, each with its own clock"):
        prepare(trace, cluster=SMALL, seed=1)
    assert prepare(trace, cluster=SMALL, seed=1, vc="y").submit_s.tolist() == [0.0, 4.0]


# Overheads.


def test_the_modelled_table_has_lazers_seven_classes_and_means_near_what_the_paper_shows() -> None:
    table = Overheads()
    assert set(table.models) == {"ConvNeXt", "EfficientNet", "VGG19", "ViT", "Swin", "Conformer", "TNT"}
    assert np.mean([table.load_s(model) for model in table.models]) == pytest.approx(100, rel=0.02)
    assert np.mean([table.pause_s(model) for model in table.models]) == pytest.approx(8, rel=0.02)
    assert table.load_s("ViT") > table.load_s("VGG19") > table.load_s("TNT"), "more state takes longer"


def test_a_scale_multiplies_every_load() -> None:
    table = Overheads(load_time_scale=0.1)
    for model, parameters in PARAMETERS.items():
        assert table.load_s(model) == pytest.approx(0.1 * modelled_overhead(parameters).load_s)
        assert table.pause_s(model) == pytest.approx(modelled_overhead(parameters).pause_s)
    with pytest.raises(ValueError, match="a scale must be 0 or more"):
        Overheads(load_time_scale=-1.0)


def test_a_warm_start_saves_start_up_and_reads_as_much_state() -> None:
    warm, cold = launch_overheads("warm", 1.0), launch_overheads("cold", 1.0)
    assert cold == Overheads()
    for model in PARAMETERS:
        saved_s = START_UP_S * (1 - WARM_START_UP_RATIO)
        assert cold.load_s(model) - warm.load_s(model) == pytest.approx(saved_s)
        assert cold.pause_s(model) == warm.pause_s(model)


def test_some_of_a_workloads_jobs_begin_with_the_first_of_them() -> None:
    drawn = philly(jobs=40, hp_share=0.5, models=("a", "b", "c"))
    whole = replace(drawn, resumes=tuple(row % 3 == 0 for row in range(40)))
    rows = np.array([4, 7, 20])
    some = whole.take(rows)
    assert some.submit_s.tolist() == (whole.submit_s[rows] - whole.submit_s[4]).tolist()
    for name in set(COLUMNS) - {"submit_s"}:
        assert np.array_equal(getattr(some, name), getattr(whole, name)[rows]), name
    assert some.take(np.array([True, False, True])).gpus.tolist() == whole.gpus[[4, 20]].tolist()
    assert some.resumes == (False, False, False)
    assert (some.models, some.name) == (whole.models, whole.name)

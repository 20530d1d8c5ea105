"""The busiest period of a trace, and samples of it."""

from __future__ import annotations

import math
from tempfile import NamedTemporaryFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim import Trace, TraceProblem, read
from experiments.castor.periods import busiest, sample

Row = tuple[int, int, float]
"""(submission in s, duration in s, GPUs)."""


def traced(rows: list[Row]) -> Trace:
    lines = [f"j{n},{at},{lasts},{gpus:g}" for n, (at, lasts, gpus) in enumerate(sorted(rows))]
    with NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join(["job_id,submit_time_s,duration_s,gpus", *lines]) + "\n")
        file.flush()
        return read(file.name)


def test_the_busiest_period_is_the_one_with_most_gpu_time_not_with_most_jobs() -> None:
    many_short = [(at, 1, 1.0) for at in range(0, 50, 5)]
    few_wide = [(1000, 60, 8.0), (1010, 60, 8.0), (1020, 60, 8.0)]
    assert busiest(traced(many_short + few_wide), span_s=100.0, jobs=3).submit_s.tolist() == [
        1000,
        1010,
        1020,
    ]
    assert len(busiest(traced(many_short + few_wide), span_s=100.0, jobs=4)) == 10, "three are too few"


def test_a_job_counts_up_to_the_length_of_the_period_only() -> None:
    one_of_a_month = [(0, 2_592_000, 1.0), (10, 1, 1.0)]
    three_of_a_period = [(5000, 100, 1.0), (5010, 100, 1.0), (5020, 100, 1.0)]
    assert busiest(traced(one_of_a_month + three_of_a_period), span_s=100.0, jobs=2).submit_s[0] == 5000


def test_a_period_ends_before_its_length_is_over() -> None:
    rows = [(0, 10, 1.0), (99, 10, 1.0), (100, 10, 1.0)]
    assert busiest(traced(rows), span_s=100.0, jobs=2).submit_s.tolist() == [0.0, 99.0]


def test_a_trace_without_such_a_period_says_what_it_has() -> None:
    with pytest.raises(TraceProblem, match="has 3 submissions") as raised:
        busiest(traced([(0, 1, 1.0), (10, 1, 1.0), (500, 1, 1.0)]), span_s=100.0, jobs=3)
    assert "fullest has 2" in str(raised.value.hint)


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(1, 300), st.sampled_from([0.5, 1.0, 4.0])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_no_other_period_with_enough_jobs_is_busier(rows: list[Row], jobs: int) -> None:
    trace, span_s = traced(rows), 100.0

    def work(inside: list[Row]) -> float:
        return sum(math.ceil(gpus) * min(lasts, span_s) for _, lasts, gpus in inside)

    every = [[row for row in rows if start <= row[0] < start + span_s] for start, _, _ in rows]
    enough = [work(inside) for inside in every if len(inside) >= jobs]
    if not enough:
        with pytest.raises(TraceProblem):
            busiest(trace, span_s=span_s, jobs=jobs)
        return
    found = busiest(trace, span_s=span_s, jobs=jobs)
    columns = zip(found.submit_s, found.duration_s, found.gpus, strict=True)
    assert work([(int(at), int(lasts), float(gpus)) for at, lasts, gpus in columns]) == max(enough)
    assert len(found) >= jobs


@given(st.integers(0, 2**31), st.integers(1, 63), st.integers(1, 63))
@settings(max_examples=30, deadline=None)
def test_a_smaller_sample_lies_within_a_larger_one_in_the_order_of_the_trace(
    seed: int, a: int, b: int
) -> None:
    trace = read("philly/51b7ef")
    small, large = (sample(trace, jobs=n, seed=seed) for n in sorted((a, b)))
    assert len(small) == min(a, b)
    assert set(small.job_ids) <= set(large.job_ids)
    assert list(large.job_ids) == [job for job in trace.job_ids if job in set(large.job_ids)]


def test_other_seeds_draw_other_jobs_and_none_twice() -> None:
    trace = read("philly/51b7ef")
    drawn = [sample(trace, jobs=20, seed=seed).job_ids for seed in (1, 2)]
    assert drawn[0] != drawn[1]
    assert len(set(drawn[0])) == 20
    with pytest.raises(TraceProblem, match="64 jobs"):
        sample(trace, jobs=64, seed=1)

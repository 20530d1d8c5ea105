"""`stretch` and `promise` of the fluid world: what jobs are told, and what holds of promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim import measured_speedups
from experiments.pcs.fluid import NEVER, FluidJob, Play, Speedup, policy_named, predicted_end_s
from experiments.pcs.fluid.promised import PromiseShares, StretchShares

GPUS = 6
SHAPES = st.sampled_from(
    [Speedup(curve[:gpus]) for curve in measured_speedups().values() for gpus in (1, 2, 4, 8)]
)
JOBS = st.lists(
    st.builds(
        lambda after_s, work, shape: (after_s, FluidJob(0.0, work, work, shape)),
        st.floats(0.0, 2_000.0),
        st.floats(1.0, 50_000.0),
        SHAPES,
    ),
    min_size=1,
    max_size=16,
)
EPSILONS = st.sampled_from([0.0, 0.1, 1.0])
ONE = Speedup((1.0,))


def at(drawn: list[tuple[float, FluidJob]]) -> list[FluidJob]:
    submit_s = np.cumsum([after_s for after_s, _ in drawn]).tolist()
    return [job._replace(submit_s=at_s) for at_s, (_, job) in zip(submit_s, drawn, strict=True)]


def until(play: Play, until_s: float) -> dict[int, float]:
    """Who ended when."""
    ends_s: dict[int, float] = {}
    while play.left_gpu_s and (job := play.advance(until_s)) is not None:
        ends_s[job] = play.now_s
    return ends_s


@settings(max_examples=50)
@given(drawn=JOBS, epsilon=EPSILONS)
def test_with_no_arrivals_after_it_a_job_ends_by_its_promise(
    drawn: list[tuple[float, FluidJob]], epsilon: float
) -> None:
    jobs = at(drawn)
    rule = PromiseShares(epsilon=epsilon)
    play = Play(jobs, GPUS, rule)
    for number, job in enumerate(jobs):
        until(play, job.submit_s)
        play.now_s = job.submit_s
        play.arrive(number)
        told_s = rule.told_end_s(number, play) - play.now_s
        promised_s = rule.promise_s(number) - play.now_s
        assert promised_s == pytest.approx(told_s * (1.0 + epsilon))
        assert predicted_end_s(play, number) - play.now_s <= promised_s + 1e-3
        assert sum(gpus for _, gpus in play.running) <= GPUS + 1e-9
    last_s = rule.promise_s(len(jobs) - 1)
    assert until(play, NEVER)[len(jobs) - 1] <= last_s + 1e-3


@settings(max_examples=50)
@given(drawn=JOBS, epsilon=EPSILONS)
def test_work_is_conserved_and_a_run_repeats_exactly(
    drawn: list[tuple[float, FluidJob]], epsilon: float
) -> None:
    jobs = at(drawn)

    def played() -> tuple[dict[int, float], list[float]]:
        rule = PromiseShares(epsilon=epsilon)
        play, done_gpu_s, ends_s = Play(jobs, GPUS, rule), [0.0] * len(jobs), dict[int, float]()
        for number, until_s in enumerate([*(job.submit_s for job in jobs), NEVER]):
            while play.left_gpu_s:
                since_s, running = play.now_s, list(play.running)
                # The rule's own looks are events as well: one step at a time.
                ended = play.advance(min(until_s, since_s + rule.look_s))
                for job, gpus in running:
                    done_gpu_s[job] += jobs[job].speedup.pace_on(gpus) * (play.now_s - since_s)
                if ended is not None:
                    ends_s[ended] = play.now_s
                elif play.now_s >= until_s:
                    break
            if number < len(jobs):
                play.now_s = until_s
                play.arrive(number)
        return ends_s, done_gpu_s

    ends_s, done_gpu_s = played()
    assert done_gpu_s == pytest.approx([job.work_gpu_s for job in jobs])
    assert (ends_s, done_gpu_s) == played()


@pytest.mark.parametrize("stretch", [0.0, 0.5, 1.0])
def test_a_job_is_told_of_the_smaller_ones_still_to_come(stretch: float) -> None:
    """Half of one device was taken by smaller jobs for two days."""
    smaller = [FluidJob(7_200.0 * number, 3_600.0, 3_600.0, ONE) for number in range(24)]
    jobs = [*smaller, FluidJob(172_800.0, 9_000.0, 9_000.0, ONE), FluidJob(172_800.0, 9_000.0, 9_000.0, ONE)]
    rule = StretchShares(stretch)
    play, told_s = Play(jobs, 1, rule), []
    for number, job in enumerate(jobs):
        until(play, job.submit_s)
        play.now_s = job.submit_s
        play.arrive(number)
        told_s.append(rule.told_end_s(number, play) - play.now_s)
    assert told_s[:-1] == pytest.approx([3_600.0] * 24 + [9_000.0]), "nobody waits"
    assert told_s[-1] == pytest.approx(18_000.0 * (1.0 + stretch))


def test_a_job_without_slack_goes_before_a_smaller_one() -> None:
    """One device, a job of 1,000 s that was told 1,000 s: srsf would let the one of 100 s go first."""
    jobs = [FluidJob(0.0, 1_000.0, 1_000.0, ONE), FluidJob(10.0, 100.0, 100.0, ONE)]
    ends_s = {}
    for rule in (PromiseShares(), PromiseShares(epsilon=0.5), StretchShares()):
        play = Play(jobs, 1, rule)
        play.arrive(0)
        until(play, 10.0)
        play.arrive(1)
        ends_s[type(rule), getattr(rule, "_epsilon", None)] = until(play, NEVER)
    promised, later, srsf = ends_s.values()
    assert promised == pytest.approx({0: 1_000.0, 1: 1_100.0})
    assert later == srsf == pytest.approx({1: 110.0, 0: 1_100.0})


def test_a_job_goes_first_from_the_moment_at_which_its_slack_is_used_up() -> None:
    """Two devices. The smaller two go first until 510 s, when nobody comes and nobody ends."""
    jobs = [FluidJob(at_s, work, work, ONE) for at_s, work in ((0.0, 1_000.0), (10.0, 600.0), (10.0, 600.0))]
    rule = PromiseShares(epsilon=0.5)
    play = Play(jobs, 2, rule)
    for number, job in enumerate(jobs):
        play.advance(job.submit_s)
        play.arrive(number)
    assert [rule.promise_s(job) for job in range(3)] == pytest.approx([1_500.0, 910.0, 1_060.0])
    assert until(play, NEVER) == pytest.approx({1: 610.0, 2: 710.0, 0: 1_500.0})


@pytest.mark.parametrize("text", ["stretch:stretch=-1", "promise:epsilon=inf", "promise:epsilon=-0.1"])
def test_a_parameter_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        policy_named(text)

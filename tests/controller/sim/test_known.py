"""What policies know of jobs: lengths said beforehand, told by jobs that run, or never; who can resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import AnyCommand, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim import windows
from cotenant.controller.sim.preparing import add_knowledge, prepare
from cotenant.controller.sim.scenario import Scenario, open_trace
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.windows import TraceWindow
from cotenant.controller.sim.world.jobs import Specs
from cotenant.controller.sim.world.knowledge import COMPLETE, Knowledge
from cotenant.controller.sim.world.physics import Failures, Physics
from cotenant.controller.sim.world.workload import Workload
from tests.controller.sim.test_simulate import ROWS, close, comparable, spread, times
from tests.controller.sim.workloads import JobRow, cluster, workload

PROGRESS = Knowledge(known="progress")
NONE = Knowledge(known="none")


def known(knowledge: Knowledge, *rows: JobRow, seed: int = 0) -> Workload:
    return add_knowledge(workload(*rows), knowledge, seed, np.ones(len(rows), np.bool_))


class Heard:
    """What a run's jobs told, and what the engine made of it, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[float, ev.AnyEvent]] = []
        self.sources: list[tuple[float, str, float | None]] = []
        """Of the first job, after each event."""
        self.preemptible: list[tuple[float, bool]] = []

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        self.events.append((engine.now_s, event))
        if (job := engine.jobs.get(JobId("0"))) is not None:
            left_s = job.remaining_now_s(engine.now_s)
            self.sources.append((engine.now_s, job.estimate.source, left_s))
            self.preemptible.append((engine.now_s, job.preemptible))

    def of(self, kind: type[ev.AnyEvent]) -> list[tuple[float, Any]]:
        return [(at_s, event) for at_s, event in self.events if type(event) is kind]

    def progress(self) -> list[tuple[float, int | None]]:
        return [(at_s, event.total_steps) for at_s, event in self.of(ev.ProgressSeen)]


def run(jobs: Workload, policy: str = "fifo", hosts: int = 1, **more: Any) -> tuple[Any, Heard]:
    heard = Heard()
    return simulate(jobs, cluster(hosts), policy, validate=True, look=heard, **more), heard


class TestAsked:
    @pytest.mark.parametrize(
        ("text", "made"),
        [
            ("exact", COMPLETE),
            ("progress", Knowledge(known="progress", after_s=60.0)),
            ("progress:2.5", Knowledge(known="progress", after_s=2.5)),
            ("none", NONE),
        ],
    )
    def test_as_text(self, text: str, made: Knowledge) -> None:
        assert Knowledge.parse(text) == made

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            (("guess",), r"--known 'guess' makes no sense: write exact, progress:60 or none"),
            (("none:60",), r"--known 'none:60' makes no sense"),
            (("progress:soon",), r"--known 'progress:soon' makes no sense"),
            (("progress:",), r"--known 'progress:' makes no sense"),
            (("progress:0",), r"--known progress:S takes seconds, got 0: write progress:60"),
            (("progress:nan",), r"takes seconds, got nan"),
            (("progress", 1.5), r"--tells is a share of the jobs, 0 to 1, got 1.5: write --tells 0.5"),
            (("progress", float("nan")), r"--tells is a share of the jobs"),
            (("exact", 1.0, -0.1), r"--resumable is a share of the jobs, 0 to 1, got -0.1"),
            (("none", 0.5), r"--tells goes with --known progress:S alone: write that, or leave --tells out"),
        ],
    )
    def test_what_makes_no_sense_says_what_to_write(self, asked: tuple[Any, ...], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            Knowledge.parse(*asked)

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            ({"knowledge": NONE, "noise": 0.5}, "leave --noise, --estimate-noise out"),
            ({"knowledge": PROGRESS, "limits": True}, "leave --noise, --estimate-noise out"),
        ],
    )
    def test_a_scenario_refuses_what_contradicts_it(self, asked: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            Scenario(trace="philly/51b7ef", **asked)

    def test_results_name_what_was_asked_for_and_nothing_else(self) -> None:
        asked = Scenario(
            trace="philly/51b7ef", knowledge=Knowledge(known="progress", tells=0.8, resumable=0.5)
        )
        said = asked.options()
        assert (said["known"], said["tells"], said["resumable"]) == ("progress:60", 0.8, 0.5)
        assert str(asked.knowledge) == (
            "lengths: told 60 s after the first step by 80 % of the jobs; 50 % of the jobs can resume"
        )
        assert str(NONE) == "lengths: told never; 100 % of the jobs can resume"
        assert not {"known", "tells", "resumable"} & set(Scenario(trace="philly/51b7ef").options())


class TestDrawn:
    TRACE = open_trace("philly/51b7ef")

    def prepared(self, *, hosts: int = 8, seed: int = 0, jobs: int | None = None, **asked: Any) -> Workload:
        return prepare(
            self.TRACE, cluster=cluster(hosts, 8), seed=seed, jobs=jobs, knowledge=Knowledge(**asked)
        )

    def test_the_seed_draws_each_share_by_itself(self) -> None:
        both = self.prepared(known="progress", tells=0.5, resumable=0.5)
        assert 0 < sum(both.tells) < len(both) and both.tells != both.resumes
        assert self.prepared(known="progress", tells=0.5).tells == both.tells
        assert self.prepared(resumable=0.5).resumes == both.resumes
        assert self.prepared(known="progress", tells=0.5, resumable=0.5, seed=1).tells != both.tells

    def test_a_longer_window_only_adds_jobs_and_another_cluster_only_leaves_some_out(self) -> None:
        whole = self.prepared(resumable=0.5)
        assert self.prepared(resumable=0.5, jobs=20).resumes == whole.resumes[:20]
        one = prepare(self.TRACE, cluster=cluster(1, 1), seed=0, knowledge=whole.knowledge)
        narrow = [can for can, gpus in zip(whole.resumes, whole.gpus, strict=True) if gpus == 1]
        assert len(one) < len(whole) and [*one.resumes] == narrow

    def test_more_that_tell_are_those_that_told_and_others(self) -> None:
        few, many = (self.prepared(known="progress", tells=share).tells for share in (0.3, 0.6))
        assert all(told for told, before in zip(many, few, strict=True) if before)

    def test_windows_keep_what_was_drawn_of_each_job(self) -> None:
        rows = [JobRow(float(10 * number), 500.0, model=str(number)) for number in range(12)]
        whole = known(Knowledge(known="progress", tells=0.5, resumable=0.5), *rows)
        before = simulate(whole, cluster(1), "sjf")
        found = windows.cut(whole, before, TraceWindow(0, 4, 8, 12))
        rows_of = [int(found.models[model]) for model in found.model.tolist()]
        assert [*found.tells] == [whole.tells[row] for row in rows_of]
        assert [*found.resumes] == [whole.resumes[row] for row in rows_of]
        assert np.isnan(found.expected_s).all()


class TestSaidBeforehand:
    def test_by_default_specs_say_everything_and_nobody_says_more(self) -> None:
        jobs = workload(JobRow(0, 100.0, expected_s=80.0))
        spec = Specs(jobs, cluster(1)).spec(0)
        assert (spec.expected_s, spec.iterations, spec.resumable) == (80.0, 80_000, True)
        outcome, heard = run(jobs)
        assert {type(event) for _, event in heard.events} == {
            ev.JobArrived,
            ev.FirstStepDone,
            ev.AttemptEnded,
        }
        assert comparable(outcome) == comparable(run(known(COMPLETE, JobRow(0, 100.0, expected_s=80.0)))[0])

    def test_lengths_may_be_exact_where_some_cannot_resume(self) -> None:
        jobs = known(Knowledge(resumable=0.5), *[JobRow(0, 100.0)] * 8)
        specs = Specs(jobs, cluster(1))
        assert [specs.spec(row).resumable for row in range(8)] == [None] * 8, "nobody knows it beforehand"
        assert specs.spec(0).expected_s == 100.0
        _, heard = run(jobs)
        assert tuple(event.resumable for _, event in heard.of(ev.CapabilitiesSeen)) == jobs.resumes

    def test_otherwise_a_spec_says_no_length_and_memory_still(self) -> None:
        spec = Specs(known(PROGRESS, JobRow(0, 100.0)), cluster(1)).spec(0)
        assert (spec.expected_s, spec.iterations, spec.resumable) == (None, None, None)
        assert spec.profile is not None and spec.profile.total_steps is None
        assert spec.profile.points[0].memory_mib == 40_960


class TestToldWhileItRuns:
    def test_the_engine_knows_what_is_left_so_long_after_the_first_step(self) -> None:
        """It loads for 30 s, and tells 60 s later that it has 1,000 s in all."""
        outcome, heard = run(known(PROGRESS, JobRow(0, 1000.0)))
        assert heard.progress() == [(90.0, 1_000_000)]
        assert {source for at_s, source, _ in heard.sources if at_s < 90.0} == {"unknown length"}
        ((_, source, left_s),) = [each for each in heard.sources if each[0] == 90.0]
        assert source == "loops" and left_s == pytest.approx(940.0)
        assert times(outcome, 0) == close(0, 30, 1000, 0)

    def test_a_job_that_has_ended_by_then_tells_nothing(self) -> None:
        _, heard = run(known(PROGRESS, JobRow(0, 59.0)))
        assert heard.progress() == []

    def test_each_attempt_tells_again(self) -> None:
        """Each has had its share of the device once, and then its rest."""
        jobs = known(PROGRESS, JobRow(0, 1000.0), JobRow(200, 500.0))
        _, heard = run(jobs, "tiresias", parameters={"thresholds_gpu_s": "100"})
        told = [(e.job_id, e.attempt, e.total_steps) for _, e in heard.of(ev.ProgressSeen)]
        long, short = 1_000_000, 500_000
        assert sorted(told) == [("0", 1, long), ("0", 2, long), ("1", 1, short), ("1", 2, short)]

    def test_jobs_that_do_not_tell_report_when_their_time_has_doubled(self) -> None:
        silent = replace(known(PROGRESS, JobRow(0, 1000.0)), tells=(False,))
        for jobs in (silent, known(NONE, JobRow(0, 1000.0))):
            _, heard = run(jobs)
            assert heard.progress() == [(30.0 + 60.0 * 2**n, None) for n in range(5)]
            assert {source for _, source, _ in heard.sources} == {"unknown length"}

    def test_what_earlier_jobs_took_says_nothing_even_of_the_same_model(self) -> None:
        """A job is expected to need as much as it has had, five minutes at least."""
        lefts: dict[float, tuple[str, float | None]] = {}

        def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
            if (job := engine.jobs.get(JobId("2"))) is not None:
                lefts[engine.now_s] = job.estimate.source, job.remaining_now_s(engine.now_s)

        lengths = ((0, 10.0), (0, 20.0), (200, 600.0))
        three = known(NONE, *(JobRow(at_s, length_s, model="a") for at_s, length_s in lengths))
        simulate(three, cluster(1), "fifo", look=look)
        assert lefts[200.0] == ("unknown length", 300.0)
        assert lefts[200.0 + 30.0 + 450.0] == ("unknown length", 450.0)


class TestResuming:
    LONG_THEN_SHORT = (JobRow(0, 1000.0, load_s=100.0), JobRow(50, 10.0), JobRow(120, 5.0))

    def test_a_resumable_job_is_preempted_from_its_report_on_and_not_before(self) -> None:
        """Told all at arrival it would be preempted while it loads, by each of the others."""
        outcome, _ = run(workload(*self.LONG_THEN_SHORT), "srtf")
        assert outcome.futile_preemptions.tolist() == [2, 0, 0]
        jobs = replace(workload(*self.LONG_THEN_SHORT), knowledge=Knowledge(resumable=0.5))
        outcome, heard = run(replace(jobs, resumes=(True, True, True)), "srtf")
        assert {can for at_s, can in heard.preemptible if at_s < 100.0} == {False}
        hellos = heard.of(ev.CapabilitiesSeen)
        assert (hellos[0][0], hellos[0][1].job_id) == (100.0, "0")
        assert (outcome.preemptions.tolist(), outcome.futile_preemptions.tolist()) == ([1, 0, 0], [0, 0, 0])
        stopped_s = [at_s for at_s, event in heard.of(ev.AttemptEnded) if event.verdict.outcome == "stopped"]
        assert stopped_s == [128.0], "after its pause, for the one that arrived at 120"

    def test_one_that_cannot_resume_is_never_preempted(self) -> None:
        jobs = replace(workload(*self.LONG_THEN_SHORT), knowledge=Knowledge(resumable=0.5))
        outcome, heard = run(replace(jobs, resumes=(False, True, True)), "srtf")
        assert outcome.preemptions.tolist() == [0, 0, 0]
        assert {can for _, can in heard.preemptible} == {False}

    def test_every_host_of_a_gang_says_so(self) -> None:
        jobs = known(PROGRESS, JobRow(0, 100.0, gpus=2))
        _, heard = run(jobs, hosts=2)
        hellos = heard.of(ev.CapabilitiesSeen)
        assert [(at_s, event.host_id, event.resumable) for at_s, event in hellos] == [
            (30.0, "h0", True),
            (30.0, "h1", True),
        ]
        assert heard.preemptible[-2][1]

    def test_one_that_cannot_resume_loses_all_its_work_with_its_host(self) -> None:
        jobs = replace(workload(JobRow(0, 1000.0)), knowledge=Knowledge(resumable=0.5))
        lost: dict[bool, float] = {}
        for can in (True, False):
            outcome, heard = run(
                replace(jobs, resumes=(can,)),
                failures=Failures(mean_between_s=1500.0, repair_s=100.0),
                seed=4,
                checkpoint_every_s=100.0,
            )
            trained_s = [at_s - 30.0 for at_s, event in heard.of(ev.HostLost) if event.by == "failure"]
            assert trained_s and outcome.finished.all()
            lost[can] = float(outcome.rework_s[0])
        assert 0.0 < lost[True] < lost[False]


KNOWLEDGE = st.builds(
    lambda known, after_s, tells, resumable: Knowledge(
        known=known, after_s=after_s, tells=tells if known == "progress" else 1.0, resumable=resumable
    ),
    st.sampled_from(["exact", "progress", "none"]),
    st.sampled_from([0.5, 60.0, 700.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "patient", "cotenant"])
@settings(max_examples=25)
@given(rows=ROWS, knowledge=KNOWLEDGE, failing=st.booleans(), seed=st.integers(0, 9))
def test_all_accounts_agree_and_the_engine_hears_no_more_than_is_told(
    policy: str, rows: list[JobRow], knowledge: Knowledge, failing: bool, seed: int
) -> None:
    """The accounts are asserted inside. Where hosts fail, they do so seldom: a job that cannot resume has to
    have time enough in one piece."""
    jobs = known(knowledge, *spread(rows), seed=seed)
    outcome = simulate(
        jobs,
        cluster(2, 2),
        policy,
        seed=seed,
        physics=Physics(kill_s=1.0 if seed % 2 else 0.0),
        failures=Failures(mean_between_s=20_000.0, repair_s=100.0) if failing else None,
        checkpoint_every_s=50.0,
        validate=True,
        look=(heard := Heard()),
    )
    assert outcome.finished.all()
    firm = [not can for can in jobs.resumes] or [False] * len(jobs)
    assert not outcome.preemptions[firm].any()
    silent = [not told for told in jobs.tells] or [False] * len(jobs)
    telling = {event.job_id for _, event in heard.of(ev.ProgressSeen) if event.total_steps is not None}
    assert not telling if knowledge.known != "progress" else not any(silent[int(job)] for job in telling)
    again = known(knowledge, *spread(rows), seed=seed)
    assert (again.tells, again.resumes) == (jobs.tells, jobs.resumes), "whatever ran on it"

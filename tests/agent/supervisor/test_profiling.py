"""The supervisor's state machine profiling a job in place, with ranks that answer as the library does."""

from __future__ import annotations

from typing import Any

from cotenant.agent.ipc.channel import CoTenantsChanged
from cotenant.agent.ipc.records import Order, Status
from cotenant.agent.supervisor.core.edge import (
    AllGone,
    AnyHappening,
    Finish,
    Publish,
    RankExited,
    RankMessageCame,
    Sampled,
    Started,
    SupervisorTicked,
    TellRank,
)
from cotenant.agent.supervisor.core.rank_messages import (
    BatchSeen,
    FirstStepReached,
    LengthSeen,
    MemorySeen,
    RankFailed,
    RankHello,
    StepDone,
)
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.controller.domain import HostId, Launch, SeenLength
from cotenant.controller.performance import SeenBatch
from cotenant.profiler.indicators.sources import Indicator, Reading, Timed
from tests.building import orders

HOST = HostId("h")
STEP_S = 0.1
TELL_STEPS = 10
"""How often memory is told."""


def order_of(**fields: Any) -> Order:
    return orders.order_of(2, **{"sub_batch": 8, "profile_s": 30.0, **fields})


class Job:
    """Two ranks in lock step below one supervision, and its clock."""

    def __init__(self, *, accumulates: bool = True, note: str = "", **fields: Any) -> None:
        self.supervision = Supervision(order_of(**fields), 0.0)
        self.accumulates, self.note = accumulates, note
        self.now_s, self.step, self.told = 0.0, 0, 0
        self.orders = 0
        self.sampled_s = 0.0
        self.statuses: list[Status] = []
        self.finish: Finish | None = None
        self.happens(Started())

    def rings(self, seconds: float) -> None:
        """Time passes from alarm to alarm, as a supervisor's loop has it."""
        until_s = self.now_s + seconds
        while (alarm_s := self.supervision.next_alarm_s) <= until_s:
            assert alarm_s > self.now_s, "an alarm that never stops ringing"
            self.now_s = alarm_s
            self.happens(SupervisorTicked())
        self.now_s = until_s

    @property
    def status(self) -> Status:
        return self.supervision.status

    def happens(self, event: AnyHappening) -> None:
        effects = self.supervision.handle(event, self.now_s)
        for effect in effects:
            match effect:
                case TellRank():
                    self.orders += 1
                case Publish(status=status):
                    self.statuses.append(status)
                case Finish():
                    self.finish = effect
                case _:
                    pass

    def _sample(self, memory_mib: float = 500.0) -> None:
        values = {Indicator.SMACT: Reading(value=0.75, source="cpu")}
        since_s, self.sampled_s = self.sampled_s, self.now_s
        timed = Timed(since_s=since_s, at_s=self.now_s, period_s=0.5, values=values)
        samples = (timed,) if since_s < self.now_s else ()
        self.happens(Sampled(memory_mib=memory_mib, samples=samples, others_mib=7.0))

    def loads(self, after_s: float = 2.0) -> Job:
        self.now_s += after_s
        self._sample(90.0)
        for rank in (0, 1):
            hello = RankHello(
                v=1,
                rank=rank,
                world_size=2,
                resumable=True,
                accumulates=self.accumulates,
                accumulates_note=self.note,
                step=0,
            )
            self.happens(RankMessageCame(word=hello))
        return self

    def trains(self, seconds: float) -> Job:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._one_step()
        return self

    def _one_step(self) -> None:
        before_s = self.now_s
        self.now_s += STEP_S
        if int(self.now_s / 0.5) > int(before_s / 0.5):
            self._sample()
        self.step += 1
        for rank in (0, 1):
            if self.step == 1:
                self.happens(RankMessageCame(word=FirstStepReached(v=1, rank=rank, step=1)))
            count = 0 if self.step == 1 else 1
            word = StepDone(v=1, rank=rank, step=self.step, count=count, elapsed_s=STEP_S * count)
            self.happens(RankMessageCame(word=word))
        if self.step % TELL_STEPS == 0:
            for rank in (0, 1):
                told = MemorySeen(
                    v=1,
                    rank=rank,
                    first=self.told,
                    step=self.step,
                    s=1,
                    memory_mib=400.0 + rank,
                    static_mib=120.0 + rank,
                )
                self.happens(RankMessageCame(word=told))
            self.told = self.step
        self.happens(SupervisorTicked())

    def ends(self) -> Finish:
        for rank in (0, 1):
            self.happens(RankExited(rank=rank, exit_code=0))
        self.happens(AllGone())
        assert self.finish is not None
        return self.finish


def is_over(job: Job) -> bool:
    return job.status.profile_complete


def test_within_t_prof_the_step_is_measured_while_the_job_trains_for_itself() -> None:
    job = Job().loads().trains(40.0)
    assert job.status.profile_complete
    profile = job.status.profile
    assert profile is not None
    (point,) = profile.points
    assert (point.accumulation_steps, point.sub_batch) == (1, 8)
    assert abs(point.step_s - STEP_S) < 1e-9
    assert point.memory_mib == 500.0, "the highest ever seen is the whole batch's"
    assert profile.static_mib == 121.0 + 7.0, "of the rank that needs most, with its data loaders"
    assert profile.indicators is not None and profile.indicators.SMACT.mean == 0.75
    assert profile.load_s is not None and 2.0 <= profile.load_s < 2.5
    assert profile.accumulates is True
    assert not job.supervision.is_profiling
    told = {status.profile_no for status in job.statuses}
    assert told == {0, 1, 2}, "told when there is a first result, and when all is known"
    assert job.orders == 0, "nothing is asked of the job"
    assert job.ends().result.status.profile == profile


def test_a_first_result_comes_early() -> None:
    job = Job().loads()
    while job.status.profile is None:
        job.trains(STEP_S)
    assert [(p.accumulation_steps, p.memory_mib) for p in job.status.profile.points] == [(1, 500.0)]
    assert not is_over(job) and job.supervision.is_profiling
    assert job.now_s < 10.0, "a part of the 30 s"


def test_what_the_job_says_of_splitting_goes_with_the_profile() -> None:
    assert [
        found.accumulates
        for job in (Job(accumulates=False), Job(accumulates=False, note="BatchNorm"))
        if (found := job.loads().trains(40.0).status.profile) is not None
    ] == [None, False]
    job = Job().loads().trains(10.0)
    job.happens(RankMessageCame(word=RankFailed(v=1, rank=1, what="accumulate", error="rows mix")))
    job.trains(30.0)
    assert is_over(job) and job.status.profile is not None and job.status.profile.accumulates is False


def test_a_co_tenant_interrupts_and_what_was_measured_until_then_is_told() -> None:
    job = Job().loads().trains(20.0)
    job.happens(CoTenantsChanged(alone=False))
    profile = job.status.profile
    assert profile is not None and not is_over(job) and job.status.profile_no == 2
    assert profile.points and profile.points[0].accumulation_steps == 1
    job.trains(60.0)
    assert job.status.profile_no == 2, "beside a co-tenant nothing is measured"
    job.happens(CoTenantsChanged(alone=True))
    job.trains(60.0)
    assert is_over(job) and job.status.profile_no == 3


def test_a_job_that_ends_early_leaves_what_was_measured() -> None:
    result = Job().loads().trains(12.0).ends().result
    assert result.status.profile is not None and not result.status.profile_complete
    assert [point.accumulation_steps for point in result.status.profile.points] == [1]


def test_without_t_prof_nothing_is_told() -> None:
    job = Job(profile_s=0.0).loads().trains(30.0)
    assert job.status.profile is None and not job.supervision.is_profiling


def test_a_job_without_the_library_is_watched_from_outside() -> None:
    job = Job()
    for _ in range(190):
        job.now_s += 0.5
        job._sample()
    assert job.status.profile_complete
    assert job.status.profile is not None and job.status.profile.source == "from outside"
    assert job.status.profile.memory_mib_peak == 500.0
    assert job.status.profile.duty_cycle == 0.75


def test_steps_without_a_hello_are_a_profile_of_their_own() -> None:
    job = Job(sub_batch=None)
    job.now_s += 4.0
    job.trains(10.0)
    seen = LengthSeen(v=1, rank=1, total=900, note="loops seen: range(900)")
    job.happens(RankMessageCame(word=seen))
    job.happens(RankMessageCame(word=LengthSeen(v=1, rank=0, total=500, note="loops seen: range(500)")))
    job.happens(RankMessageCame(word=seen))
    assert job.status.length == SeenLength(steps=500, note="loops seen: range(500)")
    assert not is_over(job)
    job.trains(25.0)
    profile = job.status.profile
    assert is_over(job) and profile is not None
    assert (profile.source, profile.points, profile.total_steps) == ("in place", (), 500)
    assert profile.step_s is not None and abs(profile.step_s - STEP_S) < 1e-9
    assert (profile.memory_mib_peak, profile.duty_cycle) == (500.0, 0.75)
    assert job.status.resumable is None, "nobody has said what it can do"


def test_steps_beside_a_co_tenant_say_nothing_of_the_pace_alone() -> None:
    job = Job(sub_batch=None)
    job.trains(5.0)
    job.happens(CoTenantsChanged(alone=False))
    measured = job.status.profile
    assert measured is not None and measured.steps > 0
    job.trains(20.0)
    job.happens(CoTenantsChanged(alone=True))
    assert job.ends().result.status.profile == measured


def test_a_job_that_loads_for_long_is_profiled_all_the_same() -> None:
    job = Job()
    for _ in range(150):
        job.now_s += 0.5
        job._sample()
    assert job.supervision.is_profiling
    job.loads(1.0).trains(60.0)
    profile = job.status.profile
    assert profile is not None and profile.source == "in place"
    assert [point.accumulation_steps for point in profile.points] == [1]


def test_a_member_host_of_a_gang_leaves_the_measuring_to_the_first() -> None:
    gang = orders.gang(("other/0",), ("h/1",))
    supervision = Supervision(order_of(gang=gang), 0.0)
    supervision.handle(Started(), 0.0)
    assert not supervision.is_profiling


def test_no_alarm_rings_for_ever_whatever_the_job_has_said() -> None:
    Job().rings(100.0)
    Job().loads(30.0).rings(100.0)
    Job().loads().trains(3.0).rings(100.0)
    job = Job().loads().trains(60.0)
    assert is_over(job)
    job.rings(100.0)


def test_a_batch_that_was_seen_is_measured_as_one_that_was_said() -> None:
    job = Job(sub_batch=None)
    job.now_s += 1.0
    for rank, rows in ((1, 16), (0, 8), (1, 4)):
        job.happens(RankMessageCame(word=BatchSeen(v=1, rank=rank, rows=rows, note="line 41")))
    job.loads().trains(120.0)
    assert job.status.batch == SeenBatch(rows=8, note="line 41"), "the lowest rank's word counts"
    found = job.status.profile
    assert found is not None and found.batch == job.status.batch
    assert [(p.accumulation_steps, p.sub_batch) for p in found.points] == [(1, 8)]


def test_a_batch_of_unknown_size_has_no_points() -> None:
    job = Job(sub_batch=None)
    job.happens(RankMessageCame(word=BatchSeen(v=1, rank=0, rows=None, note="its first batches differ")))
    found = job.loads().trains(120.0).status.profile
    assert found is not None and (found.points, found.batch) == ((), SeenBatch())


def test_a_hook_that_never_says_hello_is_watched_from_outside() -> None:
    job = Job(sub_batch=None, launch=Launch(argv=("x",), zero_code=("accumulate", "progress")))
    job.happens(RankMessageCame(word=FirstStepReached(v=1, rank=0, step=1)))
    job.rings(200.0)
    assert job.status.profile_complete
    assert job.status.profile is not None and job.status.profile.source == "from outside"

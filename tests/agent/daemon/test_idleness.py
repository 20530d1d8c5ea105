"""When an attempt is idle: from its steps, its processes and its devices, over whole traces.

The property is that of the promise: what computes, loads, validates, saves or is held back by us is never
called idle, however the looks fall and whatever is unknown in between.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import (
    AgentTicked,
    Connected,
    IndicatorsRead,
    StatusCame,
    TroubleNoticed,
    UnusedGpus,
)
from cotenant.agent.daemon.core.idleness import GAP_S, OLD_S, AttemptSight, IdleWatch, Kernels
from cotenant.agent.ipc.channel import TellNow
from cotenant.agent.supervisor.core.activity import CORE_SHARE_MIN, LOOK_S, READ_BYTES_MIN, ProcessActivity
from cotenant.agent.supervisor.core.edge import Sampled
from cotenant.controller.domain import DeviceReading
from cotenant.controller.wire import AttemptProgress, Heartbeat, IdleReading, Renew, TellJob
from tests.agent.daemon.test_held_memory import GPU, ON_GPU, REPORT
from tests.agent.daemon.test_state import KEY, Agent, sent, start, status, told, welcomed
from tests.building.hosts import cpu

SHARED_TRACES = Path(__file__).resolve().parents[4] / "shared/interference/muri_stage_times.csv.gz"
"""Apache-2.0: measured iterations, and how long each of their stages takes."""
QUIET_S = 2 * LOOK_S + 5.0
"""A job that works now and then is silent for no longer than this, as it is looked at."""


class Doing(NamedTuple):
    """What a job does for some time, as the host sees it."""

    name: str
    kernels: float | None = 0.0
    """The share of time in which kernels run; None: no indicator tells."""
    cores: float = 0.004
    reads: float = 0.0
    step_every_s: float | None = None
    is_busy: bool = False
    is_held: bool = False


WORK = (
    Doing("trains", kernels=0.97, cores=1.0, step_every_s=0.4),
    Doing("trains with long steps", kernels=0.4, cores=0.01, step_every_s=40.0),
    Doing("validates", kernels=0.6, cores=0.3),
    Doing("waits for one long kernel", kernels=1.0),
    Doing("compiles", cores=3.0),
    Doing("loads from a slow disk", cores=0.001, reads=2.0 * READ_BYTES_MIN),
    Doing("prepares data", cores=2.0 * CORE_SHARE_MIN),
    Doing("loads or saves", is_busy=True),
)
HELD = (
    Doing("is stopped by somebody", is_held=True),
    Doing("is paced for a co-tenant", is_held=True),
    Doing("without indicators", kernels=None),
)
IDLE = Doing("idle")
STRETCHES = st.lists(
    st.tuples(st.sampled_from((*WORK, *HELD, IDLE)), st.integers(1, 400)), min_size=1, max_size=12
)


class Host:
    """A host that samples one attempt about once a second, and looks at it as the agent does."""

    def __init__(self) -> None:
        self.watch, self.activity, self.kernels = IdleWatch(), ProcessActivity(), Kernels()
        self.now_s = 1000.0
        self.cpu_s = self.read_bytes = self.steps = self.step_s = 0.0

    def runs(self, doing: Doing, seconds: float, period_s: float = 1.0) -> Iterator[IdleReading | None]:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += period_s
            self.cpu_s += doing.cores * period_s
            self.read_bytes += doing.reads * period_s
            self.step_s += period_s
            if doing.step_every_s is not None and self.step_s >= doing.step_every_s:
                self.steps, self.step_s = self.steps + 1, 0.0
            sample = Sampled(cpu_s=self.cpu_s, read_bytes=int(self.read_bytes))
            self.activity.note_sample(sample, self.now_s)
            values = {} if doing.kernels is None else {"GRACT": doing.kernels}
            self.kernels.take((DeviceReading(device_id=GPU.device_id, values=values),), self.now_s)
            runs = self.kernels.run_on((GPU,), self.now_s, shared=False)
            sight = AttemptSight(self.steps, self.activity.count, runs, doing.is_busy, doing.is_held)
            self.watch.look(sight, self.now_s)
            yield self.watch.read(self.now_s)


@given(STRETCHES, st.sampled_from((0.5, 1.0, 3.0)))
@settings(deadline=None, max_examples=60)
def test_only_time_in_which_nothing_happened_counts_as_idle(
    stretches: list[tuple[Doing, int]], period_s: float
) -> None:
    host, at_most_s = Host(), 0.0
    for doing, seconds in stretches:
        for number, reading in enumerate(host.runs(doing, seconds, period_s)):
            at_most_s += 0.0 if doing in HELD else period_s
            if doing in WORK and number * period_s >= QUIET_S:  # By now it has been seen.
                at_most_s = QUIET_S
            assert reading is None or reading.idle_s <= at_most_s + period_s, doing.name


@pytest.mark.parametrize("doing", WORK, ids=lambda doing: doing.name.replace(" ", "-"))
def test_no_kind_of_work_is_ever_idle_for_long(doing: Doing) -> None:
    host = Host()
    list(host.runs(IDLE, 500))
    readings = list(host.runs(doing, 7200))
    assert all(reading is not None and reading.idle_s <= QUIET_S for reading in readings[30:])


@pytest.mark.parametrize("doing", HELD, ids=lambda doing: doing.name.replace(" ", "-"))
def test_what_is_held_back_or_unknown_is_never_idle_and_ends_nothing(doing: Doing) -> None:
    host = Host()
    list(host.runs(doing, 3600))
    assert (host.watch.read(host.now_s) or IdleReading(idle_s=0.0)).idle_s == 0.0
    list(host.runs(IDLE, 300))
    before = host.watch.read(host.now_s)
    list(host.runs(doing, 3600))
    after = host.watch.read(host.now_s)
    assert before is not None and after is not None and after.idle_s == before.idle_s > 250.0


def test_a_job_that_stops_working_becomes_idle_and_says_since_when() -> None:
    host = Host()
    list(host.runs(WORK[0], 100))
    *_, reading = host.runs(IDLE, 1800)
    assert reading is not None and reading.active_ago_s is not None
    assert 1800 - QUIET_S <= reading.idle_s <= 1800
    assert reading.active_ago_s == pytest.approx(reading.idle_s, abs=1.0)


def test_an_agent_that_has_just_started_knows_of_no_activity() -> None:
    host = Host()
    *_, reading = host.runs(IDLE, 60)
    assert reading is not None and reading.active_ago_s is None and reading.idle_s <= 60


@pytest.mark.skipif(not SHARED_TRACES.exists(), reason="the shared measurements are not here")
def test_measured_iterations_are_never_idle() -> None:
    """Of real models on GPUs: preparing data, computing, exchanging; a thousand times slower, so that each
    stage is longer than a look."""
    with gzip.open(SHARED_TRACES, "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    for row in rows[::4]:
        stages = [float(row[f"stage{number}_ms"] or 0.0) for number in range(3)]
        doings = (WORK[6], WORK[1], WORK[2])
        host = Host()
        for _ in range(2):
            for doing, stage_s in zip(doings, stages, strict=True):
                for reading in host.runs(doing, stage_s):
                    assert reading is None or reading.idle_s <= QUIET_S, (row["model"], doing.name)


def test_an_old_reading_says_nothing_and_a_busy_shared_device_says_nothing_of_whom() -> None:
    kernels = Kernels()
    kernels.take((DeviceReading(device_id=GPU.device_id, values={"GRACT": 0.0}),), 100.0)
    assert kernels.run_on((GPU,), 101.0, shared=True) is False
    assert kernels.run_on((GPU,), 101.0 + OLD_S, shared=False) is None
    kernels.take((DeviceReading(device_id=GPU.device_id, values={"SMACT": 0.5}),), 200.0)
    assert kernels.run_on((GPU,), 200.0, shared=False) is True
    assert kernels.run_on((GPU,), 200.0, shared=True) is None
    assert kernels.run_on((), 200.0, shared=False) is None
    assert kernels.run_on((cpu("h1/cpu0"),), 200.0, shared=False) is False


def test_it_is_known_how_long_nothing_has_run_on_a_device() -> None:
    kernels, quiet_s = Kernels(), []
    for at_s, busy in ((0.0, 0.3), (10.0, 0.0), (20.0, 0.0), (30.0, 0.1), (40.0, 0.0)):
        reading = DeviceReading(device_id=GPU.device_id, values={"GRACT": busy})
        quiet_s += [each.quiet_s for each in kernels.take((reading,), at_s)]
    assert quiet_s == [0.0, 0.0, 10.0, 0.0, 0.0]


def test_time_in_which_nobody_looked_counts_little() -> None:
    watch, sight = IdleWatch(), AttemptSight(0, 3, has_kernels=False)
    watch.look(sight, 0.0)
    watch.look(sight, 5000.0)
    reading = watch.read(5000.0)
    assert reading is not None and reading.idle_s == GAP_S


def test_what_is_typed_counts_at_once() -> None:
    activity = ProcessActivity()
    activity.note_sample(Sampled(), 0.0)
    assert activity.count is None
    activity.note_sample(Sampled(input_bytes=1), 1.0)
    assert activity.count == 1


# --- The agent -------------------------------------------------------------------------------------


def progress(agent: Agent, **known: Any) -> AttemptProgress:
    """What the next heartbeat says of the job."""
    effects: list[Any] = agent.say(StatusCame(status=status(started=True, **known)))
    agent.now_s += 1.0
    effects += agent.say(AgentTicked())
    beats = [message for message in sent(Heartbeat, effects) if message.progress]
    agent.hear(Renew(beat=beats[-1].beat))
    return beats[-1].progress[0]


def reading_of(agent: Agent, busy: float) -> None:
    agent.say(IndicatorsRead(readings=(DeviceReading(device_id=GPU.device_id, values={"GRACT": busy}),)))


def test_heartbeats_say_how_long_a_job_on_a_gpu_has_been_idle() -> None:
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_GPU))
    agent.say(Connected(**KEY))
    assert progress(agent, first_step=1, step=1).idle_for is None
    idle = None
    for _ in range(30):
        reading_of(agent, 0.0)
        idle = progress(agent, first_step=1, step=1, activity=0).idle_for
    assert idle is not None and 20.0 <= idle.idle_s <= 30.0
    reading_of(agent, 0.3)
    worked = progress(agent, first_step=1, step=1, activity=0).idle_for
    assert worked is not None and worked.idle_s <= 1.0 and worked.active_ago_s is not None
    stopped = [progress(agent, first_step=1, step=1, activity=0, held_up=True).idle_for for _ in range(20)]
    assert all(each is not None and each.idle_s <= 1.0 for each in stopped)


def test_a_job_that_trains_on_the_cpu_leaves_the_gpu_idle_that_it_holds_and_its_log_says_so_once() -> None:
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_GPU))
    agent.say(Connected(**KEY))
    idle = None
    agent.say(UnusedGpus(attempts=((KEY["job_id"], KEY["attempt"]),)))
    for step in range(1, 30):
        idle = progress(agent, first_step=1, step=step, activity=step).idle_for
    assert idle is not None and idle.idle_s >= 20.0
    words = told(TellNow, agent.say(*[TroubleNoticed(**KEY, what="it computes on no GPU")] * 2))
    assert words == [TellNow(text="it computes on no GPU")]
    agent.say(UnusedGpus(attempts=()))
    idle = progress(agent, first_step=1, step=40, activity=40).idle_for
    assert idle is not None and idle.idle_s <= 1.0


def test_a_word_from_the_controller_goes_to_the_supervisor() -> None:
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_GPU))
    agent.say(Connected(**KEY))
    words = agent.hear(TellJob(**KEY, text="it is idle"))
    assert told(TellNow, words) == [TellNow(text="it is idle")]

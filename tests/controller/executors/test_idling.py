"""Which heartbeats make an event about an idle job, and what its user is told."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents.reducers import OLD_S, IdleFilter, idle_words
from cotenant.controller.wire import AttemptProgress, Heartbeat, IdleReading, TellJob, clients
from tests.controller.building import Desk, report
from tests.controller.station import Station, run_one

RULE = "warn:10m,share:20m,stop:30m"
MINUTE_S = 60.0


class Told:
    """A running job, and what a filter says of it; the engine takes in what it says."""

    def __init__(self, rule: str = RULE, *hosts: str) -> None:
        hosts = hosts or ("a",)
        self.desk = Desk(
            "fifo", *(report(each, 1, address=f"10.0.0.{at}") for at, each in enumerate(hosts, 1))
        )
        self.desk.run(1, gpus=len(hosts), nodes=len(hosts) if len(hosts) > 1 else 0, idle=rule)
        self.filter, self.seen = IdleFilter(), list[ev.IdleSeen]()

    @property
    def job(self) -> Any:
        return self.desk.job(1)

    def hear(self, idle_s: float, ago_s: float | None = None, host: str = "a") -> None:
        reading = IdleReading(idle_s=idle_s, active_ago_s=idle_s if ago_s is None else ago_s)
        event = self.filter.take(self.job, domain.HostId(host), reading, self.desk.now_s)
        if event is not None:
            self.seen.append(event)
            self.desk.tell(event)

    def passes(self, minutes: float, *, idle_from_s: float, hosts: tuple[str, ...] = ("a",)) -> None:
        until_s = self.desk.now_s + minutes * MINUTE_S
        while self.desk.now_s < until_s:
            self.desk.now_s += 5.0
            for host in hosts:
                self.hear(self.desk.now_s - idle_from_s, host=host)

    @property
    def stages(self) -> list[str]:
        return [event.stage for event in self.seen]


def test_each_step_is_told_once_and_all_of_the_same_spell() -> None:
    told = Told()
    began_s = told.desk.now_s
    told.passes(30, idle_from_s=began_s)
    assert told.stages == ["warn", "share", "word"]
    assert {round(event.since_s or 0.0) for event in told.seen} == {round(began_s)}
    told.passes(2, idle_from_s=began_s)
    assert told.stages[3:] == ["stop"] and told.desk.now_s - began_s >= 30 * MINUTE_S + domain.GRACE_S


def test_any_activity_after_the_word_calls_the_stop_off() -> None:
    told = Told("stop:10m")
    told.passes(10.5, idle_from_s=told.desk.now_s)
    assert told.stages == ["word"]
    told.hear(0.0)
    assert told.seen[-1].since_s is None and told.job.attempt.idle is None
    told.passes(9, idle_from_s=told.desk.now_s)
    assert len(told.seen) == 2


def test_a_stop_waits_until_all_of_the_grace_is_known_to_have_been_quiet() -> None:
    told = Told("stop:10m")
    told.passes(10.1, idle_from_s=told.desk.now_s)
    idle_s = 10 * MINUTE_S
    for _ in range(60):  # Nothing is known for five minutes: somebody has stopped it, say.
        told.desk.now_s += 5.0
        told.hear(idle_s + 10.0, ago_s=idle_s + 10.0)
    assert told.stages == ["word"]


def test_an_agent_or_a_controller_that_starts_anew_ends_no_spell() -> None:
    told = Told("warn:10m")
    told.passes(11, idle_from_s=told.desk.now_s)
    told.filter = IdleFilter()
    reading = IdleReading(idle_s=3.0)  # The agent has seen nothing since its start.
    assert told.filter.take(told.job, domain.HostId("a"), reading, told.desk.now_s) is None
    told.hear(11 * MINUTE_S + 20.0)
    assert told.stages == ["warn"]


def test_a_beat_that_was_late_ends_no_spell() -> None:
    told = Told("warn:10m")
    began_s = told.desk.now_s
    told.passes(12, idle_from_s=began_s)
    told.hear(idle_s=told.desk.now_s - began_s - 30.0)
    assert told.stages == ["warn"]


def test_a_gang_is_idle_only_where_all_its_hosts_are() -> None:
    told = Told("warn:10m", "a", "b")
    began_s = told.desk.now_s
    told.passes(15, idle_from_s=began_s)
    assert not told.seen, "the other host has said nothing"
    for _ in range(int(15 * MINUTE_S)):
        told.desk.now_s += 1.0
        told.hear(told.desk.now_s - began_s)
        told.hear(0.0, host="b")
    assert not told.seen, "the other host works"
    told.passes(11, idle_from_s=told.desk.now_s, hosts=("a", "b"))
    assert told.stages == ["warn"]
    told.desk.now_s += OLD_S
    told.hear(0.0, host="b")
    assert told.seen[-1].since_s is None


@pytest.mark.parametrize("rule", ["", "none"])
def test_a_job_without_a_rule_is_never_told_of(rule: str) -> None:
    told = Told(rule)
    told.passes(60, idle_from_s=told.desk.now_s)
    assert not told.seen


def test_a_job_that_loads_or_leaves_is_not_told_of() -> None:
    told = Told("warn:10m")
    told.job.phase = domain.Phase.CHECKPOINTING
    told.hear(3600.0)
    told.job.phase = domain.Phase.RUNNING
    assert not told.seen


def test_that_it_saves_when_it_is_stopped_is_no_work() -> None:
    told = Told("stop:10m")
    told.passes(12, idle_from_s=told.desk.now_s)
    assert told.stages == ["word", "stop"] and told.job.phase is domain.Phase.CHECKPOINTING
    told.hear(0.0)
    assert told.stages == ["word", "stop"] and not idle_words(told.seen[-1], told.desk.now_s)


def test_steps_are_read_in_the_order_of_their_times() -> None:
    assert [step.verb for step in domain.idle_steps("stop:2h,warn,share:90s")] == ["share", "warn", "stop"]
    assert [step.after_s for step in domain.idle_steps("stop:2h,warn,share:90s")] == [90.0, 1800.0, 7200.0]
    assert domain.render(domain.idle_reason("warn", 84.2)).endswith("for 1m24s")
    with pytest.raises(ValueError, match="warn:15s or more"):
        domain.check_idle_rule("stop:1h,warn:5s")
    domain.check_idle_rule("warn:15s,share")
    for wrong in ("nap", "warn:", "warn:0m", "warn,warn:2h", "warn:5m;stop", "warn:" + "9" * 99):
        with pytest.raises(ValueError, match="must be none, or steps such as"):
            domain.idle_steps(wrong)


def test_its_user_is_told_what_follows() -> None:
    told = ev.IdleSeen(job_id=domain.JobId("1"), attempt=domain.AttemptNo(1), since_s=0.0, stage="word")
    assert idle_words(told, 1800.0) == (
        "this job holds its devices idle: no kernel, step or input for 30m00s; it is stopped in 1m00s unless "
        "it does anything before"
    )


def test_the_word_goes_to_the_agent_once_it_is_durable_and_views_show_it(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(resumable=True, idle="warn:1m")
    run_one(station, address, job_id, until="step")
    for number in range(90):
        station.tick(1.0)
        news = AttemptProgress(
            job_id=job_id,
            attempt=domain.AttemptNo(1),
            step=1,
            idle_for=IdleReading(idle_s=float(number), active_ago_s=float(number)),
        )
        station.agent_says(address, Heartbeat(beat=number + 1, session="s1", progress=(news,)))
    (word,) = station.told(address, TellJob)
    assert word.text.startswith("this job holds its devices idle")
    (view,) = station.ask(clients.ListJobs()).jobs
    assert view.idle is not None and view.idle.since_at is not None and view.idle.stage == "warn"
    (node,) = station.ask(clients.ListNodes()).nodes
    assert [device.idle_jobs for device in node.devices if device.jobs] == [(job_id,)]
    (row,) = station.ask(clients.GetUsage()).rows
    assert 0.0 < row.idle_device_s <= row.held_device_s
    report_of = station.ask(clients.GetReport()).report
    assert report_of.idle_device_s == pytest.approx(row.idle_device_s, abs=0.1)


def test_jobs_get_the_rule_of_their_kind(station: Station) -> None:
    station.join("h1")
    job_id = station.submit()
    assert station.core.state.engine.jobs[job_id].spec.idle == "warn:30m"
    assert domain.IdleSpell(since_s=0.0).lends is False

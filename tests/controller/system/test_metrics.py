"""What Prometheus reads: addresses, sheets, and what a controller puts on them."""

from __future__ import annotations

import re
import socket
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.api import ClusterMetrics, LeadershipNews, ServerFacts
from cotenant.controller.api import metrics as cluster
from cotenant.controller.domain import HostState, JobId, Phase
from cotenant.controller.store import DECISION_BOUNDS_S, FollowingStandby, Leadership
from cotenant.controller.system.metrics.address import Address, MetricsProblem, parse
from cotenant.controller.system.metrics.endpoint import open_endpoint
from cotenant.controller.system.metrics.sheet import Histogram, Sheet
from cotenant.controller.system.metrics.table import AGENT, CONTROLLER, INCIDENTS, markdown
from cotenant.controller.wire import clients
from tests.controller.building import Desk, profile
from tests.controller.station import Station, job, run_one

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING = (*CONTROLLER, *AGENT)
prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


# --- Addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9741", Address("127.0.0.1", 9741)),
        ("0.0.0.0:9741", Address("0.0.0.0", 9741)),
        ("head.example:1", Address("head.example", 1)),
        ("[::1]:9741", Address("::1", 9741)),
    ],
)
def test_a_port_alone_is_loopback_and_others_say_so(text: str, address: Address) -> None:
    assert parse(text, "metrics.agent_listen") == address
    assert address.is_loopback == (address.host in ("127.0.0.1", "::1"))


@pytest.mark.parametrize(
    "text", ["", "x", "host:", ":9741", "::1:9741", "1.2.3.4.5:1", "h:99999", "http://h:1", "h:-1"]
)
def test_a_bad_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(MetricsProblem, match=r"metrics\.agent_listen = .*write PORT") as problem:
        parse(text, "metrics.agent_listen")
    assert "\n" not in str(problem.value)


def test_one_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsProblem, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use"):
            open_endpoint(str(port), "metrics.controller_listen")


def test_nothing_is_opened_unless_told() -> None:
    assert open_endpoint("", "metrics.agent_listen") is None


def test_without_the_library_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetricsProblem, match=r"pip install '\.\[metrics\]'"):
        open_endpoint("0", "metrics.agent_listen")


# --- Sheets -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), max_size=50))
def test_a_histogram_counts_each_value_in_every_bucket_above_it(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 5.0))
    for value in values:
        histogram.observe(value)
    counts = dict(histogram.cumulative())
    assert counts == {b: sum(v <= b for v in values) for b in (0.5, 1.0, 5.0, float("inf"))}
    assert histogram.total == pytest.approx(sum(values))


def test_what_is_missing_has_no_series_and_what_is_not_in_the_table_cannot_be_put() -> None:
    sheet = Sheet(CONTROLLER)
    sheet.put("cotenant_journal_size_bytes", None)
    sheet.put("cotenant_journal_size_bytes", float("nan"))
    assert sheet.values == {}
    with pytest.raises(KeyError):
        sheet.put("cotenant_made_up", 1.0)
    with pytest.raises(AssertionError):
        sheet.put("cotenant_jobs", 1.0)


def test_a_sheet_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = Sheet(CONTROLLER)
    sheet._room = 3
    for number in range(5):
        sheet.put("cotenant_jobs", 1.0, str(number))
    assert len(sheet.values["cotenant_jobs"]) == 3 and sheet.left_out == 2


def test_names_follow_the_conventions() -> None:
    assert len({metric.name for metric in EVERYTHING}) == len(EVERYTHING)
    for metric in EVERYTHING:
        assert re.fullmatch(r"cotenant_[a-z_]+", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert not set(metric.labels) & {"le", "quantile", "job", "instance"}, metric
        assert metric.help and not metric.help.endswith("."), metric


def facts(station: Station) -> ServerFacts:
    core = station.core
    return ServerFacts(
        version="1.2.3",
        uptime_s=5.0,
        counters=core.counters,
        decisions=core.decisions,
        undelivered=station.link.undelivered,
        entries=core.journal.last_seq,
        commits=core.journal.commits,
        notices_waiting=0,
        waiting_rows=core.journal.waiting,
        size_bytes=core.journal.size_bytes(),
        stuck=bool(core.stuck),
    )


def scrape(station: Station, metrics: ClusterMetrics) -> Sheet:
    return metrics.sheet(station.core.state.engine, facts(station), station.core.clock.now_s())


def test_a_controllers_sheet_tells_of_jobs_devices_waits_and_decisions(station: Station) -> None:
    metrics = ClusterMetrics(station.core.state.engine)
    address = station.join("h1", devices=1)
    station.ask(clients.Submit(specs=(job("one"),)))
    station.submit(name="two", memory_mib=4_000)
    station.time_s += 40.0
    first = scrape(station, metrics)
    assert first.values["cotenant_jobs_submitted_total"][()] == 2
    assert first.values["cotenant_jobs"][("queued",)] == 1
    assert first.values["cotenant_queue_oldest_seconds"][()] == pytest.approx(40.0)
    assert first.values["cotenant_devices"][("alone",)] == 1
    run_one(station, address, JobId("1"))
    second = scrape(station, metrics)
    assert second.values["cotenant_jobs_ended_total"][("done",)] == 1
    assert second.values["cotenant_jobs_submitted_total"][()] == 2, "nothing is counted twice"
    waits = second.histograms["cotenant_queue_wait_seconds"]
    assert sum(waits.counts) == 2 and waits.total == pytest.approx(40.0)
    decisions = second.histograms["cotenant_decision_seconds"]
    assert sum(decisions.counts) == second.values["cotenant_events_total"][()] > 0
    assert decisions.bounds == DECISION_BOUNDS_S
    assert second.values["cotenant_journal_size_bytes"][()] > 0


def test_what_happened_before_this_start_is_not_counted_again(station: Station) -> None:
    address = station.join("h1", devices=1)
    station.submit(name="one")
    run_one(station, address, JobId("1"))
    sheet = scrape(station, ClusterMetrics(station.core.state.engine))
    assert sheet.values["cotenant_jobs_ended_total"][("done",)] == 0
    assert sheet.values["cotenant_jobs"][("done",)] == 1


def test_what_is_rare_is_there_with_0_so_that_its_first_time_can_be_seen(station: Station) -> None:
    metrics = ClusterMetrics(station.core.state.engine)
    station.join("h1", devices=1)
    sheet = scrape(station, metrics)
    outcomes = sheet.values["cotenant_attempts_ended_total"]
    assert outcomes == {("h1", outcome): 0.0 for outcome in cluster.OUTCOMES}
    assert set(sheet.values["cotenant_incidents_total"]) == {(kind,) for kind in INCIDENTS}
    counted = re.compile(r"""counters\["(\w+)"\] \+=""")
    code = " ".join(path.read_text() for path in (ROOT / "controller").rglob("*.py"))
    assert set(counted.findall(code)) - {
        "events",
        "commands",
        "messages",
        "notices_sent",
        "notices_failed",
    } == set(INCIDENTS)


def test_attempts_are_counted_by_host_and_outcome_and_hosts_have_one_state(station: Station) -> None:
    metrics = ClusterMetrics(station.core.state.engine)
    address = station.join("h1", devices=1)
    station.submit(name="one")
    run_one(station, address, JobId("1"))
    for decided in station.heard:
        metrics.note_event(decided.event)
    sheet = scrape(station, metrics)
    outcomes = sheet.values["cotenant_attempts_ended_total"]
    assert outcomes[("h1", "finished")] == 1 and sum(outcomes.values()) == 1
    states = sheet.values["cotenant_host_state"]
    assert {labels[1] for labels, value in states.items() if value} == {"ok"}
    assert len(states) == len(HostState)


def test_the_longest_wait_is_over_all_attempts() -> None:
    desk = Desk("castor")
    desk.submit(1)
    waiting = desk.job(1)
    waiting.phase, waiting.spent.queued_s, waiting.phase_since_s = Phase.QUEUED, 500.0, 90.0
    assert cluster.waited_s(waiting, 100.0) == pytest.approx(510.0)


def test_what_found_no_room_is_counted_on_the_page_itself() -> None:
    sheet = Sheet(EVERYTHING)
    sheet._room = 1
    for number in range(3):
        sheet.put("cotenant_jobs", 1.0, str(number))
    sheet.end_with("cotenant_agent_series_left_out", "h1")
    assert sheet.values["cotenant_agent_series_left_out"] == {("h1",): 2.0}


def test_a_pair_that_shares_has_its_measured_ratio_and_its_benefit() -> None:
    light = profile(8, (1, 1.0, 300.0), (2, 1.1, 200.0), duty=0.2)
    desk = Desk("castor")
    for number, script in ((1, "x.py"), (2, "y.py")):
        more = {"argv": ("python", script), "profile": light, "batch_size": 8, "expected_s": 1000.0 / number}
        desk.submit(number, **more)
        desk.start(number)
    engine = desk.engine
    assert engine.partners(JobId("1")) == (JobId("2"),)

    def put(name: str) -> dict[tuple[str, ...], float]:
        sheet = Sheet(CONTROLLER)
        cluster._put_pairs(sheet, engine)
        return sheet.values.get(name, {})

    ratio, benefit = "cotenant_pair_interference_ratio", "cotenant_pair_sharing_benefit_ratio"
    assert not put(ratio), "what was not measured is not shown"
    engine.ledger.pairs.observe(desk.job(1), desk.job(2), 1.25)
    assert put(ratio) == {("1", "2"): 1.25} and not put(benefit)
    engine.ledger.pairs.observe(desk.job(2), desk.job(1), 1.6)
    assert put(ratio) == {("1", "2"): 1.25, ("2", "1"): 1.6}
    assert put(benefit) == {("1", "2"): pytest.approx(1 / 1.25 + 1 / 1.6 - 1)}
    desk.end(1)
    assert not put(ratio)


# --- What is promised elsewhere -----------------------------------------------------------------------


def test_the_documentation_has_every_metric() -> None:
    page = (ROOT / "examples" / "deploy" / "prometheus" / "README.md").read_text()
    for metrics in (CONTROLLER, AGENT):
        assert markdown(metrics) in page, (
            "print the tables: python -m cotenant.controller.system.metrics.table"
        )


def test_who_follows_is_on_the_sheet_only_where_controllers_share_a_journal(station: Station) -> None:
    engine, now_s = station.core.state.engine, station.core.clock.now_s()
    names = {
        each.name for each in EVERYTHING if each.name.startswith(("cotenant_leader_", "cotenant_standby"))
    }
    assert len(names) == 5
    alone = scrape(station, ClusterMetrics(engine))
    assert not any(alone.values.get(name) for name in names)
    leader = Leadership(4, "tcp://a:1", "a", 0.0, "the leader had ended", False)
    following = (FollowingStandby("tcp://b:1", "b", 5, 0.5),)
    ago_s = 100.0
    news = LeadershipNews(leader, 60.0, following, 7, time.monotonic() - ago_s)
    told = facts(station)._replace(leadership=news)
    values = ClusterMetrics(engine).sheet(engine, told, now_s).values
    assert (values["cotenant_leader_term"][()], values["cotenant_leader_seconds"][()]) == (4, 60.0)
    assert values["cotenant_standbys"][()] == 1
    assert values["cotenant_standby_behind_entries"][("tcp://b:1",)] == 2
    behind_s = values["cotenant_standby_behind_seconds"][("tcp://b:1",)]
    assert behind_s >= 100.5, "an answer of the database that is old counts as such"

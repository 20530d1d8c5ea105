"""What the pages show, with and without JavaScript: what is in the answer needs none."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec import structs
from starlette.testclient import TestClient

from cotenant.controller.domain import HostState, JobId, Phase
from cotenant.controller.wire import Explain, ListJobs, ListNodes, ReadJobLog, SharingView
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>\u202e\x1b[2J"
ADDRESSES = (
    "/queue",
    "/queue?sort=-waited&q=job&why=8",
    "/devices",
    "/jobs/7",
    "/jobs/8",
    "/jobs/7/change/cancel",
)


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def words(html: str) -> str:
    """What a person reads of it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_has_nothing_that_its_policy_forbids(browser: TestClient, address: str) -> None:
    answer = browser.get(address)
    assert answer.status_code == 200
    for tag, attributes in Elements(answer.text).found:
        assert tag != "style" and not any(name == "style" or name.startswith("on") for name in attributes)
        assert tag != "script" or str(attributes.get("src")).startswith("/static/")
        for name in ("src", "href", "action", "sse-connect", "data-series"):
            assert str(attributes.get(name, "/")).startswith(("/", "#")), (tag, attributes)


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_a_page_names_is_there(browser: TestClient, address: str) -> None:
    for _, attributes in Elements(browser.get(address).text).found:
        for name in ("src", "href"):
            path = attributes.get(name)
            if path is not None and path.startswith("/static/"):
                assert browser.get(path).status_code == 200, path


@pytest.mark.parametrize("address", ADDRESSES)
def test_texts_of_others_are_only_texts(
    browser: TestClient, jobs: Any, controller: StandIn, address: str
) -> None:
    hostile = {"name": HOSTILE, "user": HOSTILE, "reason": HOSTILE}
    jobs.jobs = [replies.job_view("7", **hostile), replies.waiting("8", HOSTILE, name=HOSTILE)]
    jobs.output = f"\x1b]0;title\x07{HOSTILE}\n".encode()
    device = replies.device(note=HOSTILE, type=HOSTILE)
    node = replies.node("laptop", device, tenants={"laptop/cpu0": (JobId("7"),)}, reason=HOSTILE)
    controller.says(ListNodes, replies.nodes(node))
    text = browser.get(address).text
    assert "<script>alert" not in text and "<img" not in text
    assert "\x1b" not in text and "\u202e" not in text


def test_the_queue_says_what_runs_what_waits_and_why(browser: TestClient) -> None:
    text = words(browser.get("/queue").text)
    assert "1 job on devices, 1 waiting" in text
    assert "Why job 8 (train) waits behind job 7" in text, "the first that waits"
    assert "1 free device is enough" in text


def test_the_queue_explains_the_job_that_was_asked_about(browser: TestClient) -> None:
    assert "Why job 7 (train) is running" in words(browser.get("/queue?why=7").text)
    assert browser.get("/queue?why=99").status_code == 404


def test_an_interval_is_shown_where_there_is_one(browser: TestClient, jobs: Any) -> None:
    times = wire.EtaTimes(p10_at=replies.at(2_000.0), p50_at=replies.at(3_000.0), p90_at=replies.at(5_000.0))
    eta = wire.EtaView(
        job_id=JobId("8"),
        name="train",
        phase=Phase.QUEUED,
        start=times,
        finish=times,
        is_calibrated=False,
        basis="8 roll-outs",
        policy="castor",
        hit_rate=None,
        hits_of=0,
        told_at=replies.NOW,
    )
    jobs.jobs = [replies.waiting("8", "behind job 7", eta=eta)]
    text = words(browser.get("/queue").text)
    assert re.search(r"about [\d: -]+ \([\d: -]+ to [\d: -]+\), uncalibrated", text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=waited", ["10", "11", "12"]),
        ("sort=-waited", ["12", "11", "10"]),
        ("sort=name", ["12", "10", "11"]),
        ("sort=nothing", ["10", "11", "12"]),
        ("q=B+JOB", ["10"]),
        ("user=bob", ["11", "12"]),
    ],
)
def test_the_queue_is_sorted_and_filtered(
    browser: TestClient, jobs: Any, query: str, expected: list[str]
) -> None:
    jobs.jobs = [
        replies.waiting("10", "first", name="b job", wait_s=1.0),
        replies.waiting("11", "second", name="c", user="bob", wait_s=2.0),
        replies.waiting("12", "third", name="A", user="bob", wait_s=3.0),
    ]
    text = browser.get(f"/queue?{query}").text
    assert re.findall(r'<tr id="job-(\d+)"', text) == expected


@pytest.fixture
def many(jobs: Any) -> Any:
    waiting = replies.waiting("2", "behind")
    jobs.jobs = [replies.job_view("1")] + [
        structs.replace(waiting, job_id=JobId(str(n)), wait_s=float(n), name=f"job{n % 7}")
        for n in range(2, 10_002)
    ]
    return jobs


@pytest.mark.parametrize(
    ("query", "said", "first"),
    [
        ("", "The first 500 of 10,000.", "2"),
        ("?sort=-waited", "The first 500 of 10,000.", "10001"),
        ("?q=job3", "The first 500 of 1,429.", "3"),
    ],
)
def test_ten_thousand_jobs_are_shown_in_part_and_it_is_said(
    browser: TestClient, many: Any, query: str, said: str, first: str
) -> None:
    text = browser.get(f"/queue{query}").text
    rows = re.findall(r'<tr id="job-(\d+)"', text[text.index("waits-title") :])
    assert len(rows) == 500 and rows[0] == first
    assert said in words(text)


def test_the_whole_list_is_asked_for_only_to_sort_or_filter_it(
    browser: TestClient, many: Any, controller: StandIn
) -> None:
    browser.get("/queue")
    assert [each for each in controller.asked_for(ListJobs) if each.page] == []
    browser.get("/queue?sort=waited")
    assert len([each for each in controller.asked_for(ListJobs) if each.page]) == 10
    browser.get("/queue?sort=-waited")
    assert len([each for each in controller.asked_for(ListJobs) if each.page]) == 10, "it is kept for a while"


# --- One job ----------------------------------------------------------------------------------------


def test_a_job_is_shown_whole(browser: TestClient, jobs: Any) -> None:
    beside = SharingView(
        beside=(JobId("9"),), steps=40.0, predicted_s=12.0, measured_s=13.0, alone_s=10.0,
        predicted_slowdown=1.2, predicted_from="measured", device_s=7.0, won_device_s=3.0,
    )  # fmt: skip
    jobs.jobs = [replies.job_view("7", attempt=2, shared=(beside,), won_device_s=3.0)]
    jobs.attempts = (
        replies.attempt(1, ended_at=replies.at(200.0), outcome="preempted"),
        replies.attempt(2),
    )
    jobs.output = b"epoch 1\rloss <3>\nepoch 2\n"
    text = words(browser.get("/jobs/7").text)
    assert "12.0s 13.0s 10.0s" in text and "1.30 times as long as alone" in text, (
        "the slowdown that was measured"
    )
    assert "preempted" in text and "python train" in text
    assert "attempt 1 loss &lt;3&gt; epoch 2 attempt 2" in text, "one attempt after the other"
    assert "30s place on cpu0 free" in text
    assert "40 1.5 250 ms" in text, "the newest point"


def test_output_of_somebody_else_is_not_shown(browser: TestClient, controller: StandIn) -> None:
    controller.says(ReadJobLog, refusal("not-allowed", "logs are for its owner"))
    assert "logs are for its owner" in browser.get("/jobs/7").text
    assert browser.get("/jobs/7/output.log").status_code == 403


def test_all_output_is_a_file(browser: TestClient, jobs: Any) -> None:
    jobs.jobs = [replies.job_view("7", attempt=2)]
    jobs.output = b"\x1b[1mline\n" * 50_000
    answer = browser.get("/jobs/7/output.log")
    assert answer.content == jobs.output + b"--- attempt 2 ---\n" + jobs.output
    assert (
        answer.headers["content-type"].startswith("text/plain")
        and "attachment" in answer.headers["content-disposition"]
    )


def test_the_plot_gets_what_was_seen(browser: TestClient, served: Any, jobs: Any) -> None:
    for step in (41, 42, 42):
        served.connections.samples.note(float(step), replies.job_view("7", step=step, loss=None))
    found = browser.get("/jobs/7/series.json").json()
    assert (found["step"], found["loss"], found["step_s"]) == ([41, 42], [None, None], [0.25, 0.25])


def test_a_job_that_is_not_there_is_said(browser: TestClient) -> None:
    answer = browser.get("/jobs/99")
    assert (answer.status_code, "no job 99" in answer.text) == (404, True)


# --- Devices ----------------------------------------------------------------------------------------


def test_devices_show_both_tenants_and_what_was_not_measured(
    browser: TestClient, controller: StandIn, jobs: Any
) -> None:
    jobs.jobs = [replies.job_view("7", name="digits"), replies.job_view("8", name="sonnets")]
    device = replies.device("gpu0", jobs_planned_mib=(1024, 2048), kind="cuda", sharing="mps")
    shared = replies.node(
        "laptop",
        device,
        tenants={"laptop/gpu0": (JobId("7"), JobId("8"))},
        planned_mib={"laptop/gpu0": 3072},
        readings={"laptop/gpu0": replies.reading("dcgm", {"SMACT": 0.7}, memory_used_mib=2000.0, age_s=2.0)},
    )
    silent = replies.node(
        "gpu07", replies.device("gpu0", "gpu07", healthy=False, state="suspect", note="suspect: Xid 79"),
        state=HostState.SILENT, heartbeat_age_s=42.0, reason="no heartbeat",
    )  # fmt: skip
    controller.says(ListNodes, replies.nodes(shared, silent))
    html = browser.get("/devices").text
    text = words(html)
    assert "No word from gpu07 (silent)" in text and "suspect: Xid 79" in text
    assert text.index("gpu07 silent") < text.index("laptop ok"), "trouble first"
    assert "planned 3.0G, used 2.0G, of 4.0G" in text
    assert '<rect class="bar-first" x="0.0" width="25.0"' in html
    assert '<rect class="bar-second" x="25.0" width="50.0"' in html
    assert "Indicators: dcgm, 2s ago" in text and "SMACT 70% DRAMA -" in text
    assert "nothing was read yet" in text


# --- The controller is away -------------------------------------------------------------------------


def test_a_silent_controller_is_said_and_what_was_known_stays(
    served: Any, browser: TestClient, tmp_path: Any
) -> None:
    assert browser.get("/queue").status_code == 200
    connect = served.connections._connect
    gone = type(connect())(f"ipc://{tmp_path}/nobody.sock", timeout_s=0.1)
    served.connections.close()
    served.connections._connect = lambda: gone
    served.connections._kept = {
        key: seen._replace(at_s=seen.at_s - 60.0) for key, seen in served.connections._kept.items()
    }
    text = browser.get("/queue").text
    assert "no answer from the controller for 1m" in text and "behind job 7" in text
    assert browser.get("/devices").status_code == 503, "nothing was known of it"
    served.connections._connect = connect
    assert "no answer" not in browser.get("/queue").text, "it goes on"
    assert browser.get("/devices").status_code == 200


def test_a_why_that_is_gone_is_left_out(browser: TestClient, controller: StandIn) -> None:
    controller.says(Explain, refusal("not-found", "no job 8"))
    assert browser.get("/queue").status_code == 200

"""What the pages show, with and without JavaScript: what is in the answer needs none."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec import structs
from starlette.testclient import TestClient

from cotenant.controller.domain import HostState, JobId, Phase, because, mentions, render
from cotenant.controller.web.pages.queue import WAITS
from cotenant.controller.wire import SharingView
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies
from tests.controller.web.conftest import words

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>\u202e\x1b[2J"
ADDRESSES = (
    "/queue",
    "/queue?sort=-waited&q=job&why=8",
    "/devices",
    "/jobs/7",
    "/jobs/8",
    "/ended",
    "/ended?q=job&state=failed",
    "/change?verb=cancel&job=7&job=8",
    "/set?job=8",
)


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


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
    controller.says(wire.ListNodes, replies.nodes(node))
    text = browser.get(address).text
    assert "<script>alert" not in text and "<img" not in text
    assert "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize("address", ["/queue", "/jobs/7"])
def test_a_link_elsewhere_and_the_values_of_a_grid_are_shown_and_escaped(
    browser: TestClient, jobs: Any, address: str
) -> None:
    link = "https://a.example/?x='&y=1"
    jobs.jobs = [replies.job_view("7", link=link, parameters={"lr": HOSTILE, "seed": "0"})]
    text = browser.get(address).text
    (found,) = (each for tag, each in Elements(text).found if str(each.get("href")).startswith("https:"))
    assert (found["href"], found["rel"], found["target"]) == (link, "noopener noreferrer nofollow", "_blank")
    assert "seed=0" in text and "<script>alert" not in text and "<img" not in text


def test_the_queue_says_what_runs_what_waits_and_why(browser: TestClient) -> None:
    text = words(browser.get("/queue").text)
    assert "1 job on devices , 1 waiting , 0 ended" in text
    assert "Why job 8 (train) waits behind job 7" in text, "the first that waits"
    assert "1 free device is enough" in text


def test_the_queue_says_who_leads_and_warns_where_nobody_follows(
    browser: TestClient, controller: StandIn
) -> None:
    assert "Leader" not in words(browser.get("/queue").text), "the journal is a file"
    controller.says(wire.GetControllers, replies.controllers())
    shown = words(browser.get("/queue?q=a").text)
    assert "No standby follows: nobody could take over from the leader tcp://a:1 on a" in shown
    far = replies.standby(endpoint="tcp://c:1", host="c", behind_entries=5_000, behind_s=40.0)
    controller.says(wire.GetControllers, replies.controllers(replies.standby(), far))
    shown = words(browser.get("/queue?q=b").text)
    assert "Leader tcp://a:1 on a (term 3: the leader had ended). Standby tcp://b:1 on b: up to date" in shown
    assert "Standby tcp://c:1 on c: 5" in shown and "40 s behind" in shown


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
        ("", "10,000 jobs in all; 500 rows are here.", "2"),
        ("?sort=-waited", "10,000 jobs in all; 500 rows are here.", "10001"),
        ("?q=job3", "1,429 jobs in all; 500 rows are here.", "3"),
    ],
)
def test_ten_thousand_jobs_are_shown_in_pages(
    browser: TestClient, many: Any, query: str, said: str, first: str
) -> None:
    text = browser.get(f"/queue{query}").text
    assert waiting_rows(text)[0] == first and said in words(text)
    seen, page = [], text
    while following := re.search(r'<a href="([^"]+)">The next page', page):
        seen += waiting_rows(page)
        page = browser.get(html.unescape(following[1])).text
        assert "The first page" in page
    seen += waiting_rows(page)
    assert len(seen) == len(set(seen)) == (10_000 if "q=" not in query else 1_429)


def waiting_rows(text: str) -> list[str]:
    rows = re.findall(r'<tr id="job-(\d+)"', text[text.index('id="waits-title"') :])
    assert len(rows) <= 500
    return rows


def test_a_search_is_one_question_and_only_sorting_asks_for_the_whole_list(
    browser: TestClient, many: Any, controller: StandIn
) -> None:
    browser.get("/queue?q=job3")
    assert [each.page for each in controller.asked_for(wire.ListJobs)] == [500, 500, 1]
    for sort in ("waited", "-waited"):
        browser.get(f"/queue?sort={sort}")
        asked = [
            each for each in controller.asked_for(wire.ListJobs) if each.page > 500 and each.states == WAITS
        ]
        assert len(asked) == 10, "it is kept for a while"


# --- Arrays and ended jobs --------------------------------------------------------------------------


def sweep(jobs: Any) -> None:
    """An array of 1,000: 3 run, 990 wait, 7 have ended."""
    waits = [replies.waiting(f"38_{n}", "behind", name="sweep") for n in range(10, 1_000)]
    runs = [replies.job_view(f"38_{n}", name="sweep") for n in range(7, 10)]
    ended = [replies.done(f"38_{n}", name="sweep") for n in range(7)]
    jobs.jobs = [*ended, *runs, *waits]


def test_a_typed_address_of_an_array_leads_to_its_tasks(browser: TestClient, jobs: Any) -> None:
    sweep(jobs)
    answer = browser.get("/jobs/38", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?array=38")
    assert browser.get("/jobs/39", follow_redirects=False).status_code == 404
    assert browser.get("/jobs/38_7", follow_redirects=False).status_code == 200


def test_an_array_is_one_row_that_opens(browser: TestClient, jobs: Any) -> None:
    sweep(jobs)
    text = browser.get("/queue").text
    assert "sweep 10-999: 990 wait" in words(text)
    assert re.findall(r'<tr id="job-(\w+)"', text) == ["38_7", "38_8", "38_9", "38"]
    opened = browser.get(re.search(r'href="(/queue\?array=38)"', text)[1]).text  # type: ignore[index]
    assert re.findall(r'<tr id="job-(\w+)"', opened)[:4] == ["38_7", "38_8", "38_9", "38_10"]
    assert 'href="/ended?array=38"' in opened and "7 ended match" in words(opened)
    text = words(browser.get("/ended").text)
    assert "sweep 0-6: 7 ended" in text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["13", "12", "11", "10"]),
        ("?state=failed", ["12"]),
        ("?user=bob", ["11"]),
        ("?name=dig", ["13", "10"]),
        ("?q=ada+10", ["10"]),
        ("?before=902.0,12", ["11", "10"]),
        ("?before=nonsense&state=nothing", ["13", "12", "11", "10"]),
    ],
)
def test_ended_jobs_are_listed_the_newest_first_and_filtered(
    browser: TestClient, jobs: Any, query: str, expected: list[str]
) -> None:
    jobs.jobs += [
        replies.done("10", name="digits", ended_at=replies.at(900.0)),
        replies.done("11", user="bob", ended_at=replies.at(901.0)),
        replies.done("12", phase=Phase.FAILED, exit_code=3, ended_at=replies.at(902.0), reason="failed: <x>"),
        replies.done("13", name="digits", ended_at=replies.at(903.0)),
    ]
    shift = replies.WALL_S - replies.NOW_S
    query = query.replace("902.0", repr(902.0 + shift))
    text = browser.get(f"/ended{query}").text
    assert re.findall(r'<tr id="job-(\d+)"', text) == expected
    if "12" in expected:
        assert '<tr id="job-12" class="failed">' in text and "1 failed" in words(text)
    assert "choose-11" not in text, "it is not hers"


def test_ended_jobs_come_in_pages(browser: TestClient, jobs: Any) -> None:
    jobs.jobs = [replies.done(str(n), ended_at=replies.at(float(n))) for n in range(1, 451)]
    page, seen = browser.get("/ended").text, []
    while following := re.search(r'<a href="([^"]+)">The next page', page):
        seen += re.findall(r'<tr id="job-(\d+)"', page)
        page = browser.get(html.unescape(following[1])).text
    seen += re.findall(r'<tr id="job-(\d+)"', page)
    assert seen == [str(n) for n in range(450, 0, -1)]


def test_find_says_how_many_ended_jobs_match_and_leads_to_them(browser: TestClient, jobs: Any) -> None:
    jobs.jobs += [replies.done("10", name="old one"), replies.done("11", name="old two")]
    text = browser.get("/queue?q=old&sort=name").text
    assert "0 jobs on devices , 0 waiting , 2 ended match" in words(text)
    assert "Show the 2 ended jobs" in words(text) and "Nothing that waits matches" in words(text)
    assert 'href="/ended?q=old"' in text


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
    controller.says(wire.ReadJobLog, refusal("not-allowed", "logs are for its owner"))
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


def test_without_a_loss_a_sentence_stands_in_its_place(browser: TestClient, served: Any, jobs: Any) -> None:
    jobs.jobs = [replies.job_view("7", loss=None), replies.waiting("8", "behind job 7", user="bob")]
    text = words(browser.get("/jobs/7").text)
    assert "No loss is known of it: its script has reported none" in text
    assert "Step Step time 40 250 ms" in text, "and no column of dashes"
    assert "so there is no loss and no step time to plot" in words(browser.get("/jobs/8").text)
    jobs.jobs = [replies.job_view("7", step=41)]
    served.forget()
    assert "No loss" not in browser.get("/jobs/7").text


def test_a_job_of_half_a_gpu_asks_for_half_a_gpu(browser: TestClient, jobs: Any) -> None:
    jobs.jobs = [replies.waiting("8", "behind", gpu_fraction=0.5), replies.waiting("9", "behind", gpus=4)]
    assert re.findall(r'<td data-label="GPUs">([^<]*)<', browser.get("/queue").text) == ["0.5", "4"]


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
    controller.says(wire.ListNodes, replies.nodes(shared, silent))
    page = browser.get("/devices").text
    text = words(page)
    assert "No word from gpu07 (silent)" in text and "suspect: Xid 79" in text
    assert text.index("gpu07 silent") < text.index("laptop ok"), "trouble first"
    assert "planned 3.0G, used 2.0G, of 4.0G" in text
    assert '<rect class="bar-first" x="0.0" width="25.0"' in page
    assert '<rect class="bar-second" x="25.0" width="50.0"' in page
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
    text = words(browser.get("/queue").text)
    assert "no answer from the controller for 1m" in text and "behind job 7" in text
    assert browser.get("/devices").status_code == 503, "nothing was known of it"
    served.connections._connect = connect
    assert "no answer" not in browser.get("/queue").text, "it goes on"
    assert browser.get("/devices").status_code == 200


def test_a_why_that_is_gone_is_left_out(browser: TestClient, controller: StandIn) -> None:
    controller.says(wire.Explain, refusal("not-found", "no job 8"))
    assert browser.get("/queue").status_code == 200


# --- Report and usage -------------------------------------------------------------------------------


def test_the_report_says_who_held_devices_idle(browser: TestClient, controller: StandIn) -> None:
    idle = {f"u{number}": 3600.0 * (9 - number) for number in range(7)}
    controller.says(wire.GetReport, replies.report(idle_device_s=sum(idle.values()), idle_by_user=idle))
    said = "held and idle: 42 device-hours of them (u0 9, u1 8, u2 7, u3 6, u4 5, 2 more)"
    assert said in words(browser.get("/report").text)


def test_the_report_is_a_page_with_its_formulas(browser: TestClient, controller: StandIn) -> None:
    controller.says(wire.GetReport, replies.report(forgotten_jobs=3, not_known=("<what> preemption gained",)))
    page = browser.get("/report?since=7d").text
    assert [each.since_s for each in controller.asked_for(wire.GetReport)] == [7 * 86_400.0]
    text = words(page)
    assert "4 jobs trained beside others" in text and "won +0.5" in text and "net +0.49" in text
    assert "preempted for another job 2 0.01 0.02 0.005 0 0.035" in text
    assert "won steps x alone - taken" in text and "&lt;what&gt; preemption gained" in text
    assert "Those that won most and least, 10 of 12" in text and "3 older jobs" in text


def test_usage_is_a_page_with_those_first_who_held_most(browser: TestClient, controller: StandIn) -> None:
    last = replies.usage(replies.use("<b>", 2.5))
    pages = {None: replies.usage(replies.use("ann", 1.0), next="ann"), "ann": last}
    controller.says(wire.GetUsage, lambda asked: pages[asked.after])
    page = browser.get("/usage").text
    assert "&lt;b&gt; 3 4 2.5 0.5 0 0.01 1m30s 0 ann 3 4 1 0.5 0 0.01 1m30s 0" in words(page)
    assert 'href="/ended?user=ann"' in page and 'href="/ended?user=%3Cb%3E"' in page
    asked = [(each.by, each.since_s) for each in controller.asked_for(wire.GetUsage)]
    assert asked == [("user", None), ("user", None)]
    controller.says(
        wire.GetUsage, replies.usage(replies.use("", 1.0, decayed_device_s=36.0), half_life_s=60.0)
    )
    text = words(browser.get("/usage?by=organisation&since=1d").text)
    assert "Organisation Jobs" in text and "Decayed - 3 4 1 0.5 0 0.01 1m30s 0 0.01" in text
    assert browser.get("/usage?by=nothing&since=never").status_code == 200


# --- Links to jobs ----------------------------------------------------------------------------------


class ReadLinks(HTMLParser):
    """The links to jobs, and what is not HTML: a link in a link, a cell outside its row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not re.fullmatch(r"[a-z_:][\w:.-]*", name) or (value and "<" in value):
                self.wrong.append(f"{tag} {name}={value}")
        if tag == "a":
            self.links.append((dict(attrs).get("href") or "", ""))
            if "a" in self._open:
                self.wrong.append("a link in a link")
        if tag == "td" and self._open[-1:] != ["tr"]:
            self.wrong.append("a cell outside its row")
        if tag in ("a", "tr", "td", "table"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "tr", "td", "table") and self._open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["a"]:
            href, text = self.links[-1]
            self.links[-1] = (href, text + data)

    @property
    def to_jobs(self) -> list[tuple[str, str]]:
        return [(href, text) for href, text in self.links if href.startswith("/jobs/")]


EVIL = '"><img src=x onerror=alert(1)> job 2'


def test_the_timelines_table_is_html_and_links_jobs_alone(browser: TestClient, controller: StandIn) -> None:
    attempt = structs.replace(replies.attempt(), co_tenants=(JobId("204"),))
    job = wire.TimelineJob(
        job_id=JobId("203"),
        name=EVIL,
        user="ada",
        phase=Phase.RUNNING,
        submitted_at=replies.NOW,
        ended_at=None,
        attempts=(attempt,),
    )
    at = replies.NOW
    view = wire.TimelineView(begin_at=at, end_at=at, devices=(), jobs=(job,), policies=(), more=0)
    controller.says(wire.GetTimeline, wire.Timelined(request_id=0, timeline=view, now=replies.NOW))
    page = browser.get("/timeline").text
    read = ReadLinks(page[page.index('<div id="attempts"') : page.index("</table>") + len("</table>")])
    assert read.wrong == []
    assert read.to_jobs == [("/jobs/203", "203"), ("/jobs/204", "204")]


def test_seconds_and_names_in_a_reason_are_no_links(
    browser: TestClient, jobs: Any, controller: StandIn
) -> None:
    reason = because("costs-preempt", 306.32, 739.66, 4120.16, "205")
    text = render(reason)
    waiting = replies.job_view(
        "206",
        phase=Phase.QUEUED,
        reason=text,
        reason_code=reason.code,
        reason_jobs=mentions(reason),
        name="job 2",
    )
    explained = replies.explained(waiting, "5s ago: exit code 1: job 7", f"1m ago: {text}")
    spans = tuple((at + 8, end + 8) for at, end in mentions(reason))
    shown = structs.replace(explained.explanation, lines_jobs=((), spans))
    jobs.jobs = [waiting]
    controller.says(wire.Explain, structs.replace(explained, explanation=shown))
    read = ReadLinks(browser.get("/queue").text)
    assert {href for href, _ in read.to_jobs} == {"/jobs/205", "/jobs/206"}
    assert read.wrong == []

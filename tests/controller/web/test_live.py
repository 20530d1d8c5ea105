"""News of an open page: what has changed and nothing else, within bounds."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from cotenant.controller.domain import JobId
from cotenant.controller.web import rendering
from cotenant.controller.web.rendering import split_at_jobs
from cotenant.controller.web.samples import JOBS_MAX, POINTS_MAX, Samples
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies


def table(*rows: tuple[str, str]) -> str:
    return "<table>" + "".join(f'<tr id="{key}"><td>{text}</td></tr>' for key, text in rows) + "</table>"


def test_what_has_not_changed_is_not_sent_again() -> None:
    before: dict[str, rendering.SentPart] = {}
    parts = {"summary": "<p>1</p>", "table": table(("a", "1"), ("b", "1"))}
    assert rendering.news(before, parts) == list(parts.items())
    assert rendering.news(before, parts) == []


def test_a_row_that_has_changed_is_sent_alone() -> None:
    before: dict[str, rendering.SentPart] = {}
    rendering.news(before, {"table": table(("a", "1"), ("b", "1"))})
    row = '<template><tr hx-swap-oob="true" id="b"><td>2</td></tr></template>'
    assert rendering.news(before, {"table": table(("a", "1"), ("b", "2"))}) == [("rows", row)]


@pytest.mark.parametrize(
    "after", [table(("a", "1")), table(("b", "1"), ("a", "1")), table(("a", "1"), ("b", "1"), ("c", "1"))]
)
def test_other_rows_or_another_order_is_sent_whole(after: str) -> None:
    before: dict[str, rendering.SentPart] = {}
    rendering.news(before, {"table": table(("a", "1"), ("b", "1"))})
    assert rendering.news(before, {"table": after}) == [("table", after)]


def test_no_line_of_a_text_is_taken_for_an_event() -> None:
    assert rendering.event("table", "<p>\nevent: x\n\n</p>") == (
        "event: table\ndata: <p>\ndata: event: x\ndata: \ndata: </p>\n\n"
    )


def test_a_stream_says_that_it_is_there_and_ends() -> None:
    async def looks() -> AsyncIterator[dict[str, str]]:
        for number in range(3):
            yield {"part": str(number)}

    async def told(is_ending: bool) -> list[str]:
        return [text async for text in rendering.stream(looks, lambda: is_ending)]

    assert asyncio.run(told(False)) == [": welcome\n\n", *(f"event: part\ndata: {n}\n\n" for n in range(3))]
    assert asyncio.run(told(True)) == [": welcome\n\n", "event: part\ndata: 0\n\n"]


@pytest.mark.parametrize(
    ("address", "events"),
    [
        ("/live/queue", ["trouble", "summary", "why", "actions", "table"]),
        ("/live/devices", ["trouble", "summary", "hosts"]),
        (
            "/live/jobs/7",
            ["trouble", "standing", "why", "numbers", "attempts", "sharing", "output", "decisions"],
        ),
    ],
)
def test_a_page_is_sent_in_the_parts_it_has(
    served: Any, browser: TestClient, address: str, events: list[str]
) -> None:
    served.app.state.is_ending = lambda: True
    answer = browser.get(address)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")] == events
    page = browser.get(address.removeprefix("/live")).text
    for name in events:
        assert f'sse-swap="{name}"' in page
    assert f'sse-connect="{address}?seen=' in page and 'sse-swap="rows"' in page


def test_news_go_on_from_what_the_browser_has(
    served: Any, browser: TestClient, jobs: Any, controller: StandIn
) -> None:
    served.app.state.is_ending = lambda: True
    found = re.search(r'sse-connect="([^"]+)"', browser.get("/queue").text)
    assert found is not None
    address = found[1].replace("&amp;", "&")
    jobs.jobs[1] = replies.waiting("8", "behind job 6")
    served.connections._kept.clear()
    events = browser.get(address).text
    assert events.count("event: ") == 2 and "event: why" in events and "event: rows" in events
    assert 'hx-swap-oob="true" id="job-8"' in events and 'id="job-7"' not in events
    assert "event: table" in browser.get(address).text, "it comes again: nobody knows what it has"


def test_there_are_so_many_streams_and_no_more(served: Any, browser: TestClient) -> None:
    served.app.state.streams = rendering.STREAMS_MAX
    assert browser.get("/live/queue").status_code == 503


def test_a_job_that_is_forgotten_ends_its_news(served: Any, browser: TestClient, controller: StandIn) -> None:
    controller.says(wire.ShowJob, refusal("not-found", "no job 7"))
    assert "no job 7" in browser.get("/live/jobs/7").text
    assert served.app.state.streams == 0


def test_all_who_look_at_once_share_one_look(served: Any, controller: StandIn) -> None:
    first, second = served.browser(), served.browser()
    first.get("/queue")
    asked = len(controller.asked_for(wire.ListJobs))
    second.get("/queue")
    assert len(controller.asked_for(wire.ListJobs)) == asked


def test_nothing_is_kept_of_what_is_not_there(served: Any, browser: TestClient) -> None:
    for number in range(100, 120):
        assert browser.get(f"/jobs/{number}").status_code == 404
    assert not served.connections._kept and not served.connections._locks


# --- Points of a plot -------------------------------------------------------------------------------


def test_points_are_bounded_and_the_first_stays() -> None:
    samples = Samples()
    for step in range(1, 5 * POINTS_MAX):
        samples.note(float(step), replies.job_view("7", step=step))
    kept = samples.samples_of(JobId("7"))
    assert len(kept) <= POINTS_MAX and kept[0].step == 1 and kept[-1].step == 5 * POINTS_MAX - 1
    assert [each.step for each in kept] == sorted(each.step for each in kept)


def test_the_job_that_was_seen_longest_ago_is_forgotten() -> None:
    samples = Samples()
    for number in range(JOBS_MAX + 1):
        samples.note(0.0, replies.job_view(str(number)))
    assert samples.samples_of(JobId("0")) == () and len(samples.samples_of(JobId("1"))) == 1


def test_jobs_are_watched_while_no_page_is_open(served: Any, controller: StandIn) -> None:
    with served.stranger():
        until_s = time.monotonic() + within_s(30.0)
        while not served.connections.samples.samples_of(JobId("7")):
            assert time.monotonic() < until_s, "nobody looks at the job"
            time.sleep(0.01)


def test_all_numbers_of_a_cell_become_links() -> None:
    assert split_at_jobs("7 and 8_1") == [("", "7"), (" and ", "8_1"), ("", "")]

"""A real endpoint, scraped over HTTP: what Prometheus reads, and that it is of now."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cotenant.controller.system.metrics.address import Address
from cotenant.controller.system.metrics.endpoint import Endpoint
from cotenant.controller.system.metrics.sheet import AGE_S_MAX, Histogram, Sheet, Sheets
from cotenant.controller.system.metrics.table import AGENT, CONTROLLER
from tests.building.limits import within_s

EVERYTHING = (*CONTROLLER, *AGENT)
prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture
def served(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[Callable[[], Sheet]], str]]:
    made: list[Endpoint] = []

    def serve(make: Callable[[], Sheet], **more: Any) -> str:
        endpoint = Endpoint(Address("127.0.0.1", 0), "metrics.agent_listen")
        made.append(endpoint)
        endpoint.serve(Sheets(loop, make, **more).newest)
        return f"http://{endpoint.address}"

    yield serve
    for each in made:
        each.close()


def get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=within_s(60)) as answer:
        return str(answer.read().decode())


def a_sheet() -> Sheet:
    sheet = Sheet(EVERYTHING)
    sheet.put("cotenant_jobs", 3, "queued")
    sheet.put("cotenant_events_total", 7)
    histogram = Histogram((0.5, 1.0))
    histogram.observe(0.75)
    sheet.put_histogram("cotenant_decision_seconds", histogram)
    return sheet


def parsed(text: str) -> dict[tuple[str, str], float]:
    families = prometheus_client.parser.text_string_to_metric_families(text)
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_understands_what_it_reads(served: Callable[[Callable[[], Sheet]], str]) -> None:
    import prometheus_client.parser  # noqa: F401

    found = parsed(get(f"{served(a_sheet)}/metrics"))
    assert found[("cotenant_jobs", '{"phase": "queued"}')] == 3
    assert found[("cotenant_events_total", "{}")] == 7
    assert found[("cotenant_decision_seconds_bucket", '{"le": "1.0"}')] == 1
    assert found[("cotenant_decision_seconds_bucket", '{"le": "+Inf"}')] == 1
    assert found[("cotenant_decision_seconds_sum", "{}")] == 0.75
    assert ("process_resident_memory_bytes", "{}") in found


def test_a_scrape_asks_the_loop_and_takes_the_last_sheet_if_it_does_not_answer(
    loop: asyncio.AbstractEventLoop,
    served: Callable[..., str],
) -> None:
    threads: list[str] = []
    made = 0

    def make() -> Sheet:
        nonlocal made
        made += 1
        threads.append(threading.current_thread().name)
        sheet = Sheet(EVERYTHING)
        sheet.put("cotenant_events_total", made)
        return sheet

    url = f"{served(make, fresh_s_max=0.05, clock=itertools.count().__next__)}/metrics"
    get(url)
    settled = threading.Event()
    loop.call_soon_threadsafe(settled.set)
    settled.wait()  # What was asked for is made, whether the first scrape waited for it or not.
    busy, go = threading.Event(), threading.Event()

    def hang() -> None:
        busy.set()
        go.wait()

    before = made
    loop.call_soon_threadsafe(hang)
    busy.wait()
    assert "cotenant_events_total 1.0" in get(url) and made == before == 1, "nobody waits for a busy loop"
    go.set()
    assert set(threads) == {next(iter(threads))}, "only the loop looks at the state"


def test_a_mistake_costs_a_scrape_and_not_the_process(
    served: Callable[[Callable[[], Sheet]], str], caplog: pytest.LogCaptureFixture
) -> None:
    def wrong() -> Sheet:
        raise AssertionError("a mistake of ours")

    with pytest.raises(urllib.error.HTTPError) as problem:
        get(f"{served(wrong)}/metrics")
    assert problem.value.code == 500, "Prometheus is to say that it is down, not that all is well"
    problem.value.close()
    assert "could not be put together" in caplog.text


def test_what_is_old_is_not_told_as_if_it_were_of_now(
    loop: asyncio.AbstractEventLoop,
    served: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, now_s = False, 0.0

    def make() -> Sheet:
        assert not broken, "a mistake of ours"
        return a_sheet()

    url = f"{served(make, clock=lambda: now_s)}/metrics"
    assert "cotenant_events_total 7.0" in get(url)
    broken, now_s = True, AGE_S_MAX
    assert "cotenant_events_total 7.0" in get(url), "the last one is not old yet"
    now_s += 1.0
    with pytest.raises(urllib.error.HTTPError, match="500") as problem:
        get(url)
    problem.value.close()
    broken, now_s = False, now_s + 1.0
    assert "cotenant_events_total 7.0" in get(url)

"""Every page in a real browser: nothing is asked of another host, nothing is complained about, everybody can
use it (axe-core), at the width of a phone as well, light and dark, with the keyboard, and without JavaScript.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import DeviceId, JobId, Phase
from cotenant.controller.web.pages import PAGES
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn
from tests.controller.cli import replies
from tests.controller.web.conftest import JobList, Served

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

AXE = Path(__file__).with_name("axe-core-4.10.3.min.js")
AXE_RUN = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));  // All is painted.
  const alike = [["tbody tr:nth-child(n + 11)"]];
  const found = await axe.run({include: [["html"]], exclude: alike}, {resultTypes: ["violations"]});
  return found.violations.map((each) => `${each.id}: ${each.nodes.map((n) => n.html).join(" ")}`);
}"""
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 720}
QUEUED = 10_000
ADDRESSES = [page.path.format(job_id="7") for page in PAGES]


class Site:
    """A server of pages over a controller that answers what a test says."""

    def __init__(self, folder: Path) -> None:
        self.controller = StandIn(folder / "c.sock")
        self.jobs = JobList(self.controller)
        self.served = Served(self.controller.endpoint)
        self._open = ExitStack()
        host, port = self._open.enter_context(self.served.listening())
        self.address = f"http://{host}:{port}"
        self._say_the_rest()

    def _say_the_rest(self) -> None:
        self.controller.says(wire.GetTimeline, lambda request: timeline(self.jobs.jobs, request))
        self.controller.says(wire.GetPolicy, replies.policy())
        self.controller.says(wire.ListPairs, replies.pairs(replies.pair()))
        action = wire.PreviewedAction(
            job_id=JobId("8"), name="b", what="place on cpu0", reason="1 free device is enough"
        )
        preview = wire.PolicyPreview(policy="fifo", actions=(action,), queued=1)
        self.controller.says(wire.PreviewPolicy, wire.PolicyPreviewed(request_id=0, preview=preview))
        self.controller.says(wire.SetPolicy, wire.Done(request_id=0))
        self.controller.says(wire.GetReport, replies.report())
        self.controller.says(wire.GetUsage, replies.usage(replies.use("ada", 2.5)))
        tenants = {"laptop/cpu0": (JobId("7"),)}
        node = replies.node("laptop", replies.device(), replies.device("cpu1"), tenants=tenants)
        self.controller.says(wire.ListNodes, replies.nodes(node))

    def close(self) -> None:
        self._open.close()
        self.served.connections.close()
        self.controller.close()


def timeline(jobs: list[wire.JobView], request: wire.GetTimeline) -> wire.Timelined:
    shown = jobs[: request.limit]
    view = wire.TimelineView(
        begin_at=replies.at(replies.NOW_S - request.since_s),
        end_at=replies.at(replies.NOW_S - request.until_s),
        devices=tuple(
            wire.TimelineDevice(device_id=DeviceId(f"laptop/{name}"), about="2 cores, 900 MiB")
            for name in ("cpu0", "cpu1")
        ),
        jobs=tuple(
            wire.TimelineJob(
                job_id=job.job_id,
                name=job.name,
                user=job.user,
                phase=job.phase,
                submitted_at=job.submitted_at,
                ended_at=None,
                attempts=(replies.attempt(),) if job.phase is Phase.RUNNING else (),
            )
            for job in shown
        ),
        policies=(wire.PolicySince(policy="castor", from_at=replies.at(-5000.0)),),
        more=len(jobs) - len(shown),
    )
    return wire.Timelined(request_id=0, timeline=view, now=replies.NOW)


def live_jobs() -> list[wire.JobView]:
    return [
        replies.job_view("7", name="<script>alert(1)</script>"),
        replies.job_view("9", name="beside", user="bob"),
        replies.waiting("8", "behind job 7"),
    ]


def many_jobs() -> list[wire.JobView]:
    one = replies.waiting("10", "behind job 7", name="sweep")
    queued = [msgspec.structs.replace(one, job_id=JobId(str(10 + n))) for n in range(QUEUED)]
    return [*live_jobs(), *queued]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One for all tests of this module."""
    with playwright.sync_playwright() as driver:
        # As root Chromium has no sandbox; it shows pages of this test alone.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Window:
    """A browser of its own; keeps what went wrong in it."""

    def __init__(self, chromium: Any, site: Site, **options: Any) -> None:
        self._site = site
        self.context = chromium.new_context(viewport=DESKTOP, reduced_motion="reduce", **options)
        self.context.set_default_timeout(1000 * within_s(15))
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.context.on("request", self._asked)
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{site.address}/enter?token={site.served.access.new_token()}")
        self.page.wait_for_url(f"{site.address}{ADDRESSES[0]}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self._site.address, "data:")):
            self.foreign.append(request.url)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, address: str) -> Any:
        """Not until the network is idle: news keep coming."""
        answer = self.page.goto(self._site.address + address, wait_until="load")
        assert answer.status == 200, answer.text()
        return self.page

    def violations(self) -> list[str]:
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(AXE.read_text())
        found: list[str] = self.page.evaluate(AXE_RUN)
        return found


@pytest.fixture(scope="module")
def windows(chromium: Any, site: Site) -> Iterator[Callable[..., Window]]:
    made: list[Window] = []

    def make(**options: Any) -> Window:
        made.append(Window(chromium, site, **options))
        return made[-1]

    yield make
    for each in made:
        each.context.close()


@pytest.fixture(scope="module")
def window(windows: Callable[..., Window]) -> Window:
    return windows()


@pytest.mark.parametrize("jobs", [live_jobs, many_jobs], ids=["live", "10,000 queued"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_is_for_everybody_and_asks_nobody_else(
    window: Window, site: Site, address: str, jobs: Callable[[], list[wire.JobView]]
) -> None:
    site.jobs.jobs = jobs()
    window.page.emulate_media(color_scheme="light")
    window.page.set_viewport_size(DESKTOP)
    page = window.open(address)
    assert page.locator("h1").count() == 1
    if len(site.jobs.jobs) < QUEUED:  # Ten thousand are looked at once: it takes axe-core seconds.
        assert window.violations() == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    assert window.violations() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "it scrolls sideways"
    assert (window.foreign, window.complaints) == ([], [])


def test_ten_thousand_jobs_are_not_shown_in_silence(window: Window, site: Site) -> None:
    site.jobs.jobs = many_jobs()
    window.open("/queue").get_by_text("10,001 jobs in all; 500 rows are here").first.wait_for()
    # What was kept of the jobs before these may be shown first.
    window.open("/timeline").locator("svg.timeline").get_by_text(
        "more that wait at the same time"
    ).first.wait_for()


def test_news_come_without_a_reload(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    page = window.open("/queue")
    page.evaluate("window.isTheSame = true")
    site.jobs.jobs = [*live_jobs(), replies.waiting("77", "a new reason")]
    page.get_by_text("a new reason").first.wait_for()
    assert page.evaluate("window.isTheSame")


def test_the_keyboard_is_enough(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    page = window.open("/queue")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in PAGES:
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Timeline":
            break
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid", "the focus can be seen"
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("/timeline")


def test_without_javascript_everything_can_be_read(windows: Callable[..., Window], site: Site) -> None:
    site.jobs.jobs = live_jobs()
    plain = windows(java_script_enabled=False)
    for address in ADDRESSES:
        assert plain.open(address).locator("h1").inner_text()
    page = plain.open("/timeline")
    assert page.locator("svg.timeline").count() == 1
    page.get_by_role("link", name="Zoom in").click()
    assert "span=1800" in page.url
    assert (plain.foreign, plain.complaints) == ([], [])


def test_a_timeline_is_zoomed_and_saved(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    page = window.open("/timeline")
    for name in ("Zoom out", "Earlier", "Zoom in", "Later", "Now"):
        page.get_by_role("link", name=name, exact=True).click()
    assert "span=3600" in page.url and "ago" not in page.url
    with page.expect_download() as found:
        page.get_by_role("link", name="the same for Perfetto").click()
    document = msgspec.json.decode(Path(found.value.path()).read_bytes())
    assert {event["name"] for event in document["traceEvents"]} >= {"load", "train", "castor"}


def test_marks_stay_while_news_come_and_one_yes_is_enough(window: Window, site: Site) -> None:
    site.jobs.jobs = [*live_jobs(), replies.waiting("10", "behind job 8"), replies.done("11")]
    page = window.open("/queue")
    page.get_by_label("choose 8").check()
    page.get_by_label("choose 10").check()
    assert page.get_by_label("choose 9").count() == 0, "it is somebody else's"
    site.jobs.jobs = [*live_jobs()[:2], *(replies.waiting(n, "a new reason") for n in ("8", "10", "12"))]
    page.get_by_text("a new reason").first.wait_for()
    page.get_by_label("choose 12").wait_for()
    assert [page.get_by_label(f"choose {n}").is_checked() for n in ("8", "10", "12")] == [True, True, False]
    page.get_by_role("button", name="cancel").click()
    page.get_by_role("heading", name="Cancel 2 jobs?").wait_for()
    assert window.violations() == []
    page.get_by_role("button", name="Yes, cancel them").click()
    page.get_by_text("Asked for: cancel").wait_for()
    assert [each.job_ids for each in site.controller.asked_for(wire.ChangeJobs)] == [("8", "10")]
    assert window.complaints == []


def test_options_are_changed_from_the_page_of_a_job(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    page = window.open("/jobs/8")
    page.get_by_role("link", name="priority and other options").click()
    page.get_by_label("priority").fill("5")
    assert window.violations() == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "it scrolls sideways"
    page.set_viewport_size(DESKTOP)
    page.get_by_role("button", name="Change it").click()
    page.get_by_text("Asked for: set").wait_for()
    assert [each.changes for each in site.controller.asked_for(wire.SetJobs)] == [{"priority": 5}]


@pytest.mark.parametrize(("loss", "plots"), [(1.5, ["loss", "step time, ms"]), (None, ["step time, ms"])])
def test_no_plot_is_empty(
    windows: Callable[..., Window], site: Site, loss: float | None, plots: list[str]
) -> None:
    job_id = "20" if loss else "21"
    site.jobs.jobs = [*live_jobs(), replies.job_view(job_id, loss=loss)]
    for step in (41, 42, 43):
        job = replies.job_view(job_id, step=step, loss=loss)
        site.served.connections.samples.note(float(step), job)
    page = windows().open(f"/jobs/{job_id}")
    page.locator("#plot .u-title", has_text="step time").wait_for()
    assert page.locator("#plot .u-title").all_inner_texts() == plots
    assert page.get_by_text("No loss is known").count() == (0 if loss else 1)


EDGES = """(region) => {
  const [box, svg] = [region, region.querySelector("svg")].map((each) => each.getBoundingClientRect());
  return {oldest: svg.left - box.left, newest: svg.right - box.right, hidden: svg.width - box.width};
}"""


def test_a_phone_reaches_both_ends_of_the_timeline(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    window.page.set_viewport_size(PHONE)
    region = window.open("/timeline").locator("#timeline-picture")
    first = region.evaluate(EDGES)
    assert first["hidden"] > 300 and abs(first["newest"]) <= 1, "the newest is seen at first"
    region.evaluate("(region) => region.scrollBy(-10000, 0)")
    assert abs(region.evaluate(EDGES)["oldest"]) <= 1
    region.evaluate("(region) => region.scrollBy(10000, 0)")
    assert abs(region.evaluate(EDGES)["newest"]) <= 1


def test_a_bar_and_a_row_of_the_timeline_lead_to_the_job(window: Window, site: Site) -> None:
    site.jobs.jobs = live_jobs()
    window.page.set_viewport_size(DESKTOP)
    for link in ("svg.timeline a[href='/jobs/7'] .edge >> nth=1", "td a[href='/jobs/7'] >> nth=0"):
        page = window.open("/timeline")
        page.locator(link).click()
        page.wait_for_url("**/jobs/7")


def test_a_policy_is_set_after_its_consequence_was_seen(window: Window, site: Site) -> None:
    page = window.open("/policy")
    page.get_by_label("Policy").select_option("fifo")
    page.get_by_role("button", name="What would it do?").click()
    page.get_by_text("1 free device is enough").wait_for()
    assert not site.controller.asked_for(wire.SetPolicy), "nothing is changed by a preview"
    assert window.violations() == []
    page.get_by_role("button", name="Yes, set fifo").click()
    page.get_by_text("Asked for: fifo").wait_for()
    assert [asked.name for asked in site.controller.asked_for(wire.SetPolicy)] == ["fifo"]


def test_a_foreign_request_and_a_complaint_would_be_noticed(windows: Callable[..., Window]) -> None:
    """Else the tests above would show nothing."""
    other = windows()
    page = other.open("/policy")
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    until_s = time.monotonic() + within_s(10)
    while not other.complaints and time.monotonic() < until_s:
        page.wait_for_timeout(20)
    assert "Content Security Policy" in other.complaints[0]
    page.evaluate("document.body.innerHTML = '<img src=\"/static/icon.svg\">'")
    assert any(each.startswith("image-alt") for each in other.violations())

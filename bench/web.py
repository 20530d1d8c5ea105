"""The live page with 10,000 queued jobs: first paint in Chromium, and what an answer and an update cost.

    python bench/web.py [--jobs 10000] [--rounds 10] [--write PAGE]

A real controller and agent with one CPU slot; the jobs wait behind one that sleeps. The page's server is a
process of its own, as `cotenant web` starts it. First paint is Chromium's own (`first-contentful-paint`, from
the request on; the browser is warm). An answer is the time to the page's last byte, with a look at the
controller in it, and the processor time of it in the page's server; an update is the time to the first news.
Looks are further apart than the server keeps what it saw, so that each asks the controller.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple

import machine
import psutil
from playwright.sync_api import Browser, sync_playwright

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.setup.web import new_link, page_command
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.system.paths import runtime_dir
from cotenant.controller.wire import clients as wire

PAGES = ("/queue", "/queue?q=sleep", "/ended", "/devices", "/timeline", "/what-if", "/policy", "/jobs/1")
APART_S = 5.5
"""Longer than any page keeps what it saw."""
PAINT = """() => new Promise((done) => {
  const isIt = (entry) => entry.name === 'first-contentful-paint';
  const seen = (list) => list.filter(isIt).map((entry) => done(entry.startTime));
  new PerformanceObserver((list) => seen(list.getEntries())).observe({type: 'paint', buffered: true});
})"""


class Measured(NamedTuple):
    page: str
    kib: float
    paint_ms: list[float]
    answer_ms: list[float]
    cpu_ms: list[float]
    update_ms: list[float]


class Site:
    """The page's server, and a session of it."""

    def __init__(self, endpoint: str) -> None:
        self.process = subprocess.Popen(page_command(endpoint), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        next(line for line in self.process.stdout if line.startswith("page ready"))
        self._open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._open.open(self.link()).read()

    def link(self) -> str:
        found = new_link(runtime_dir(), None, None)
        self.base = found.partition("/enter")[0]
        return found

    def get(self, path: str) -> tuple[bytes, float]:
        began_s = time.perf_counter()
        with self._open.open(self.base + path) as answer:
            body: bytes = answer.read()
        return body, time.perf_counter() - began_s

    def first_news(self, path: str) -> float:
        """All parts of a page, as its news begin."""
        began_s = time.perf_counter()
        with self._open.open(f"{self.base}/live{path}") as answer:
            while not answer.readline().startswith(b"data:"):
                pass
        return time.perf_counter() - began_s

    def cpu_s(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)


@contextmanager
def site(endpoint: str) -> Iterator[Site]:
    found = Site(endpoint)
    try:
        yield found
    finally:
        found.process.terminate()
        found.process.wait()


def measured(found: Site, browser: Browser, rounds: int) -> list[Measured]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(found.link())
    page.wait_for_url(f"{found.base}/queue")
    results = []
    for path in PAGES:
        one = Measured(path, 0.0, [], [], [], [])
        for _ in range(rounds):
            time.sleep(APART_S)
            page.goto(found.base + path)
            one.paint_ms.append(page.evaluate(PAINT))
            page.goto("about:blank")
            time.sleep(APART_S)
            cpu_s = found.cpu_s()
            body, took_s = found.get(path)
            one.cpu_ms.append(1e3 * (found.cpu_s() - cpu_s))
            one.answer_ms.append(1e3 * took_s)
            time.sleep(APART_S)
            one.update_ms.append(1e3 * found.first_news(path))
            one = one._replace(kib=len(body) / 1024)
        results.append(one)
        print(row(results[-1]), flush=True)
    context.close()
    return results


def row(one: Measured) -> str:
    cells = [f"`{one.page}`", f"{one.kib:.0f}"]
    for values in (one.paint_ms, one.answer_ms, one.cpu_ms, one.update_ms):
        cells.append(f"{statistics.median(values):.0f} ({max(values):.0f})")
    return f"| {' | '.join(cells)} |"


def answer(results: Sequence[Measured]) -> str:
    paints_s = [statistics.median(one.paint_ms) / 1e3 for one in results]
    news_ms = [statistics.median(one.update_ms) for one in results]
    return (
        f"The page paints first after {min(paints_s):.2f} to {max(paints_s):.2f} s (medians), and news come "
        f"after\n{min(news_ms):.0f} to {max(news_ms):.0f} ms; the aims are 1 s and 0.2 s."
    )


ABOUT = """First paint is Chromium's own. *Answer* is the time to the last
byte, *processor* what the page's server computed for it, and *update* the time to the first news."""


def specs(count: int) -> tuple[JobSpec, ...]:
    launch = Launch(argv=("sleep", "100000"))
    return tuple(
        JobSpec(job_id=JobId(f"new-{n}"), name=f"sweep-{n}", launch=launch, share="never")
        for n in range(count)
    )


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--jobs", type=int, default=10_000)
    asked.add_argument("--rounds", type=int, default=10)
    asked.add_argument("--write", type=Path)
    words = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.environ["XDG_RUNTIME_DIR"] = folder
        with PrivateCluster(Path(folder), "cpu:1") as cluster, Client(cluster.endpoint) as client:
            for first in range(0, words.jobs, 1_000):
                client.ask(wire.Submit(specs=specs(min(1_000, words.jobs - first))), timeout_s=60.0)
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            with site(cluster.endpoint) as found:
                results = measured(found, browser, words.rounds)
            browser.close()
            everyone = tuple(JobId(str(n)) for n in range(1, words.jobs + 1))
            client.ask(wire.ChangeJobs(verb="cancel", job_ids=everyone), timeout_s=60.0)
            client.ask(wire.WaitJobs(job_ids=everyone[:1]))
    table = "\n".join(
        [
            "| page | KiB | first paint, ms | answer, ms | processor of it, ms | update, ms |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *map(row, results),
        ]
    )
    command = f"Command: `python bench/web.py --rounds {words.rounds}`"
    about = f"{words.jobs:,} queued jobs; medians of {words.rounds}, in brackets the worst. {ABOUT}"
    title = f"# The page with {words.jobs:,} queued jobs"
    parts = (title, answer(results), about, table, f"{machine.sentences()}\n{command}")
    page = "\n\n".join(parts) + "\n"
    print(page)
    if words.write is not None:
        words.write.write_text(page)


if __name__ == "__main__":
    main()

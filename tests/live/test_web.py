"""The live page with a real controller, agent and job: its news come, and nobody's end is its end."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from tests.building.limits import within_s

COTENANT = (sys.executable, "-m", "cotenant.controller.cli.main")
WITHIN_S = within_s(60.0)
PAGE = "cotenant.controller.web"
JOB = "import time; print('one <line>', flush=True); time.sleep(600)"


class Browser:
    """Keeps its cookie, and reads news."""

    def __init__(self, link: str) -> None:
        found = re.fullmatch(r"http://(127\.[\d.]+):(\d+)(/enter\?token=\S+)", link)
        assert found is not None, link
        self._address = found[1], int(found[2])
        self._cookie = ""
        with self._asked(found[3]) as answer:
            self._cookie = str(answer.getheader("set-cookie")).partition(";")[0]

    @contextmanager
    def _asked(self, path: str) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection(*self._address, timeout=WITHIN_S)) as connection:
            connection.request("GET", path, headers={"cookie": self._cookie})
            with connection.getresponse() as answer:
                yield answer

    def text(self, path: str) -> str:
        with self._asked(path) as answer:
            return answer.read().decode()

    def until(self, path: str, wanted: str) -> None:
        """Reads news until this is among them."""
        with self._asked(f"/live{path}") as news:
            assert news.status == 200
            assert any(wanted in line.decode() for line in iter(news.readline, b"")), wanted


@contextmanager
def begun(environ: dict[str, str], home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COTENANT, *words],
        stdout=subprocess.PIPE,
        env=environ,
        cwd=home,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in background jobs
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)


def link_to(process: subprocess.Popen[str], environ: dict[str, str], home: Path) -> str:
    """Made on request, once the page is ready: what is printed into a pipe holds none."""
    assert process.stdout is not None
    ready = next(line for line in process.stdout if line.startswith("page ready"))
    assert "token" not in ready + next(process.stdout)
    return ask(environ, home, "web", "--link").strip()


def ask(environ: dict[str, str], home: Path, *words: str) -> str:
    done = subprocess.run(
        [*COTENANT, *words],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=environ,
        cwd=home,
        check=True,
    )
    return done.stdout


def pages_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [each for each in psutil.Process(process.pid).children() if PAGE in each.cmdline()]


def test_the_page_follows_a_job_and_may_crash_alone(environ: dict[str, str], home: Path) -> None:
    with begun(environ, home, "up", "--web") as up:
        browser = Browser(link_to(up, environ, home))
        assert "Nothing runs." in browser.text("/queue")
        job = ask(environ, home, "submit", "--name", "<watched>", "--", sys.executable, "-c", JOB).split()[-1]
        browser.until("/queue", "&lt;watched&gt;")
        browser.until(f"/jobs/{job}", "one &lt;line&gt;")
        browser.until("/devices", f"/jobs/{job}")
        (page,) = pages_of(up)
        page.kill()
        page.wait(WITHIN_S)
        assert "<watched>" in ask(environ, home, "queue"), "the controller goes on"
        ask(environ, home, "cancel", job)
        ask(environ, home, "down", "--yes")
        assert up.wait(WITHIN_S) == 0


def test_the_page_goes_on_when_the_controller_is_there_again(environ: dict[str, str], home: Path) -> None:
    with begun(environ, home, "up") as up:
        assert up.stdout is not None
        assert any("agent ready" in line for line in up.stdout)
        with begun(environ, home, "web") as web:
            browser = Browser(link_to(web, environ, home))
            assert "Nothing waits." in browser.text("/queue")
            ask(environ, home, "down", "--yes")
            assert up.wait(WITHIN_S) == 0
            browser.until("/queue", "no answer from the controller")
            with begun(environ, home, "up") as again:
                assert again.stdout is not None
                assert any("agent ready" in line for line in again.stdout)
                browser.until("/queue", "1 device on 1 host")
    assert web.returncode == 0

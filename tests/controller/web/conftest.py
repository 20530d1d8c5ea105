"""A page's server without its socket, over a controller that a test answers for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cotenant.controller.client import Client
from cotenant.controller.web.access import Access
from cotenant.controller.web.app import application
from cotenant.controller.web.connections import Connections
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn
from tests.controller.cli import replies

COOKIE = "cotenant-test"
HERE = "http://127.0.0.1"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(tmp_path / "c.sock")
    stand_in.says(wire.GetStatus, replies.status())
    stand_in.says(wire.ListJobs, replies.jobs(replies.job_view(), replies.waiting("8", "behind job 7")))
    yield stand_in
    stand_in.close()


class Served:
    """The application, its links, and browsers of it."""

    def __init__(self, endpoint: str) -> None:
        self.links: list[str] = []
        self.connections = Connections(lambda: Client(endpoint, timeout_s=2.0))
        self.access = Access(self.links.append)
        self.app: Any = application(self.connections, self.access, COOKIE)

    def stranger(self) -> TestClient:
        """A browser that has not opened the link."""
        return TestClient(self.app, base_url=HERE)

    def browser(self) -> TestClient:
        browser = self.stranger()
        assert browser.get("/enter", params={"token": self.links[-1]}).status_code == 200
        return browser

    def form_token(self, browser: TestClient) -> str:
        return self.access.form_token(browser.cookies[COOKIE])


@pytest.fixture
def served(controller: StandIn) -> Iterator[Served]:
    found = Served(controller.endpoint)
    yield found
    found.connections.close()


def text_of(html: str) -> str:
    """What a person reads of it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


@pytest.fixture
def browser(served: Served) -> TestClient:
    return served.browser()

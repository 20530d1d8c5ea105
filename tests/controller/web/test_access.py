"""Who may see the page, and what a browser may do with it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


def test_a_link_opens_one_browser(served: Any) -> None:
    first, second = served.stranger(), served.stranger()
    link = served.links[-1]
    assert first.get("/enter", params={"token": link}).status_code == 200
    assert second.get("/enter", params={"token": link}).status_code == 401
    assert first.get("/queue").status_code == 200
    assert second.get("/queue").status_code == 401
    assert second.get("/enter", params={"token": served.links[-1]}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "0" * 43])
def test_a_wrong_link_opens_nothing(served: Any, token: str) -> None:
    stranger = served.stranger()
    assert stranger.get("/enter", params={"token": token}).status_code == 401
    assert not stranger.cookies


def test_the_cookie_is_for_this_page_alone(served: Any) -> None:
    answer = served.stranger().get("/enter", params={"token": served.links[-1]})
    said = answer.headers["set-cookie"].lower()
    assert "httponly" in said and "samesite=strict" in said and "path=/" in said
    assert served.links[0] not in answer.text


@pytest.mark.parametrize("path", ["/", "/queue", "/live/queue", "/nowhere"])
def test_nothing_is_told_without_a_session(served: Any, path: str) -> None:
    assert served.stranger().get(path, follow_redirects=False).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", ""])
def test_another_name_is_refused(browser: TestClient, host: str) -> None:
    assert browser.get("/queue", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:7080", "localhost:1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered(browser: TestClient, host: str) -> None:
    assert browser.get("/queue", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/queue", "/nowhere", "/static/site.css", "/enter"])
def test_no_answer_lets_a_browser_go_elsewhere(browser: TestClient, path: str) -> None:
    policy = browser.get(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy


def test_our_own_forms_come_with_their_origin(browser: TestClient) -> None:
    """A browser that may send no referrer sends `Origin: null` with a form, which is refused."""
    assert browser.get("/jobs/7/change/cancel").headers["referrer-policy"] == "same-origin"


def test_the_oldest_session_ends_when_there_are_too_many(served: Any) -> None:
    first = served.browser()
    for _ in range(16):
        served.browser()
    assert first.get("/queue").status_code == 401

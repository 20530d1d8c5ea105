"""Who may see the page, and what a browser may do with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from cotenant.controller.web.access import (
    AHEAD,
    LINKS_MAX,
    OUR_NAMES,
    REQUESTS_MAX,
    Access,
    RequestCheck,
)
from tests.controller.web.conftest import COOKIE


def test_a_link_opens_one_browser(served: Any) -> None:
    first, second = served.stranger(), served.stranger()
    link = served.access.new_token()
    assert first.get("/enter", params={"token": link}).status_code == 200
    assert second.get("/enter", params={"token": link}).status_code == 401
    assert first.get("/queue").status_code == 200
    assert second.get("/queue").status_code == 401
    assert second.get("/enter", params={"token": served.access.new_token()}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "0" * 43])
def test_a_wrong_link_opens_nothing(served: Any, token: str) -> None:
    stranger = served.stranger()
    assert stranger.get("/enter", params={"token": token}).status_code == 401
    assert not stranger.cookies


def test_the_cookie_is_for_this_page_alone(served: Any) -> None:
    token = served.access.new_token()
    answer = served.stranger().get("/enter", params={"token": token})
    said = answer.headers["set-cookie"].lower()
    assert "httponly" in said and "samesite=strict" in said and "path=/" in said
    assert token not in answer.text


@pytest.mark.parametrize("path", ["/", "/queue", "/live/queue", "/nowhere", "/static/site.css", "/enter/x"])
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


def test_a_link_lasts_five_minutes(served: Any) -> None:
    early, late = served.access.new_token(), served.access.new_token()
    served.time_s += 300.0
    assert served.stranger().get("/enter", params={"token": early}).status_code == 200
    served.time_s += 0.1
    refused = served.stranger().get("/enter", params={"token": late})
    assert refused.status_code == 401 and "cotenant web --link" in refused.text


def test_the_oldest_of_many_unopened_links_is_void(served: Any) -> None:
    tokens = [served.access.new_token() for _ in range(LINKS_MAX + 1)]
    answers = [served.access.enter(token) for token in tokens]
    assert answers[0] is None and all(answers[1:])


def test_only_following_a_link_uses_it_up(served: Any) -> None:
    stranger, token = served.stranger(), {"token": served.access.new_token()}
    assert stranger.head("/enter", params=token).status_code == 503
    for name in AHEAD:
        answer = stranger.get("/enter", params=token, headers={name: "prefetch;prerender"})
        assert answer.status_code == 503 and not stranger.cookies
    assert stranger.get("/enter", params=token).status_code == 200


@pytest.mark.parametrize(
    "beside",
    [
        'foo={"a":1}; {}',
        "{}; foo={",
        "x; =; ;;{}",
        "a=b=c;{}",
        f"{COOKIE}=of another program; {{}}",
        "é=ü; {}",
    ],
)
def test_cookies_of_other_programs_lock_nobody_out(served: Any, beside: str) -> None:
    """A browser sends the cookies of all ports of an address."""
    cookie = f"{COOKIE}={served.browser().cookies[COOKIE]}"
    headers = {"cookie": beside.replace("{}", cookie).encode()}
    assert served.stranger().get("/queue", headers=headers).status_code == 200


def test_requests_without_a_session_do_not_count_against_the_limit() -> None:
    access = Access()
    token = access.enter(access.new_token())
    mine = (b"cookie", f"{COOKIE}={token}".encode())

    async def codes() -> tuple[list[int], list[int]]:
        goes_on, done = asyncio.Event(), asyncio.Semaphore(0)

        async def receive_nothing() -> dict[str, Any]:
            return {}

        async def slow_page(scope: Any, receive: Any, send: Any) -> None:
            done.release()
            await goes_on.wait()
            await PlainTextResponse("")(scope, receive, send)

        check = RequestCheck(slow_page, access, COOKIE, OUR_NAMES)

        async def code(path: str, *headers: tuple[bytes, bytes]) -> int:
            found: list[int] = []

            async def send(message: Any) -> None:
                found.append(message.get("status", 0))

            host = (b"host", b"127.0.0.1")
            scope = {"type": "http", "method": "GET", "path": path, "headers": [host, *headers]}
            await check(scope, receive_nothing, send)
            return found[0]

        strangers = [asyncio.create_task(code("/enter")) for _ in range(2 * REQUESTS_MAX)]
        sessions = [asyncio.create_task(code("/queue", mine)) for _ in range(REQUESTS_MAX)]
        for _ in [*strangers, *sessions]:
            await done.acquire()
        one_more = await code("/queue", mine)
        goes_on.set()
        return [one_more], await asyncio.gather(*strangers, *sessions)

    refused, answered = asyncio.run(codes())
    assert refused == [503] and set(answered) == {200}


def test_the_oldest_session_ends_when_there_are_too_many(served: Any) -> None:
    first = served.browser()
    for _ in range(16):
        served.browser()
    assert first.get("/queue").status_code == 401

"""What can be changed from a page: only by a form of this session, and as far as the controller agrees."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from cotenant.controller.client import Client
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.web.pages import PAGES
from cotenant.controller.web.pages.job import ChangeVerb, consequence, doubt
from cotenant.controller.wire import ChangeJobs
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies

CANCEL = "/jobs/7/change/cancel"


def post(served: Any, browser: TestClient, path: str = CANCEL, **more: Any) -> Any:
    fields = {"form_token": served.form_token(browser), **more.pop("fields", {})}
    return browser.post(path, data=fields, follow_redirects=False, **more)


def test_a_form_of_ours_asks_the_controller(served: Any, browser: TestClient, controller: StandIn) -> None:
    page = browser.get(CANCEL).text
    assert served.form_token(browser) in page and "Its checkpoint of step 30 stays for a while" in page
    assert controller.asked_for(ChangeJobs) == [], "a look changes nothing"
    answer = post(served, browser)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/7?asked=cancel")
    assert controller.asked_for(ChangeJobs) == [ChangeJobs(verb="cancel", job_ids=(JobId("7"),))]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
    ],
)
def test_a_form_from_elsewhere_is_refused(
    served: Any, browser: TestClient, controller: StandIn, headers: dict[str, str]
) -> None:
    assert post(served, browser, headers=headers).status_code in (403, 413)
    assert controller.asked_for(ChangeJobs) == []


@pytest.mark.parametrize("token", ["", "x", "é"])
def test_a_form_without_its_token_is_refused(
    served: Any, browser: TestClient, controller: StandIn, token: str
) -> None:
    assert post(served, browser, fields={"form_token": token}).status_code == 403
    assert controller.asked_for(ChangeJobs) == []


def test_a_form_of_another_session_is_refused(served: Any, controller: StandIn) -> None:
    mine, other = served.browser(), served.browser()
    assert post(served, mine, fields={"form_token": served.form_token(other)}).status_code == 403
    assert controller.asked_for(ChangeJobs) == []


def test_a_form_that_is_too_large_is_refused(served: Any, browser: TestClient) -> None:
    assert post(served, browser, fields={"more": "x" * 70_000}).status_code == 413
    assert post(served, browser, fields={f"f{n}": "x" for n in range(200)}).status_code == 413


def test_without_a_session_nothing_is_changed(served: Any, controller: StandIn) -> None:
    stranger = served.stranger()
    token = served.access.form_token("")
    assert stranger.post(CANCEL, data={"form_token": token}).status_code == 401
    assert controller.asked_for(ChangeJobs) == []


def test_what_the_controller_refuses_is_said(served: Any, browser: TestClient, controller: StandIn) -> None:
    """Roles are its business: the page has no other rights than its user."""
    controller.says(ChangeJobs, refusal("not-allowed", "you cannot cancel job 7: it belongs to <bob>"))
    answer = post(served, browser)
    assert answer.status_code == 403
    assert "it belongs to &lt;bob&gt;" in answer.text


def test_an_unknown_verb_does_nothing(served: Any, browser: TestClient, controller: StandIn) -> None:
    assert post(served, browser, "/jobs/7/change/destroy").status_code == 303
    assert controller.asked_for(ChangeJobs) == []


def test_every_route_that_changes_something_asks_for_the_token(served: Any, browser: TestClient) -> None:
    routes = [each for page in PAGES for each in page.routes if isinstance(each, Route)]
    changing = [route for route in routes if "POST" in (route.methods or ())]
    assert changing
    for route in changing:
        path = route.path.format(job_id="7", verb="cancel")
        assert browser.post(path, data={"verb": "x"}).status_code == 403, route.path


# --- What is said before ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "more", "said"),
    [
        (
            "checkpoint",
            {},
            "It saves its state at about step 40 (the last save is of step 30). It keeps laptop/cpu0",
        ),
        ("preempt", {"co_tenants": ("9",)}, "and queues again. Job 9 beside it keeps the devices."),
        ("preempt", {"expected_load_s": 30.0}, "when it gets devices again, loading should take 30s."),
        ("requeue", {"resumable": False}, "It cannot resume: it begins anew. It leaves laptop/cpu0"),
        (
            "requeue",
            {"phase": Phase.FAILED, "durable_step": 0},
            "It queues again under its number, as attempt 2, from its beginning.",
        ),
        ("cancel", {"durable_step": 0}, "Its 40 steps (1m00s) are lost."),
        ("hold", {"phase": Phase.QUEUED}, "It is not started until somebody releases it."),
    ],
)
def test_what_a_change_would_do(verb: ChangeVerb, more: dict[str, Any], said: str) -> None:
    assert said in consequence(verb, replies.job_view(**more))


def test_what_cannot_be_done_is_doubted() -> None:
    assert "cannot resume" in doubt("preempt", replies.job_view(resumable=False))
    assert "means nothing" in doubt("hold", replies.job_view())
    assert doubt("preempt", replies.job_view()) == ""


def test_a_change_while_the_controller_is_away_says_so(
    served: Any, browser: TestClient, tmp_path: Any
) -> None:
    served.connections.close()
    served.connections._connect = lambda: Client(f"ipc://{tmp_path}/nobody.sock", timeout_s=0.1)
    answer = post(served, browser)
    assert answer.status_code == 503 and "no controller" in answer.text

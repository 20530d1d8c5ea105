"""What can be changed from a page: only by a form of this session, and as far as the controller agrees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ChangeVerb, JobId, Phase
from cotenant.controller.web.pages import PAGES
from cotenant.controller.web.pages.changing import consequence, doubt
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies
from tests.controller.web.conftest import JobList, words

CANCEL = "/change?verb=cancel&job=7"


def post(served: Any, browser: TestClient, path: str = "/change", **more: Any) -> Any:
    asked = {"verb": "cancel", "jobs": "7", "of": "7"}
    fields = {"form_token": served.form_token(browser), **asked, **more.pop("fields", {})}
    return browser.post(path, data=fields, follow_redirects=False, **more)


def test_a_form_of_ours_asks_the_controller(served: Any, browser: TestClient, controller: StandIn) -> None:
    page = browser.get(CANCEL).text
    assert served.form_token(browser) in page and "Its checkpoint of step 30 stays for a while" in page
    assert controller.asked_for(wire.ChangeJobs) == [], "a look changes nothing"
    answer = post(served, browser)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/7?asked=cancel")
    assert controller.asked_for(wire.ChangeJobs) == [wire.ChangeJobs(verb="cancel", job_ids=(JobId("7"),))]


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
    assert controller.asked_for(wire.ChangeJobs) == []


@pytest.mark.parametrize("token", ["", "x", "é"])
def test_a_form_without_its_token_is_refused(
    served: Any, browser: TestClient, controller: StandIn, token: str
) -> None:
    assert post(served, browser, fields={"form_token": token}).status_code == 403
    assert controller.asked_for(wire.ChangeJobs) == []


def test_a_form_of_another_session_is_refused(served: Any, controller: StandIn) -> None:
    mine, other = served.browser(), served.browser()
    assert post(served, mine, fields={"form_token": served.form_token(other)}).status_code == 403
    assert controller.asked_for(wire.ChangeJobs) == []


def test_a_form_that_is_too_large_is_refused(served: Any, browser: TestClient) -> None:
    assert post(served, browser, fields={"more": "x" * 70_000}).status_code == 413
    assert post(served, browser, fields={f"f{n}": "x" for n in range(200)}).status_code == 413


def test_without_a_session_nothing_is_changed(served: Any, controller: StandIn) -> None:
    stranger = served.stranger()
    token = served.access.form_token("")
    assert stranger.post("/change", data={"form_token": token}).status_code == 401
    assert controller.asked_for(wire.ChangeJobs) == []


def test_what_the_controller_refuses_is_said(served: Any, browser: TestClient, controller: StandIn) -> None:
    """Roles are its business: the page has no other rights than its user."""
    controller.says(wire.ChangeJobs, refusal("not-allowed", "you cannot cancel job 7: it belongs to <bob>"))
    answer = post(served, browser)
    assert answer.status_code == 403
    assert "it belongs to &lt;bob&gt;" in answer.text


def test_an_unknown_verb_does_nothing(served: Any, browser: TestClient, controller: StandIn) -> None:
    assert post(served, browser, fields={"verb": "destroy"}).status_code == 303
    assert controller.asked_for(wire.ChangeJobs) == []


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


# --- Several at once, and options -------------------------------------------------------------------


def test_several_jobs_are_changed_after_one_question(
    served: Any, browser: TestClient, controller: StandIn, jobs: JobList
) -> None:
    jobs.jobs += [replies.waiting("38_0", "behind"), replies.waiting("38_1", "behind"), replies.done("9")]
    page = words(browser.get("/change?verb=cancel&job=8&job=38&job=9").text)
    assert "Cancel 3 jobs?" in page and "Not 1 other job: Job 9 is done now" in page
    assert controller.asked_for(wire.ChangeJobs) == [], "a look changes nothing"
    form = fields(browser.get("/change?verb=cancel&job=8&job=38&job=9").text)
    assert form["jobs"] == "8 38", "an array stays its number, and what cannot be cancelled is left out"
    answer = post(served, browser, fields=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?asked=cancel")
    assert controller.asked_for(wire.ChangeJobs) == [
        wire.ChangeJobs(verb="cancel", job_ids=(JobId("8"), JobId("38")))
    ]
    assert "Asked for: cancel" in browser.get("/queue?asked=cancel").text
    assert "Asked for" not in browser.get("/queue?asked=<b>").text


def test_where_nothing_can_be_done_there_is_no_button(browser: TestClient) -> None:
    page = browser.get("/change?verb=release&job=7&job=8").text
    assert "Job 7 is running now" in page and '<button type="submit">' not in page


def test_options_are_changed_as_set_reads_them(
    served: Any, browser: TestClient, controller: StandIn, jobs: JobList
) -> None:
    page = words(browser.get("/set?job=8").text)
    assert page.index("priority 0") < page.index("name train"), "priority first"
    assert "time 1m00s" in page and "mem 2.0G" in page
    given = {"jobs": "8", "of": "8", "priority": " 5 ", "time": "2h", "mem": "-", "name": ""}
    answer = post(served, browser, "/set", fields=given)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/8?asked=set")
    (asked,) = controller.asked_for(wire.SetJobs)
    assert asked == wire.SetJobs(job_ids=(JobId("8"),), changes={"priority": 5, "time": 7200.0, "mem": None})


def test_of_several_jobs_those_that_wait_are_set(
    served: Any, browser: TestClient, controller: StandIn, jobs: JobList
) -> None:
    jobs.jobs.append(replies.waiting("10", "behind", name="other", priority=3))
    page = words(browser.get("/set?job=7&job=8&job=10").text)
    assert "Change options of 2 jobs" in page and "priority 0, 3" in page and "name train, other" in page
    answer = post(served, browser, "/set", fields={"jobs": "7 8 10", "of": "", "priority": "1"})
    assert answer.headers["location"] == "/queue?asked=set"
    assert [each.job_ids for each in controller.asked_for(wire.SetJobs)] == [("8", "10")]


@pytest.mark.parametrize(
    ("given", "said"), [({"priority": "<high>"}, "&lt;high&gt;"), ({"priority": " "}, "fill in at least one")]
)
def test_what_makes_no_sense_is_said_and_what_was_written_stays(
    served: Any, browser: TestClient, controller: StandIn, given: dict[str, str], said: str
) -> None:
    answer = post(served, browser, "/set", fields={"jobs": "8", "of": "8", "time": "", **given})
    assert answer.status_code == 400 and said in answer.text
    assert f'value="{said}"' in answer.text or not given["priority"].strip()
    assert controller.asked_for(wire.SetJobs) == []


def test_only_what_this_user_may_do_is_offered(browser: TestClient, served: Any, jobs: JobList) -> None:
    jobs.jobs = [replies.job_view("7", user="bob"), replies.waiting("8", "behind", user="bob")]
    assert 'name="verb"' not in browser.get("/queue").text and "choose-7" not in browser.get("/queue").text
    page = browser.get("/jobs/7").text
    assert "/change?" not in page and "Only bob or an admin can change it" in page
    jobs.jobs.append(replies.waiting("9", "behind"))
    served.forget()
    page = browser.get("/queue").text
    assert "choose-9" in page and "choose-8" not in page
    assert re.findall(r'name="verb" value="(\w+)"', page) == ["hold", "cancel"]
    jobs.asker, jobs.asker_is_admin = "root", True
    served.forget()
    page = browser.get("/queue").text
    assert "choose-7" in page and "preempt" in re.findall(r'name="verb" value="(\w+)"', page)


def fields(html: str) -> dict[str, str]:
    """Of the form on a page."""
    return dict(re.findall(r'<input type="hidden" name="([\w-]+)" value="([^"]*)"', html))

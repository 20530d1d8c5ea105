"""A page's server without its socket, over a controller that a test answers for."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from msgspec import structs
from starlette.testclient import TestClient

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import CHANGEABLE, ENDED, WAITING, array_of
from cotenant.controller.web.access import Access
from cotenant.controller.web.app import application
from cotenant.controller.web.connections import Connections
from cotenant.controller.web.strangers import Strangers, server_config
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn, refusal
from tests.controller import building
from tests.controller.cli import replies

COOKIE = "cotenant-test"
HERE = "http://127.0.0.1"


def words(html: str) -> str:
    """What a person reads of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


def number(job: wire.JobView) -> int:
    return int(job.job_id.replace("_", ""))


def place_of_end(job: wire.JobView) -> tuple[float, int]:
    return job.ended_s or 0.0, number(job)


def folded(jobs: list[wire.JobView]) -> list[wire.JobView]:
    """Arrays as one row, as a controller would."""
    tasks: dict[str, list[wire.JobView]] = {}
    for job in jobs:
        tasks.setdefault(array_of(job.job_id), []).append(job)
    return [
        each[0] if len(each) == 1 else structs.replace(each[0], array=array(each)) for each in tasks.values()
    ]


def array(tasks: list[wire.JobView]) -> wire.ArrayView:
    places = [int(job.job_id.rpartition("_")[2]) for job in tasks]
    return wire.ArrayView(
        number=array_of(tasks[0].job_id),
        first=min(places),
        last=max(places),
        tasks=len(tasks),
        by_state=dict(Counter(job.phase for job in tasks)),
    )


class JobList:
    """Jobs that a stand-in answers for, as a controller would: those asked for, and how many are beyond. Ada
    asks."""

    asker, asker_is_admin = "ada", False

    def __init__(self, controller: StandIn) -> None:
        self.jobs: list[wire.JobView] = []
        self.attempts: tuple[wire.AttemptView, ...] = ()
        self.output = b""
        controller.says(wire.GetStatus, lambda request: self._status())
        controller.says(wire.GetControllers, replies.controllers(term=0))
        controller.says(wire.ListJobs, self._list)
        controller.says(wire.ShowJob, self._about(self._shown))
        controller.says(wire.Explain, self._about(self._explained))
        controller.says(wire.GetDecisions, self._decisions)
        controller.says(wire.ReadJobLog, self._read)
        controller.says(wire.ListNodes, replies.nodes(replies.node("laptop", replies.device())))
        controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=("asked",)))
        controller.says(wire.SetJobs, wire.Done(request_id=0, lines=("set",)))

    def _status(self) -> wire.ControllerStatus:
        asker = {"asker": self.asker, "asker_is_admin": self.asker_is_admin}
        return replies.status(jobs_by_phase=self._counts(), **asker)

    def _counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self.jobs:
            found[job.phase.value] = found.get(job.phase.value, 0) + 1
        return found

    def _list(self, request: wire.ListJobs) -> Any:
        found = [job for job in self.jobs if self._is_wanted(job, request)]
        names = {name for job in self.jobs for name in (job.job_id, array_of(job.job_id))}
        if not names.issuperset(request.job_ids):
            return refusal("not-found", f"no job {request.job_ids[0]}")
        counts = dict(Counter(job.phase for job in found))
        if request.ended:
            found.sort(key=place_of_end, reverse=True)
        rows = folded(found) if request.fold else found
        if request.before is not None:
            rows = [job for job in rows if place_of_end(job) < request.before]
        rows = [job for job in rows if number(job) > request.after]
        page = rows[: request.page or request.limit]
        more = len(rows) - len(page)
        return wire.Jobs(
            request_id=0,
            jobs=tuple(page),
            now=replies.NOW,
            more=more,
            next=number(page[-1]) if more and request.page and not request.ended else 0,
            next_before=place_of_end(page[-1]) if more and request.ended else None,
            by_state=counts,
        )

    def _is_wanted(self, job: wire.JobView, request: wire.ListJobs) -> bool:
        names, words = {job.job_id, array_of(job.job_id)}, request.text.lower().split()
        has_ended = job.phase in ENDED
        is_asked = request.ended or request.job_ids or request.states or request.include_ended
        return (
            (has_ended or not request.ended)
            and (not has_ended or bool(is_asked))
            and (not request.job_ids or bool(names & set(request.job_ids)))
            and (not request.states or job.phase in request.states)
            and (not request.user or job.user == request.user)
            and request.name in job.name
            and all(word in f"{job.job_id} {job.name} {job.user}".lower() for word in words)
        )

    def _about(self, answer: Callable[[wire.JobView], Any]) -> Callable[[Any], Any]:
        def of(request: Any) -> Any:
            found = [job for job in self.jobs if job.job_id == request.job_id]
            return answer(found[0]) if found else refusal("not-found", f"no job {request.job_id}")

        return of

    def _shown(self, job: wire.JobView) -> wire.Shown:
        reply = replies.shown(job, building.spec(job.job_id), self.attempts)
        if job.user != self.asker:
            return reply
        verbs = tuple(verb for verb, phases in CHANGEABLE.items() if job.phase in phases)
        settable = {"name": job.name, "priority": job.priority, "time": 60.0, "mem": 2048}
        known = structs.replace(reply.job, verbs=verbs, settable=settable if job.phase in WAITING else {})
        return structs.replace(reply, job=known)

    def _explained(self, job: wire.JobView) -> wire.Explained:
        return replies.explained(job, job.reason, f"5 s ago: submitted by {job.user}")

    def _decisions(self, request: wire.GetDecisions) -> wire.Decisions:
        one = wire.DecisionView(
            at_s=replies.NOW_S - 30.0, event="e", job_id=request.job_id, what="place on cpu0", reason="free"
        )
        return wire.Decisions(request_id=0, decisions=(one,), now_s=replies.NOW_S, wall_s=replies.WALL_S)

    def _read(self, request: wire.ReadJobLog) -> wire.LogPart:
        data = self.output[request.offset : request.offset + request.limit]
        return wire.LogPart(
            request_id=0,
            job_id=request.job_id,
            attempt=request.attempt or 1,
            rank=request.rank,
            data=data,
            next_offset=min(len(self.output), request.offset + len(data)),
            at_end=request.offset + len(data) >= len(self.output),
            closed=False,
            attempts=(1,),
            ranks=1,
        )


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(tmp_path / "c.sock")
    yield stand_in
    stand_in.close()


@pytest.fixture
def jobs(controller: StandIn) -> JobList:
    """One that runs and one that waits."""
    found = JobList(controller)
    found.jobs = [replies.job_view("7"), replies.waiting("8", "behind job 7")]
    return found


class Served:
    """The application, its access at a time that the test says, and browsers of it."""

    def __init__(self, endpoint: str, strangers: Strangers | None = None) -> None:
        self.connections = Connections(lambda: Client(endpoint, timeout_s=2.0))
        self.time_s = 0.0
        self.access = Access(lambda: self.time_s)
        self.app: Any = application(self.connections, self.access, COOKIE, strangers=strangers)

    def stranger(self) -> TestClient:
        """A browser that has not opened the link."""
        return TestClient(self.app, base_url=HERE)

    def browser(self) -> TestClient:
        browser = self.stranger()
        assert browser.get("/enter", params={"token": self.access.new_token()}).status_code == 200
        return browser

    @contextmanager
    def listening(self) -> Iterator[tuple[str, int]]:
        """The server itself: its address, while it runs."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = uvicorn.Server(server_config(self.app))
            self.app.state.is_ending = lambda: server.should_exit
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield listening.getsockname()
            finally:
                server.should_exit = True
                thread.join(within_s(20))

    def form_token(self, browser: TestClient) -> str:
        return self.access.form_token(browser.cookies[COOKIE])

    def forget(self) -> None:
        """What was seen a moment ago, so that the next look asks."""
        self.connections.close()
        self.connections = Connections(self.connections._connect)
        self.app.state.connections = self.connections


@pytest.fixture
def served(controller: StandIn, jobs: JobList) -> Iterator[Served]:
    found = Served(controller.endpoint)
    yield found
    found.connections.close()


@pytest.fixture
def browser(served: Served) -> TestClient:
    return served.browser()

"""Two real controllers on one PostgreSQL: whoever leads answers, and jobs notice nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import ENDED, JobId, JobSpec, Launch
from cotenant.controller.store import PostgresDatabase
from cotenant.controller.system.keys import add_agent, init_cluster
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.postgres import Postgres, one_postgres
from tests.live.cluster import MARK, PATIENCE_S, SMALL, Cluster, Daemon, Training
from tests.ports import free_port

QUICK = "controller.leader_lease_s=3"
NAMES = ("first", "second")
PAUSE_S = 0.2
"""Between two submissions: more would only queue up on two slots."""
LONG = Training(name="long", script=SMALL, steps=40, gate_at=10)


class PairOfControllers(Cluster):
    """Two controllers that follow each other, and one agent of both."""

    def __init__(self, folder: Path, journal: str) -> None:
        super().__init__(folder)
        self.keys = keys = folder / "keys"
        init_cluster(keys)
        add_agent(keys, "h1")
        self._agent_key = keys / "agent-h1.key"
        PostgresDatabase(journal).migrate()
        self.where = {name: f"tcp://127.0.0.1:{free_port()}" for name in NAMES}
        self.endpoint = ",".join(self.where.values())
        self.controllers = {name: self._controller(name, journal) for name in NAMES}

    def _controller(self, name: str, journal: str) -> Daemon:
        words = [sys.executable, "-m", "cotenant.controller", "--standby"]
        settings = (
            f"controller.endpoint={self.endpoint}",
            f"controller.listen={self.where[name]}",
            f"controller.journal={journal}",
            f"controller.state_dir={self.folder / name}",
            f"controller.keys_dir={self.keys}",
            "controller.eta_share=0",
            "profiler.seconds=0",
            "policy.name=fifo",  # The default would save the long one and let all the small ones go first.
            QUICK,
        )
        words += [word for setting in settings for word in ("--set", setting)]
        return Daemon(words, self._env(""), self.folder / f"controller-{name}.log")

    def start_all(self) -> None:
        """The first leads, the second follows it, and the agent has joined."""
        self.controllers["first"].start()
        self.start_standby("second")
        agent = self.add_agent("h1", f"agent.keys_dir={self._agent_key}", "agent.devices=cpu:2")
        agent.start()

    def start_standby(self, name: str) -> None:
        """Starts a controller, and waits until the leader knows that it follows."""
        self.controllers[name].launch()
        while self.where[name] not in {each.endpoint for each in self.ask().standbys}:
            pass

    def ask(self) -> wire.ControllersView:
        """Asks until the leader has answered."""
        while True:
            with suppress(Refusal, Unreachable):
                found = self.client.ask(wire.GetControllers(), PATIENCE_S)
                if found.role == "leader":
                    return found
            self.forget_client()

    def forget_client(self) -> None:
        """The next question finds out anew who leads."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def leader(self) -> str:
        found = self.ask().leader
        return next(name for name, where in self.where.items() if where == found)

    def close(self) -> None:
        for daemon in self.controllers.values():
            if daemon.process is not None:
                daemon.process.send_signal(signal.SIGCONT)  # To one that has ended nothing is sent.
                daemon.stop()
        super().close()


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[PairOfControllers]:
    made = PairOfControllers(tmp_path, postgres_url)
    try:
        made.start_all()
        yield made
    finally:
        made.print_logs()
        made.close()


class Submitting(threading.Thread):
    """Submits one small job after the other, as a script in a loop does, and notes every answer. Each job
    notes that it ran."""

    def __init__(self, pair: PairOfControllers) -> None:
        super().__init__(daemon=True)
        self._pair = pair
        self._stopping = threading.Event()
        self.ran = pair.folder / "ran"
        self.accepted: list[JobId] = []
        self.failed: list[Exception] = []

    def run(self) -> None:
        launch = Launch(
            argv=("/bin/sh", "-c", f"echo $COTENANT_JOB >> {self.ran}"),
            workdir=str(self._pair.folder),
            env={"PATH": os.defpath, **{each: os.environ[each] for each in (MARK,) if each in os.environ}},
            uid=os.getuid(),
            gid=os.getgid(),
        )
        with Client(self._pair.endpoint, self._pair.keys, timeout_s=PATIENCE_S) as client:
            while not self._stopping.is_set():
                spec = JobSpec(job_id=JobId("new-0"), name="small", launch=launch)
                try:
                    self.accepted += client.ask(wire.Submit(specs=(spec,))).job_ids
                except (Refusal, Unreachable) as error:
                    self.failed.append(error)
                self._stopping.wait(PAUSE_S)

    def until_accepted(self, count: int) -> None:
        """Waits until so many more were accepted."""
        wanted = len(self.accepted) + count
        while len(self.accepted) < wanted and not self.failed:
            self._stopping.wait(0.01)

    def wait_a_moment(self) -> None:
        self._stopping.wait(0.01)

    def stop(self) -> None:
        """Submits nothing more."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def end(self) -> None:
        """Stops submitting, and waits until every job that was accepted has ended."""
        self.stop()
        assert self.failed == []
        ended = self._pair.until(lambda jobs: all(job.phase in ENDED for job in jobs.values()))
        assert set(self.accepted) <= set(ended), "a submission that was acknowledged is lost"
        assert len(set(self.accepted)) == len(self.accepted), "a number was given out twice"
        ran = self.ran.read_text().split()
        assert sorted(ran) == sorted(set(ended) - set(self._pair.trainings)), "each ran once"


@pytest.fixture
def submitting(pair: PairOfControllers) -> Iterator[Submitting]:
    thread = Submitting(pair)
    yield thread
    thread.stop()


def test_when_the_leader_is_killed_the_standby_goes_on_with_everything(
    pair: PairOfControllers, submitting: Submitting
) -> None:
    job_id = pair.submit(LONG)
    pair.until(lambda jobs: pair.trains_at_gate(jobs[job_id]))
    submitting.start()
    for leader, other in (NAMES, NAMES[::-1]):
        submitting.until_accepted(5)
        pair.controllers[leader].kill()
        submitting.until_accepted(5)
        assert pair.leader() == other
        assert "had ended" in (pair.ask().why or "")
        pair.start_standby(leader)
    pair.open_gate(job_id)
    submitting.end()
    assert pair.check_history(job_id).job.attempt == 1, "its training noticed nothing"


def test_a_leader_that_was_frozen_is_replaced_and_ends_itself_when_it_wakes(
    pair: PairOfControllers, submitting: Submitting
) -> None:
    submitting.start()
    submitting.until_accepted(5)
    frozen = pair.controllers["first"]
    os.kill(frozen.pid, signal.SIGSTOP)
    submitting.until_accepted(5)
    assert pair.leader() == "second"
    os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.process is not None
    assert frozen.process.wait(within_s(60)) == 1
    assert "another controller leads now" in frozen.log.read_text()
    submitting.until_accepted(5)
    submitting.end()


def test_at_a_hand_over_no_request_fails_and_no_job_notices(
    pair: PairOfControllers, submitting: Submitting
) -> None:
    job_id = pair.submit(LONG)
    pair.until(lambda jobs: pair.trains_at_gate(jobs[job_id]))
    submitting.start()
    for other in NAMES[::-1]:
        submitting.until_accepted(5)
        pair.client.ask(wire.HandOver(), PATIENCE_S)
        while pair.leader() != other:
            pair.forget_client()
        assert "handed over" in (pair.ask().why or "")
        while not pair.ask().standbys:
            pass
    submitting.until_accepted(5)
    pair.open_gate(job_id)
    submitting.end()
    assert pair.check_history(job_id).job.attempt == 1


def test_a_standby_that_nobody_follows_is_told_before_a_hand_over(pair: PairOfControllers) -> None:
    pair.controllers["second"].stop()
    while pair.ask().standbys and pair.ask().standbys[0].behind_s < 6.0:
        pass
    with pytest.raises(Refusal, match="nobody can take over"):
        pair.client.ask(wire.HandOver(), PATIENCE_S)


def test_a_restarted_database_costs_no_submission(
    submitting_on_own_server: tuple[Submitting, Postgres],
) -> None:
    submitting, server = submitting_on_own_server
    submitting.until_accepted(5)
    server.restart("immediate")
    # While it is gone submissions are refused, with the reason; what is accepted counts.
    while len(submitting.accepted) < 10:
        submitting.wait_a_moment()
    said = {str(error) for error in submitting.failed}
    assert all("nothing" in text or "cannot be read now" in text for text in said), said
    submitting.failed.clear()
    submitting.end()


@pytest.fixture
def submitting_on_own_server(tmp_path: Path) -> Iterator[tuple[Submitting, Postgres]]:
    with one_postgres() as server, server.database() as name:
        made = PairOfControllers(tmp_path, server.url(name))
        try:
            made.start_all()
            thread = Submitting(made)
            thread.start()
            yield thread, server
        finally:
            made.print_logs()
            made.close()

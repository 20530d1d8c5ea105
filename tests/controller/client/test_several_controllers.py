"""A client of several controllers finds the one that leads: in order, by a redirect, during a take-over."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
import zmq

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.client.last_answer import recall_answer
from cotenant.controller.present.problem import UNREACHABLE, Problem
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn, refusal

SUBMIT = wire.Submit(specs=())
ACCEPTED = wire.Submitted(request_id=0, job_ids=())


class Site:
    """Controllers of one key, each at a port of this machine."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self._held = held
        keys.init_cluster(folder)
        self._pair = keys.read_key(folder / keys.CONTROLLER_KEY)
        self.key = keys.find_key(folder)

    def controller(self, port: int | str = "*") -> StandIn:
        made = StandIn(key=self._pair, port=port)
        self._held.callback(made.close)
        return made

    def leader(self, port: int | str = "*") -> StandIn:
        made = self.controller(port)
        made.says(wire.Submit, ACCEPTED)
        return made

    def standby(self, leader: str = "") -> StandIn:
        made = self.controller()
        made.says(wire.Submit, standing_by(leader))
        return made

    def client(self, *endpoints: str, timeout_s: float | None = None) -> Client:
        return self._held.enter_context(
            Client(endpoints, self.key, timeout_s=within_s(20.0) if timeout_s is None else timeout_s)
        )


def standing_by(leader: str) -> wire.Failure:
    return wire.Failure(request_id=0, code="standby", message="this is the standby", leader=leader)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    runtime = tmp_path / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with ExitStack() as held:
        yield Site(tmp_path / "keys", held)


def closed_port() -> str:
    """An endpoint at which nobody listens."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def frozen(held: ExitStack, *, drops: bool) -> str:
    """The endpoint of a host that says nothing: its kernel accepts connections, or drops packets too."""
    listens = held.enter_context(closing(socket.socket()))
    listens.bind(("127.0.0.1", 0))
    listens.listen(0 if drops else 8)
    for _ in range(2 if drops else 0):  # As many as the queue holds; packets of the next one are dropped.
        fills = held.enter_context(closing(socket.socket()))
        fills.setblocking(False)
        fills.connect_ex(listens.getsockname())
    return f"tcp://127.0.0.1:{listens.getsockname()[1]}"


def test_the_next_one_is_asked_where_nobody_listens(site: Site) -> None:
    leader = site.leader()
    client = site.client(closed_port(), leader.endpoint)
    client.ask(SUBMIT)
    assert client.endpoint == leader.endpoint


@pytest.mark.parametrize("drops", [False, True])
def test_the_next_one_is_asked_where_a_host_is_frozen(site: Site, drops: bool) -> None:
    leader = site.leader()
    with ExitStack() as held:
        client = site.client(frozen(held, drops=drops), leader.endpoint)
        client.ask(SUBMIT)
    assert client.endpoint == leader.endpoint


def test_a_redirect_is_followed_to_one_of_the_setting_only(site: Site) -> None:
    stranger, leader = site.leader(), site.leader()
    other = site.standby(leader=stranger.endpoint)
    first = site.standby(leader=leader.endpoint)
    site.client(first.endpoint, other.endpoint, leader.endpoint).ask(SUBMIT)
    assert len(leader.asked) == 1 and other.asked == [], "followed, past the next one in order"
    site.client(other.endpoint, leader.endpoint).ask(SUBMIT)
    assert len(leader.asked) == 2 and stranger.asked == []


def test_a_command_during_a_take_over_waits_for_the_successor(site: Site) -> None:
    gone = closed_port()
    successor = site.controller()

    def leads_soon(_request: Any) -> wire.Reply:
        return standing_by(leader=gone) if len(successor.asked) < 3 else ACCEPTED

    successor.says(wire.Submit, leads_soon)
    site.client(gone, successor.endpoint).ask(SUBMIT)
    assert len(successor.asked) == 3
    assert len({request.idempotency_key for request in successor.asked}) == 1


def test_a_question_that_dies_with_its_leader_is_answered_by_the_successor(site: Site) -> None:
    leader, successor = site.leader(), site.standby()
    client = site.client(leader.endpoint, successor.endpoint)
    client.ask(SUBMIT)
    endings: list[Thread] = []

    def dies(_request: Any) -> None:
        successor.says(wire.Submit, ACCEPTED)
        endings.append(Thread(target=leader.close))
        endings[0].start()

    leader.says(wire.Submit, dies)
    client.ask(SUBMIT)
    assert client.endpoint == successor.endpoint
    endings[0].join()
    lost, again = leader.asked[-1], successor.asked[-1]
    assert lost.idempotency_key == again.idempotency_key != leader.asked[0].idempotency_key


def test_a_leader_that_handed_over_is_left(site: Site) -> None:
    first, second = site.leader(), site.standby()
    client = site.client(first.endpoint, second.endpoint)
    client.ask(SUBMIT)
    first.says(wire.Submit, standing_by(leader=second.endpoint))
    second.says(wire.Submit, ACCEPTED)
    client.ask(SUBMIT)
    assert client.endpoint == second.endpoint


def test_what_the_leader_refuses_is_refused(site: Site) -> None:
    leader = site.controller()
    leader.says(wire.Submit, refusal("never-fits", "needs 9 devices"))
    with pytest.raises(Refusal, match="needs 9 devices"):
        site.client(closed_port(), leader.endpoint).ask(SUBMIT)


def test_when_the_time_is_over_each_one_is_named_with_its_reason(site: Site) -> None:
    gone, standby = closed_port(), site.standby()
    with pytest.raises(Unreachable) as raised:
        site.client(gone, standby.endpoint, timeout_s=0.5).ask(SUBMIT)
    text = str(raised.value)
    assert text.startswith("no controller that leads has answered within 0.5 s: ")
    assert f"no controller at {gone} (Connection refused)" in text
    assert f"{standby.endpoint}: this is the standby" in text


def test_a_client_that_is_dropped_after_a_failover_is_in_no_cycle(site: Site) -> None:
    client = Client((closed_port(), site.leader().endpoint), site.key, timeout_s=within_s(20.0))
    client.ask(SUBMIT)
    dropped = weakref.ref(client)
    client.close()
    gc.disable()
    try:
        del client
        assert dropped() is None, "a collector would end its context before its sockets, and wait for ever"
    finally:
        gc.enable()


def test_a_connection_that_cannot_be_made_leaves_nothing_open(site: Site) -> None:
    client = Client(site.leader().endpoint, msgspec.structs.replace(site.key, server="no key"))
    with pytest.raises(zmq.ZMQError):
        client.ask(SUBMIT)
    assert client._context is None


def test_a_client_of_the_standby_alone_is_told_so_at_once(site: Site) -> None:
    standby = site.standby(leader="tcp://head:7070")
    with pytest.raises(Refusal) as raised:
        site.client(standby.endpoint).ask(SUBMIT)
    assert (raised.value.failure.code, raised.value.failure.leader) == ("standby", "tcp://head:7070")
    assert Problem("standby", "").exit_code == UNREACHABLE


def test_who_answered_is_asked_first_by_the_next_client_and_the_next_process(site: Site) -> None:
    standby, leader = site.standby(), site.leader()
    endpoints = standby.endpoint, leader.endpoint
    site.client(*endpoints).ask(SUBMIT)
    site.client(*endpoints).ask(SUBMIT)
    assert (len(standby.asked), len(leader.asked)) == (1, 2)
    read = f"from cotenant.controller.client import last_answer as a; print(a.recall_answer({endpoints}))"
    told = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == leader.endpoint
    assert recall_answer((leader.endpoint, standby.endpoint)) == "", "another list is another site"


def test_a_note_that_cannot_be_kept_harms_nothing(site: Site, tmp_path: Path) -> None:
    (tmp_path / "run" / "cotenant").write_text("not a folder")
    leader = site.leader()
    site.client(closed_port(), leader.endpoint).ask(SUBMIT)


def test_a_single_endpoint_is_written_nowhere(site: Site, tmp_path: Path) -> None:
    leader = site.leader()
    site.client(leader.endpoint).ask(SUBMIT)
    assert list((tmp_path / "run").iterdir()) == []

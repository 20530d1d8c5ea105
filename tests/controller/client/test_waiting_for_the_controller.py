"""Who hands something over waits for a controller that is starting again, and hands it over once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cotenant.controller.client.asking import RECENT_S, may_return
from cotenant.controller.client.connection import Client, Unreachable
from cotenant.controller.system.endpoint import SYSTEM_ENDPOINT
from cotenant.controller.system.sections import ControllerSettings, Settings
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn

SUBMIT = wire.Submit(specs=())


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_submission_waits_for_the_controller_and_is_sent_once(tmp_path: Path, held: ExitStack) -> None:
    path, said = tmp_path / "c.sock", list[str]()
    client = held.enter_context(Client(f"ipc://{path}", timeout_s=within_s(20.0)))
    client.is_expected, client.patience_s = True, within_s(60.0)

    def start(text: str) -> None:
        said.append(text)
        controller = StandIn(path)
        held.callback(controller.close)
        controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=()))
        started.append(controller)

    started: list[StandIn] = []
    client.on_silence = start
    assert isinstance(client.ask(SUBMIT), wire.Submitted)
    (controller,) = started
    assert len(controller.asked) == 1
    assert controller.asked[0].idempotency_key
    assert said[0].startswith(f"no controller at ipc://{path} (")
    assert "waiting for it for up to" in said[0]


def test_where_none_is_expected_it_says_so_at_once(tmp_path: Path, held: ExitStack) -> None:
    client = held.enter_context(Client(f"ipc://{tmp_path}/c.sock"))
    client.patience_s, client.on_silence = 600.0, lambda text: pytest.fail(text)
    with pytest.raises(Unreachable, match="no controller at"):
        client.ask(SUBMIT)


def test_an_unknown_name_is_not_waited_for(held: ExitStack, tmp_path: Path) -> None:
    from cotenant.controller.system import keys

    keys.init_cluster(tmp_path)
    client = held.enter_context(Client("tcp://no.such.host.invalid:5555", tmp_path))
    client.is_expected, client.patience_s = True, 600.0
    with pytest.raises(Unreachable, match="no controller at"):
        client.ask(SUBMIT)


def settings_of(folder: Path, endpoint: str = "") -> Settings:
    return Settings(controller=ControllerSettings(state_dir=str(folder), endpoint=endpoint))


def test_who_may_return(tmp_path: Path) -> None:
    own, other = f"ipc://{tmp_path}/c.sock", f"ipc://{tmp_path}/nobody.sock"
    state = tmp_path / "state"
    assert not may_return(settings_of(state, own))
    state.mkdir()
    (tmp_path / "c.sock.lock").touch()
    assert not may_return(settings_of(state, own))
    journal = state / "journal.sqlite"
    journal.touch()
    assert may_return(settings_of(state, own))
    assert not may_return(settings_of(state, other)), "no controller was ever there"
    long_ago_s = time.time() - RECENT_S - 1.0
    os.utime(journal, (long_ago_s, long_ago_s))
    assert not may_return(settings_of(state, own))
    for endpoint in (SYSTEM_ENDPOINT, "tcp://far:5555", "tcp://a:5555,tcp://b:5555"):
        assert may_return(settings_of(tmp_path, endpoint))

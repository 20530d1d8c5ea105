"""Whether a server's agent would be let in: what `doctor` finds out, and what it leaves open."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cotenant.controller.cli.doctor.controller_link import AgentAnswer, ask_as_agent
from cotenant.controller.cli.doctor.host_checks import agent
from cotenant.controller.system import keys, settings
from tests.controller.cli.gpu_hosts import made_up


def asked(**given: str) -> AgentAnswer | None:
    flags: dict[str, object] = {f"agent.{key}": value for key, value in given.items()}
    return ask_as_agent(settings.load(flags, files=[], environ={}).settings, timeout_s=2.0)


def of(**given: str) -> AgentAnswer:
    link = asked(**given)
    assert link is not None
    return link


@pytest.fixture
def key(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    keys.init_cluster(folder)
    return keys.add_agent(folder, "gpu07")


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_on_a_machine_of_ones_own_there_is_nothing_to_ask(at_home: Path) -> None:
    assert asked() is None
    assert asked(controller="ipc:///run/x.sock") is None


def test_an_address_with_a_mistake() -> None:
    assert "http://head" in of(controller="http://head").why


def test_no_key_is_said_with_who_makes_it(tmp_path: Path) -> None:
    link = of(controller="tcp://head:7070", host="gpu07")
    assert "agent.keys_dir is not set" in link.why and "`cotenant init --host gpu07`" in link.todo
    link = of(controller="tcp://head:7070", host="gpu07", keys_dir=str(tmp_path))
    assert "no key for agent gpu07" in link.why


def test_a_key_that_others_may_read(key: Path) -> None:
    key.chmod(0o644)
    assert f"chmod 600 {key}" in of(controller="tcp://head:7070", host="gpu07", keys_dir=str(key)).why


def test_a_controller_that_is_not_there_names_its_port_and_the_firewall(key: Path, closed_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{closed_port}"
    link = of(controller=endpoint, host="gpu07", keys_dir=str(key))
    assert f"no controller at {endpoint}" in link.why
    assert f"let port {closed_port} in" in link.todo and "cotenant up" not in link.todo


def test_what_could_not_be_asked_is_no_failure() -> None:
    link = AgentAnswer(endpoint="tcp://head:7070", why="not for you to read", todo="ask as root", sure=False)
    found = agent(made_up({}, link=link))
    assert found is not None and found.verdict == "warn"

"""Where clients and agents look for the controllers, in which order, and where the one of this machine
listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.controller.system import paths, settings
from cotenant.controller.system.endpoint import user_endpoint
from cotenant.controller.system.sections import AgentSettings, ControllerSettings, Settings


@pytest.mark.parametrize(
    ("controller", "agent", "wanted"),
    [
        ("tcp://head:7070", "", "tcp://head:7070"),
        ("tcp://0.0.0.0:7070", "", "tcp://127.0.0.1:7070"),
        ("tcp://head:7070", "tcp://other:7071", "tcp://other:7071"),
        ("", "", None),
    ],
)
def test_an_agent_reads_the_controllers_endpoint(controller: str, agent: str, wanted: str | None) -> None:
    given = Settings(
        controller=ControllerSettings(endpoint=controller), agent=AgentSettings(controller=agent)
    )
    assert paths.agent_endpoints(given) == (wanted or user_endpoint(),)


TWO = ("tcp://10.255.0.1:7070", "tcp://10.255.0.2:7070")
"""Two hosts, of which neither is this machine."""


def of(endpoint: str | tuple[str, ...], listen: str = "") -> Settings:
    return Settings(controller=ControllerSettings(endpoint=endpoint, listen=listen))


def loaded(folder: Path, text: str = "", **environ: str) -> Settings:
    (folder / "s.toml").write_text(text)
    return settings.load(files=[folder / "s.toml"], environ=environ).settings


def test_a_list_comes_from_a_file_a_variable_or_a_flag(tmp_path: Path) -> None:
    listed = f'[controller]\nendpoint = ["{TWO[0]}", "{TWO[1]}"]'
    as_text = ", ".join(TWO)
    found = [
        loaded(tmp_path, listed),
        loaded(tmp_path, COTENANT_CONTROLLER__ENDPOINT=as_text),
        settings.load({"controller.endpoint": as_text}, files=[], environ={}).settings,
    ]
    for each in found:
        assert paths.client_endpoints(each) == paths.agent_endpoints(each) == TWO
        assert paths.client_endpoint(each) == ",".join(TWO), "as a job's variables and a flag have it"
    theirs = loaded(tmp_path, COTENANT_AGENT__CONTROLLER=as_text)
    assert paths.agent_endpoints(theirs) == TWO and paths.client_endpoints(theirs) == (user_endpoint(),)


def test_the_path_of_a_socket_may_have_a_comma() -> None:
    assert paths.client_endpoints(of("ipc:///run/a,b.sock")) == ("ipc:///run/a,b.sock",)


@pytest.mark.parametrize("bad", ["ipc:///run/c.sock", "tcp://*:7070", "tcp://head", "head:7070", TWO[0]])
def test_a_list_is_of_different_hosts_and_an_entry_that_is_not_is_named_with_its_place(
    tmp_path: Path, bad: str
) -> None:
    text = f'[controller]\nlease_s = 9.0\nendpoint = ["{TWO[0]}", "{bad}"]'
    with pytest.raises(settings.SettingsError) as raised:
        loaded(tmp_path, text)
    assert str(raised.value) == (
        f"{tmp_path}/s.toml:3: controller.endpoint must be one endpoint, or a list of different "
        f"tcp://HOST:PORT, got {bad!r}"
    )
    with pytest.raises(settings.SettingsError, match=r"^environment COTENANT_AGENT__CONTROLLER: agent.contr"):
        loaded(tmp_path, COTENANT_AGENT__CONTROLLER=f"{TWO[0]},tcp://*:7")


def test_a_list_is_text_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(settings.SettingsError, match="must be text, or a list of text, got"):
        loaded(tmp_path, "[controller]\nendpoint = [1, 2]")


@pytest.mark.parametrize(
    ("endpoint", "listen", "wanted"),
    [
        ("tcp://0.0.0.0:7070", "", "tcp://0.0.0.0:7070"),
        ("tcp://head:7070", "tcp://*:7071", "tcp://*:7071"),
        ((TWO[0], "tcp://127.0.0.1:7071"), "", "tcp://127.0.0.1:7071"),
        ((TWO[0], "tcp://localhost:7071"), "", "tcp://*:7071"),
        (TWO, "tcp://*:7070", "tcp://*:7070"),
    ],
)
def test_where_the_controller_of_this_machine_listens(
    endpoint: str | tuple[str, ...], listen: str, wanted: str
) -> None:
    assert paths.controller_endpoint(of(endpoint, listen)) == wanted


@pytest.mark.parametrize("endpoint", [TWO, ("tcp://127.0.0.1:7070", "tcp://127.0.0.1:7071")])
def test_what_this_machine_cannot_tell_is_to_be_set(endpoint: tuple[str, ...]) -> None:
    with pytest.raises(settings.SettingsError, match=r"set controller\.listen"):
        paths.controller_endpoint(of(endpoint))


def test_the_name_that_others_know_this_controller_by() -> None:
    here = "tcp://127.0.0.1:7070", "tcp://127.0.0.1:7071"
    assert paths.own_endpoint(of(here, "tcp://*:7071")) == here[1]
    assert paths.own_endpoint(of((TWO[0], here[0]))) == here[0]
    assert paths.own_endpoint(of(TWO, "tcp://*:7070")) == ""
    assert paths.own_endpoint(of("tcp://head:7070")) == "tcp://head:7070"
    assert paths.own_endpoint(of("tcp://0.0.0.0:7070")) == paths.own_endpoint(of("tcp://127.0.0.1:*")) == ""

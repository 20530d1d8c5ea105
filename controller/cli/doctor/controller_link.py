"""What the controller answers: to the person who asks, and whether it accepts this host's agent.

Rule: the second is asked with the agent's own key. On a server only `agent.controller` is set, and the key is
root's; a user who may not read it learns that, and we guess nothing. An agent may not ask this question: the
refusal proves that the controller knows the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import BadEndpoint, socket_path, this_host
from cotenant.controller.system.keys import KeyFile, KeyProblem, find_key
from cotenant.controller.system.sections import Settings
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire import clients as wire

ANSWER_S_MAX: Final = 3.0


class ControllerAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller says, or why it says nothing."""

    status: wire.ControllerStatus | None = None
    nodes: wire.Nodes | None = None
    why_unreachable: Problem | None = None
    """None: it has answered."""
    controllers: wire.ControllersView | None = None
    """Who leads and who follows; None: a controller has not said."""
    ways: dict[str, str] = {}
    """What came of the last message by each of the controller's ways; empty: it has none, or has not said."""


class AgentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller answered, or why it did not."""

    endpoint: str
    why: str = ""
    """Why the agent would not get in; empty: it would."""
    todo: str = ""
    command: str = ""
    sure: bool = True
    """False: we could not ask with the agent's own key."""


def ask_controller(loaded: LoadedSettings, endpoint: str | None) -> ControllerAnswers:
    """Asks the controller as any verb does."""
    try:
        with asking(endpoint, timeout_s=ANSWER_S_MAX) as client:
            status, nodes = client.ask(wire.GetStatus()), client.ask(wire.ListNodes())
            try:
                controllers = client.ask(wire.GetControllers())
            except Refusal:  # An older one does not know the question.
                controllers = None
            try:
                ways = client.ask(wire.GetNotice()).ways
            except Refusal:
                ways = {}
        return ControllerAnswers(status=status, nodes=nodes, controllers=controllers, ways=ways)
    except Problem as problem:
        return ControllerAnswers(why_unreachable=problem)


def ask_as_agent(settings: Settings, timeout_s: float = ANSWER_S_MAX) -> AgentAnswer | None:
    """Asks the controller with the key of this host's agent. None: this host's agent meets its controller on
    a Unix socket, which needs no key."""
    endpoints, given = paths.agent_endpoints(settings), settings.agent
    endpoint, host = " or ".join(endpoints), this_host(given.host)
    try:
        if socket_path(endpoints[0]) is not None:
            return None
    except BadEndpoint as error:
        return AgentAnswer(endpoint=endpoint, why=str(error), todo="set agent.controller to tcp://HOST:PORT")
    if not given.keys_dir:
        if not given.controller:  # Only the commands' endpoint is set: an agent elsewhere has its own.
            return None
        why = f"{endpoint} needs a key, and agent.keys_dir is not set"
        todo = f"an admin makes its key with `cotenant init --host {host}`; set agent.keys_dir to the file"
        return AgentAnswer(endpoint=endpoint, why=why, todo=f"{todo} here")
    try:
        key = find_key(Path(given.keys_dir).expanduser(), host=host)
    except (PermissionError, KeyProblem) as error:
        if any(isinstance(each, PermissionError) for each in (error, error.__context__)):
            return _not_ours(endpoint, given.keys_dir)
        return AgentAnswer(endpoint=endpoint, why=str(error), todo="the agent does not start without it")
    return _ask_with(key, endpoints, timeout_s)


def _not_ours(endpoint: str, place: str) -> AgentAnswer:
    return AgentAnswer(
        endpoint=endpoint,
        why=f"whether {endpoint} accepts it is not known: its key in {place} is not for you to read, rightly",
        todo="ask again as root",
        command="sudo cotenant doctor",
        sure=False,
    )


def _ask_with(key: KeyFile, endpoints: tuple[str, ...], timeout_s: float) -> AgentAnswer:
    endpoint = " or ".join(endpoints)
    try:
        with Client(endpoints, key, timeout_s=timeout_s) as client:
            try:
                client.ask(wire.GetStatus())
            except Refusal:
                return AgentAnswer(endpoint=client.endpoint)
    except Unreachable as error:
        return AgentAnswer(endpoint=endpoint, why=str(error), todo=_what_to_try(endpoint, error.hint))
    except (BadEndpoint, KeyProblem) as error:
        return AgentAnswer(endpoint=endpoint, why=str(error), todo="set agent.controller and agent.keys_dir")
    return AgentAnswer(  # A person's key: the controller would answer its questions and not obey its reports.
        endpoint=endpoint,
        why="the key in agent.keys_dir is a person's, not this host's",
        todo="an admin makes this host's with `cotenant init --host HOST`",
    )


def _what_to_try(endpoint: str, hint: str) -> str:
    """The client's own hints are for people who start their controller themselves."""
    if "cotenant up" not in hint:
        return hint
    port = endpoint.rpartition(":")[2]
    running = "is it running there (`systemctl status cotenant-controller`)"
    return f"{running}, and does its firewall let port {port} in?"

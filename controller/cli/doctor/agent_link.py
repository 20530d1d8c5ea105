"""Whether this host's controller accepts its agent: asked with the agent's own key. Rule: on a server only
`agent.controller` is set, and the key is root's; a user who may not read it learns that, and we guess
nothing. An agent may not ask this question: the refusal proves that the controller knows the key.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import BadEndpoint, socket_path
from cotenant.controller.system.keys import KeyFile, KeyProblem, find_key
from cotenant.controller.system.sections import Settings
from cotenant.controller.wire import clients as wire

ANSWER_S_MAX: Final = 3.0


class AgentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller answered, or why it did not."""

    endpoint: str
    why: str = ""
    """Why the agent would not get in; empty: it would."""
    todo: str = ""
    command: str = ""
    sure: bool = True
    """False: we could not ask with the agent's own key."""


def ask_as_agent(settings: Settings, timeout_s: float = ANSWER_S_MAX) -> AgentAnswer | None:
    """Asks the controller with the key of this host's agent. None: this host's agent meets its controller on
    a Unix socket, which needs no key."""
    endpoints = paths.agent_endpoints(settings)
    endpoint = " or ".join(endpoints)
    try:
        if socket_path(endpoints[0]) is not None:
            return None
    except BadEndpoint as error:
        return AgentAnswer(endpoint=endpoint, why=str(error), todo="set agent.controller to tcp://HOST:PORT")
    host = host_name(settings)
    if not settings.agent.keys_dir:
        if not settings.agent.controller:
            return (
                None  # Only the commands' endpoint is set here; an agent elsewhere has settings of its own.
            )
        todo = (
            f"an admin makes its key with `cotenant init --host {host}`; set agent.keys_dir to the file here"
        )
        return AgentAnswer(
            endpoint=endpoint, why=f"{endpoint} needs a key, and agent.keys_dir is not set", todo=todo
        )
    try:
        key = find_key(Path(settings.agent.keys_dir).expanduser(), host=host)
    except PermissionError:
        return _not_ours(endpoint, settings.agent.keys_dir)
    except KeyProblem as error:
        if isinstance(error.__context__, PermissionError):
            return _not_ours(endpoint, settings.agent.keys_dir)
        return AgentAnswer(endpoint=endpoint, why=str(error), todo="the agent does not start without it")
    return _ask_controller(endpoints, key, timeout_s)


def host_name(settings: Settings) -> str:
    """What an agent with these settings calls this host."""
    return settings.agent.host or socket.gethostname().partition(".")[0]


def _not_ours(endpoint: str, place: str) -> AgentAnswer:
    return AgentAnswer(
        endpoint=endpoint,
        why=f"whether {endpoint} accepts it is not known: its key in {place} is not for you to read, rightly",
        todo="ask again as root",
        command="sudo cotenant doctor",
        sure=False,
    )


def _ask_controller(endpoints: tuple[str, ...], key: KeyFile, timeout_s: float) -> AgentAnswer:
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

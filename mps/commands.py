"""What one can ask of a control daemon, as functions with types.

Rule: a setting counts as set when it was read back. The daemon says nothing, or repeats the old value,
where it does not like the new one, and its exit status is always 0.
"""

from __future__ import annotations

from cotenant.mps.channel import ControlChannel
from cotenant.mps.environment import percentage_text
from cotenant.mps.replies import (
    Rejected,
    ServerState,
    TerminationReply,
    percentage,
    pids,
    server_state,
    termination,
    unknown_command,
)

PERCENTAGE_SHOWN_TO = 0.06
"""The daemon shows one decimal."""


def server_list(channel: ControlChannel) -> tuple[int, ...]:
    """Their pids. Servers start with the first client; an old one and a new one may overlap."""
    return pids(channel.ask("get_server_list"))


def status(channel: ControlChannel, server: int) -> ServerState | None:
    """None: this daemon does not know the question (drivers up to 535)."""
    answer = channel.ask(f"get_server_status {server}")
    return None if unknown_command(answer) else server_state(answer)


def clients(channel: ControlChannel, server: int) -> tuple[int, ...]:
    """Pids of its clients, as the daemon's own pid namespace has them."""
    return pids(channel.ask(f"get_client_list {server}"))


def default_percentage(channel: ControlChannel) -> float:
    """In (0, 100]: the cap on the share of multiprocessors that the next server gives each client."""
    return percentage(channel.ask("get_default_active_thread_percentage"))


def set_default_percentage(channel: ControlChannel, wanted: float) -> None:
    """For the next server. Raises Rejected if another value stays in force."""
    echo = percentage(channel.ask(f"set_default_active_thread_percentage {percentage_text(wanted)}"))
    _check_percentage(wanted, echo)


def server_percentage(channel: ControlChannel, server: int) -> float:
    return percentage(channel.ask(f"get_active_thread_percentage {server}"))


def set_percentage(channel: ControlChannel, server: int, wanted: float) -> None:
    """For later clients of a server that runs. Raises Rejected if another value stays in force."""
    channel.ask(f"set_active_thread_percentage {server} {percentage_text(wanted)}")
    _check_percentage(wanted, server_percentage(channel, server))


def terminate_client(channel: ControlChannel, server: int, client: int) -> TerminationReply:
    """End a client's work on the GPU. Its process lives on, without a usable CUDA context (error 810)."""
    return termination(channel.ask(f"terminate_client {server} {client}"))


def _check_percentage(wanted: float, in_force: float) -> None:
    if abs(wanted - in_force) > PERCENTAGE_SHOWN_TO:
        raise Rejected(f"{percentage_text(wanted)} % was not taken: {in_force} % is in force")

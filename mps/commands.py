"""What one can ask of a control daemon, as functions with types.

Rule: a setting counts as set when it was read back. The daemon says nothing, or repeats the old value,
where it does not like the new one, and its exit status is always 0.
"""

from __future__ import annotations

from cotenant.mps.channel import Channel
from cotenant.mps.environment import percentage_text, read_back_agrees
from cotenant.mps.replies import (
    ClientProcess,
    Rejected,
    ServerState,
    Termination,
    percentage,
    pids,
    processes,
    server_state,
    termination,
    unknown_command,
)

PERCENTAGE_SHOWN_TO = 0.06
"""The daemon shows one decimal."""


def server_list(channel: Channel) -> tuple[int, ...]:
    """Their pids. Servers start with the first client; an old one and a new one may overlap."""
    return pids(channel.ask("get_server_list"))


def start_server(channel: Channel, uid: int) -> None:
    """Ask for a server of this user. Silence says nothing: it may be dead at once; see `server_list`."""
    pids(channel.ask(f"start_server -uid {uid}"))


def status(channel: Channel, server: int) -> ServerState | None:
    """None: this daemon does not know the question (drivers up to 535)."""
    answer = channel.ask(f"get_server_status {server}")
    return None if unknown_command(answer) else server_state(answer)


def clients(channel: Channel, server: int) -> tuple[int, ...]:
    """Pids of its clients, as the daemon's own pid namespace has them."""
    return pids(channel.ask(f"get_client_list {server}"))


def client_processes(channel: Channel) -> tuple[ClientProcess, ...]:
    """All clients of all servers, with what the daemon knows of them; empty if there is no server."""
    try:
        return processes(channel.ask("ps"))
    except Rejected as error:
        if "not found" in str(error).lower():
            return ()
        raise


def default_percentage(channel: Channel) -> float:
    """In (0, 100]: the cap on the share of multiprocessors that the next server gives each client."""
    return percentage(channel.ask("get_default_active_thread_percentage"))


def set_default_percentage(channel: Channel, wanted: float) -> None:
    """For the next server. Raises Rejected if another value stays in force."""
    echo = percentage(channel.ask(f"set_default_active_thread_percentage {percentage_text(wanted)}"))
    _check_percentage(wanted, echo)


def server_percentage(channel: Channel, server: int) -> float:
    return percentage(channel.ask(f"get_active_thread_percentage {server}"))


def set_percentage(channel: Channel, server: int, wanted: float) -> None:
    """For later clients of a server that runs. Raises Rejected if another value stays in force."""
    channel.ask(f"set_active_thread_percentage {server} {percentage_text(wanted)}")
    _check_percentage(wanted, server_percentage(channel, server))


def default_memory_limit(channel: Channel, ordinal: int) -> str:
    """As the daemon shows it: truncated to whole GiB from 1 GiB on; empty if there is none."""
    return channel.ask(f"get_default_device_pinned_mem_limit {ordinal}").strip()


def set_default_memory_limit(channel: Channel, ordinal: int, limit_mib: int) -> None:
    """Of each client of the next server, on the device of this number among the daemon's own.

    Raises Rejected if the value shown afterwards cannot be this one. That it can be is no proof.
    """
    channel.ask(f"set_default_device_pinned_mem_limit {ordinal} {limit_mib}M")
    shown = default_memory_limit(channel, ordinal)
    if not read_back_agrees(shown, limit_mib):
        raise Rejected(f"memory limit {limit_mib}M of device {ordinal} was not taken: {shown!r} is in force")


def set_memory_limit(channel: Channel, server: int, ordinal: int, limit_mib: int) -> None:
    """Of each later client of a server that runs; checked like the default."""
    pids(channel.ask(f"set_device_pinned_mem_limit {server} {ordinal} {limit_mib}M"))
    shown = channel.ask(f"get_device_pinned_mem_limit {server} {ordinal}").strip()
    if not read_back_agrees(shown, limit_mib):
        raise Rejected(f"memory limit {limit_mib}M of server {server} was not taken: {shown!r} is in force")


def default_priority(channel: Channel) -> int:
    """0: normal, 1: below normal; of clients that do not say it themselves."""
    (value,) = pids(channel.ask("get_default_client_priority")) or (-1,)
    return value


def set_default_priority(channel: Channel, wanted: int) -> None:
    """Raises Rejected if another one stays in force."""
    channel.ask(f"set_default_client_priority {wanted}")
    found = default_priority(channel)
    if found != wanted:
        raise Rejected(f"client priority {wanted} was not taken: {found} is in force")


def terminate_client(channel: Channel, server: int, client: int) -> Termination:
    """End a client's work on the GPU. Its process lives on, without a usable CUDA context (error 810)."""
    return termination(channel.ask(f"terminate_client {server} {client}"))


def shutdown_server(channel: Channel, server: int, *, force: bool = False) -> None:
    """It takes no more clients and ends after the last; by force: at once, which breaks them."""
    pids(channel.ask(f"shutdown_server {server}{' -f' if force else ''}"))


def _check_percentage(wanted: float, in_force: float) -> None:
    if abs(wanted - in_force) > PERCENTAGE_SHOWN_TO:
        raise Rejected(f"{percentage_text(wanted)} % was not taken: {in_force} % is in force")

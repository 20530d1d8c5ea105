"""The contract of MPS, asked with CUDA programs that know no torch: daemon, limits, and ends of clients."""

from __future__ import annotations

import os
import time
from functools import partial
from stat import filemode
from typing import Any, Final

from hwtests.first.control import (
    LIMIT,
    PERCENTAGE,
    Load,
    Silent,
    ask_client,
    at_once,
    daemon,
    plain_environment,
)
from hwtests.first.notes import Notes
from hwtests.first.nvml import Nvml, await_true
from hwtests.first.place import Place

BLOCKS: Final = 132
"""As many as an H200 has multiprocessors: one kernel is on all of them."""
LIMITS_MIB: Final = (256, 512, 768, 1024)
PERCENTAGES: Final = (5, 16)
FILL_MIB: Final = 3072
MEMORY_MIB: Final = 2048
"""What a client holds that is to be ended: its end is to be seen in NVML."""
BACK_S: Final = 8.0


def ask_up(note: Notes, place: Place) -> None:
    nvml = Nvml()
    before_mib = nvml.used_mib(place.uuid)
    try:
        with daemon(place.uuid) as mps:
            note("get_server_list without clients", mps.ask("get_server_list"))
            env = plain_environment(place.uuid, str(mps.pipe))
            began_s = time.monotonic()
            with Load("open", "info", "busy:1", env=env) as one:
                opened = one.until("opened")
                note("first client", one.facts() | {"ready_s": round(time.monotonic() - began_s, 2)})
                attached = await_true(
                    lambda: bool(mps.clients()), 5.0, 0.2
                )  # By whatever number it is listed.
                note("attached", attached is not None)
                if "error" in opened or attached is None:
                    note("start_server says", mps.ask(f"start_server -uid {os.getuid()}"))
                    await_true(lambda: "exited" in mps.log("control"), 2.0, 0.2)
                    note("server.log", mps.log("server"))
                    note("control.log", mps.log("control"))
                    why = opened.get("error", "a CUDA program runs beside the daemon, and is no client of it")
                    note("no mps", f"its daemon takes no client in: {why}")
                    return
                note("listed by its own number", str(one.pid) in mps.clients())
                one.until("per_s")
                note("kernels a second alone", one.rate())
                with Load("open", "busy:1", env=env) as two:
                    two.until("per_s")
                    note("kernels a second of two", [one.rate(), two.rate()])
                    _note_words(note, mps, nvml, place, (one.pid, two.pid))
                    note("MiB with two clients and a server", nvml.used_mib(place.uuid) - before_mib)
            note("memory is back after, s", nvml.await_used(place.uuid, before_mib + 700, BACK_S))
            note("MiB of an idle server", nvml.used_mib(place.uuid) - before_mib)
            note("control.log", mps.log("control"))
    except Silent as problem:
        note("no mps", str(problem))


def _note_words(note: Notes, mps: Any, nvml: Nvml, place: Place, pids: tuple[int, int]) -> None:
    """What each question of the control program is answered with."""
    servers = mps.servers()
    for command in ("get_server_list", "ps", "lspart", "get_default_active_thread_percentage"):
        note(command, mps.ask(command))
    for server in servers[:1]:
        for command in ("get_server_status", "get_client_list", "get_device_client_list"):
            note(command, mps.ask(f"{command} {server}"))
        opened = [uuid for uuid in nvml.uuids() if int(server) in {each.pid for each in nvml.processes(uuid)}]
        note("GPUs that the server has open", opened)
    note("pids of ours", {"clients": pids, "servers": servers})
    note("processes by NVML", [each._asdict() for each in nvml.processes(place.uuid)])
    note("modes of the sockets", {each.name: filemode(each.stat().st_mode) for each in mps.pipe.iterdir()})


def ask_limits(note: Notes, place: Place) -> None:
    spellings = {
        "none": "",
        "by number": "0=2048M",
        "two numbers": "0=2048M,3=2048M",
        "by UUID": f"{place.uuid}=2048M",
        "in gigabytes": "0=2G",
    }
    with daemon(place.uuid) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))

        def ask(text: str) -> dict[str, Any]:
            return ask_client("open", "info", f"fill:{FILL_MIB}", env=env | ({LIMIT: text} if text else {}))

        note("first", ask(""))  # A server starts once.
        for name, facts in at_once({name: partial(ask, text) for name, text in spellings.items()}).items():
            note(name, facts)
        mps.ask("set_default_device_pinned_mem_limit 0 1G")
        note("default limit, as it is shown", mps.ask("get_default_device_pinned_mem_limit 0"))


def ask_floor(note: Notes, place: Place) -> None:
    with daemon(place.uuid) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))
        note("no limit", ask_client("open", "info", env=env))
        for size_mib in LIMITS_MIB:
            limited = {**env, LIMIT: f"0={size_mib}M"}
            note(f"{size_mib} MiB", ask_client("open", "info", f"fill:{size_mib}", env=limited, within_s=4))
        for percentage in PERCENTAGES:
            limited = {**env, PERCENTAGE: str(percentage)}
            note(f"{percentage} %", ask_client("open", "info", env=limited, within_s=4))
        both = {**env, PERCENTAGE: "16", LIMIT: "0=1024M"}
        note("1024 MiB and 16 %", ask_client("open", "info", "fill:1024", env=both, within_s=4))


def ask_terminate(note: Notes, place: Place) -> None:
    nvml = Nvml()
    with daemon(place.uuid) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))
        with Load("open", f"busy:{BLOCKS}", env=env) as neighbour:
            neighbour.until("per_s")
            note("neighbour alone, kernels a second", neighbour.rate())
            for how in ("terminate_client", "SIGKILL"):
                _end_one(note, how, mps, nvml, place, env, neighbour)
                if neighbour.error():
                    note(f"{how}: the neighbour meets", neighbour.error())
                    return


def _end_one(
    note: Notes, how: str, mps: Any, nvml: Nvml, place: Place, env: dict[str, str], neighbour: Load
) -> None:
    before_mib, others = nvml.used_mib(place.uuid), set(mps.clients())
    with Load("open", f"take:{MEMORY_MIB}", f"busy:{BLOCKS}", env=env) as victim:
        victim.until("per_s")
        note(f"{how}: both, kernels a second", [neighbour.rate(), victim.rate()])
        number = next(iter(set(mps.clients()) - others), str(victim.pid))
        taken_mib = nvml.used_mib(place.uuid) - before_mib
        began_s = time.monotonic()
        if how == "SIGKILL":
            victim.kill()
        else:
            (server, *_) = mps.servers()
            note("terminate_client says", mps.ask(f"terminate_client {server} {number}"))
            note("terminate_client took, s", round(time.monotonic() - began_s, 3))
            await_true(lambda: bool(victim.error()), 3.0)
            note("the terminated client meets", victim.error() or "nothing: it goes on")
        back_s = nvml.await_used(place.uuid, before_mib + max(0, taken_mib - MEMORY_MIB + 64), 5.0)
        note(f"{how}: memory is back after, s", back_s)
        note(f"{how}: still listed", number in mps.clients())
        note(f"{how}: the neighbour after, kernels a second", neighbour.rate())
    if how == "terminate_client":
        note("status after", [mps.ask(f"get_server_status {server}") for server in mps.servers()])


def ask_restart(note: Notes, place: Place) -> None:
    """A control daemon is killed under a live client; one starts in its place; one stands beside it."""
    with daemon(place.uuid) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))
        with Load("open", "busy:1", env=env) as client:
            client.until("per_s")
            servers = mps.servers()
            if mps.pid is None:
                note("the daemon's process", "was not found below the question")
                return
            os.kill(mps.pid, 9)
            await_true(lambda: "exit" in mps.ask("get_server_list"), 2.0, 0.1)
            note("asked after its death", mps.ask("get_server_list"))
            note("the client after, kernels a second", client.rate())
            note("the client meets", client.error() or "nothing")
            note("its server lives", {server: os.path.exists(f"/proc/{server}") for server in servers})
            try:
                mps.start()
                note("a new daemon in its folder", mps.ask("get_server_list"))
                note("a new client of it", ask_client("open", "info", env=env, within_s=5))
                note("servers with both", mps.servers())
                note("the old client then", client.error() or f"{client.rate()} kernels a second")
            except Silent as problem:
                note("a new daemon in its folder", str(problem))
        with daemon(place.uuid) as other:
            second = plain_environment(place.uuid, str(other.pipe))
            with Load("open", "busy:1", env=env) as one, Load("open", "busy:1", env=second) as two:
                one.until("per_s"), two.until("per_s")
                note("clients of two daemons at once, kernels a second", [one.rate(), two.rate()])
                note("errors of two daemons at once", [one.error(), two.error()])

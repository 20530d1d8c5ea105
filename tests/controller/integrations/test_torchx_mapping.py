"""What an app of torchx becomes here: its command, options and states; and that torchx keeps its own."""

from __future__ import annotations

import shlex
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchx.components import dist
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_default_scheduler_name, get_scheduler_factories
from torchx.schedulers.api import Stream
from torchx.specs import AppDef, AppState, BindMount, Resource, Role, is_terminal, macros

from cotenant.controller.domain import ENDED, Phase
from cotenant.controller.integrations.torchx_scheduler import (
    command_of,
    create_scheduler,
    fill_macros,
    request_of,
    state_of,
)


def role(**more: Any) -> Role:
    return Role(**{"name": "trainer", "image": "", "entrypoint": "python", "args": ["train.py"], **more})


def made(**more: Any) -> Role:
    return fill_macros(role(**more))


def options(app: AppDef, **cfg: str) -> dict[str, Any]:
    found: dict[str, Any] = request_of(app, cfg)["options"]
    return found


def test_workers_of_a_component_become_devices_where_none_are_asked_for() -> None:
    found = options(dist.ddp(script="train.py", j="2x4", cpu=6, memMB=4096, max_retries=3), time="4h")
    assert (found["nodes"], found["gpus"], found["launch"]) == (2, 8, "host")
    assert (found["cpus"], found["host_mem"], found["retries"], found["time"]) == (6, "4096M", 3, "4h")
    assert found["env"]["TORCHX_ROLE"] == "train"
    kept = options(AppDef("x", [role(env={"A": "${HOME}", "B": macros.app_id})]))["env"]
    assert kept.keys() == {"A", "TORCHX_ROLE"}


def test_what_a_role_asks_for_wins_and_what_nobody_said_is_no_limit() -> None:
    assert options(dist.ddp(script="train.py", j="1x4", gpu=2))["gpus"] == 2
    assert "host_mem" not in options(dist.ddp(script="train.py", j="1x4"))
    alone = options(AppDef("x", [role(num_replicas=3, resource=Resource(cpu=-1, gpu=-1, memMB=-1))]))
    assert (alone["gpus"], alone.get("cpus")) == (3, None)


def test_apps_that_are_no_single_job_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"several roles \(trainer, server\)"):
        options(AppDef("x", [role(), role(name="server")]))
    with pytest.raises(ValueError, match="mounts"):
        options(AppDef("x", [role(mounts=[BindMount("/a", "/b")])]))


@given(st.lists(st.text(st.characters(exclude_characters="\0$", codec="utf-8"))))
def test_every_argument_arrives_as_it_was(args: list[str]) -> None:
    shell = command_of(made(args=args))
    assert shlex.split(shell[2])[1:] == ["python", *args]


def test_the_place_of_a_replica_is_filled_in_where_it_runs() -> None:
    words = [f"a '{macros.app_id}' b", macros.replica_id, f"$${{{macros.rank0_env}:=x}}"]
    command = command_of(
        made(entrypoint="printf", args=["%s;", *words, "$V"], env={"V": f"{macros.app_id}!"})
    )
    env = {"COTENANT_JOB": "7", "GROUP_RANK": "1", "MASTER_ADDR": "host", "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said == "a '7' b;1;${MASTER_ADDR:=x};$V;"
    command = command_of(made(entrypoint="sh", args=["-c", "echo $V"], env={"V": f"{macros.app_id}!"}))
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "7!\n"


def test_the_first_of_several_hosts_is_where_torchrun_meets() -> None:
    command = command_of(made(entrypoint="sh", args=["-c", "echo $PET_RDZV_CONF"], num_replicas=2))
    said = [
        subprocess.run(command, env={"GROUP_RANK": host}, capture_output=True, text=True, check=True).stdout
        for host in ("0", "1")
    ]
    assert said == ["is_host=1\n", "is_host=0\n"]


def test_torchx_waits_for_a_job_until_it_has_ended() -> None:
    for phase in Phase:
        job: Any = SimpleNamespace(phase=phase, is_given_up=False)
        assert is_terminal(state_of(job)) == (phase in ENDED), phase
    given_up: Any = SimpleNamespace(phase=Phase.HELD, is_given_up=True)
    assert state_of(given_up) is AppState.FAILED


def test_one_of_two_streams_is_refused() -> None:
    with pytest.raises(ValueError, match="one log"):
        create_scheduler("torchx").log_iter("7", "trainer", streams=Stream.STDERR)


def test_torchx_keeps_its_own_schedulers_and_its_default() -> None:
    """It forgets them as soon as any package adds one."""
    found = get_scheduler_factories()
    assert found.keys() == {*DEFAULT_SCHEDULER_MODULES, "auto", "cotenant"}
    own_default = next(iter(DEFAULT_SCHEDULER_MODULES))
    assert get_default_scheduler_name() == "auto"
    assert type(found["auto"]("x")) is type(found[own_default]("x"))

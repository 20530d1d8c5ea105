"""Parts of a device on this side: which cores, threads of MPS and memory a part is, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.agent.daemon.core.edge import FoundAttempt, StartSupervisor
from cotenant.controller.domain import AttemptNo, JobId, StartAttempt
from cotenant.controller.wire import Welcome
from tests.agent.daemon.test_gpu_clients import config as of_gpus
from tests.agent.daemon.test_gpu_clients import gpu, order_of
from tests.agent.daemon.test_gpu_clients import start as on_gpu
from tests.agent.daemon.test_state import only, reported, start, welcomed
from tests.building.hosts import cpu, host

SLOT = cpu("h1/cpu0", cores=(0, 1, 2, 3), divides=True)
SETTINGS: dict[str, Any] = {"report": host("h1", SLOT, cpus=4)}


def part(job: str, command: int, fraction: float = 0.5) -> StartAttempt:
    return start(job, 1, command, fraction=fraction, memory_cap_mib=500)


def cores(effects: list[Any]) -> dict[str, tuple[int, ...]]:
    orders = [effect.order for effect in only(StartSupervisor, effects)]
    return {order.start.job_id: order.ranks[0].cores for order in orders}


def test_each_part_of_a_slot_has_cores_of_its_own() -> None:
    agent = welcomed(**SETTINGS)
    effects = agent.obey(part("7", 1), part("8", 2, 0.25), part("9", 3, 0.25))
    assert cores(effects) == {"7": (0, 1), "8": (2,), "9": (3,)}


TOO_MUCH = {
    "a part that is not left": (part("8", 2, 0.75), "h1/cpu0 has 0.50 of itself left beside jobs 7"),
    "a whole tenant beside a part": (start("8", 1, 2), "h1/cpu0 is divided among jobs 7"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_what_a_device_has_not_left_is_refused(case: str) -> None:
    command, why = TOO_MUCH[case]
    agent = welcomed(**SETTINGS)
    agent.obey(part("7", 1))
    effects = agent.obey(command)
    [ended] = reported(effects)
    assert (cores(effects), ended.verdict.outcome) == ({}, "infra-failed")
    assert why in ended.verdict.detail


def test_no_part_is_put_beside_a_whole_tenant() -> None:
    agent = welcomed(**SETTINGS)
    agent.obey(start("7"))
    [ended] = reported(agent.obey(part("8", 2)))
    assert "h1/cpu0 has 0.00 of itself left beside jobs 7" in ended.verdict.detail


@pytest.mark.parametrize("spool_lost", [False, True], ids=["spool", "spool lost"])
def test_after_a_restart_the_cores_of_those_who_run_are_still_taken(spool_lost: bool) -> None:
    agent = welcomed(**SETTINGS)
    effects = agent.obey(part("7", 1))
    order = only(StartSupervisor, effects)[0].order
    if spool_lost:
        agent.disk.clear()
    again, _ = agent.restarted(
        FoundAttempt(job_id=JobId("7"), attempt=AttemptNo(1), alive=True, order=order), **SETTINGS
    )
    again.hear(Welcome(session="s2", lease_s=None, reports_seen=0, journal="j"))
    assert cores(again.obey(part("8", 2))) == {"8": (2, 3)}


def test_a_part_of_a_gpu_is_one_of_its_threads_and_of_its_memory_under_mps() -> None:
    command = on_gpu(devices=1, fraction=0.25, memory_cap_mib=20_000)
    settings = of_gpus(gpu(0, divides=True))
    [client] = order_of(command, settings).mps
    assert (client.active_thread_percentage, client.memory_limit_mib) == (25.0, 20_000)
    [client] = order_of(on_gpu(devices=1), settings).mps
    assert (client.active_thread_percentage, client.memory_limit_mib) == (None, None)

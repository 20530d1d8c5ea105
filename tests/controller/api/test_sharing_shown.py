"""`explain` says how the GPUs of a job are shared, and why not through MPS."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.api import views
from cotenant.controller.domain import render
from tests.controller.building import Desk, report

NOBODY = (
    "nothing limits its GPU memory: how much it needs is unknown, and no job shares its devices before "
    "that is known"
)
CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "a GPU without MPS": (
        "cuda",
        {"sharing_note": "nvidia-cuda-mps-control is not on PATH"},
        ["on h1/0 co-tenants take turns (time-slicing): nvidia-cuda-mps-control is not on PATH", NOBODY],
    ),
    "a GPU of an agent that does not say why": (
        "cuda",
        {},
        ["on h1/0 co-tenants take turns (time-slicing): its agent does not say why", NOBODY],
    ),
    "a GPU with MPS, alone": ("cuda", {"sharing": "mps"}, [NOBODY]),
    "MPS with more to say, also alone": (
        "cuda",
        {"sharing": "mps", "sharing_note": "static partitions of 64 + 56 multiprocessors"},
        [
            "on h1/0 co-tenants run at once, through MPS (static partitions of 64 + 56 multiprocessors)",
            NOBODY,
        ],
    ),
    "a CPU slot": ("cpu", {}, []),
}


@pytest.mark.parametrize(("kind", "device", "lines"), CASES.values(), ids=CASES.keys())
def test_it_is_said_once_for_devices_that_are_shared_alike(
    kind: str, device: dict[str, Any], lines: list[str]
) -> None:
    desk = Desk("fifo", report("h1", devices=2, kind=kind, device=device))
    desk.submit(1, gpus=2)
    assert [render(reason) for reason in views.sharing_reasons(desk.engine, desk.job(1))] == lines


def test_co_tenants_by_mps_and_waiting_jobs() -> None:
    desk = Desk("sjf-ffs", report("h1", kind="cuda", memory_mib=9000, device={"sharing": "mps"}))
    for job_id in (1, 2):
        desk.submit(job_id, memory_mib=1000, iterations=1000, expected_s=1000.0)
        desk.start(job_id)
    desk.submit(3)
    assert desk.devices(1) == desk.devices(2)
    said = [[r.code for r in views.sharing_reasons(desk.engine, desk.job(n))] for n in (1, 2, 3)]
    both = ["co-tenants-by-mps", "mps-limit"]
    assert said == [both, both, []]


@pytest.mark.parametrize(
    ("policy", "device", "job", "said"),
    [
        (
            "castor",
            {"sharing": "mps"},
            {},
            "its part of the 1000 MiB that were planned for a worker (MPS limits",
        ),
        ("castor", {}, {}, "torch in each of its processes is held to its part of the 1000 MiB"),
        ("castor", {"limits_jobs": True}, {}, "the kernel holds the job to the 1000 MiB of each of its GPUs"),
        ("castor", {"max_tenants": 1}, {}, "nothing limits its GPU memory: the device takes one job"),
        ("castor", {}, {"share": "never"}, "GPU memory: this job was submitted with --share never"),
        ("castor", {}, {"memory_mib": None}, "GPU memory: how much it needs is unknown"),
        ("fifo", {}, {}, "GPU memory: it was started under a policy that does not share"),
    ],
)
def test_who_holds_a_job_to_its_memory_is_said_or_why_nobody_does(
    policy: str, device: dict[str, Any], job: dict[str, Any], said: str
) -> None:
    desk = Desk(policy, report("h1", kind="cuda", type="H200", device=device))
    desk.submit(1, **{"memory_mib": 1000, "iterations": 1000, "expected_s": 1000.0, **job})
    lines = [render(reason) for reason in views.sharing_reasons(desk.engine, desk.job(1))]
    assert sum(said in line for line in lines) == 1, lines

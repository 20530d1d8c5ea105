"""Metrics of a real controller and a real agent while a real job keeps its device busy."""

from __future__ import annotations

import re
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.live.cluster import PATIENCE_S, Cluster

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
T = TypeVar("T")
BUSY = "while True: sum(range(10_000))"


def until(what: Callable[[], T | None]) -> T:
    """What it returns, once that is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := what()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return found


def page(log: Path) -> str:
    """What the daemon with this log says to Prometheus; it named its address when it started."""
    url = until(lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", log.read_text()))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url.group(), timeout=within_s(60)) as answer:
        return str(answer.read().decode())


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else None


def test_the_device_of_a_running_job_is_seen_to_work(cluster: Cluster) -> None:
    cluster.add_controller("metrics.controller_listen=0").start()
    cluster.add_agent("h1", "agent.devices=cpu:1", "metrics.agent_listen=0", "metrics.every_s=0.2").start()
    cluster.send("busy", (sys.executable, "-c", BUSY))
    device = "h1/cpu0"

    def working() -> wire.ReadingView | None:
        """The device's newest reading, once the job is on it and it shows."""
        (node,) = cluster.client.ask(wire.ListNodes()).nodes
        (shown,) = (each for each in node.devices if each.device_id == device)
        is_at_work = shown.jobs == ("1",) and shown.reading and (shown.reading.values["CPU"] or 0.0) > 0.05
        return shown.reading if is_at_work else None

    reading = until(working)
    assert reading.source == "cpu" and 0.0 < (reading.values["SMACT"] or 0.0) <= 1.0
    assert reading.age_s < PATIENCE_S
    assert reading.values["TENSO"] is None and reading.note

    cores = f'cotenant_device_cpu_cores{{device="{device}",host="h1",source="cpu"}}'
    smact = f'cotenant_device_active_ratio{{device="{device}",host="h1",indicator="SMACT",source="cpu"}}'

    def at_work() -> str | None:
        """The agent's page, once the job is seen at work: a busy machine may give it no core for a while."""
        text = page(cluster.folder / "agent-h1.log")
        has_tenant = value(text, f'cotenant_device_tenants{{device="{device}",host="h1"}}') == 1
        return text if has_tenant and value(text, cores) and value(text, smact) else None

    agent = until(at_work)
    assert (value(agent, cores) or 0.0) > 0.0 and 0.0 < (value(agent, smact) or 0.0) <= 1.0
    assert 'indicator="TENSO"' not in agent, "what is missing has no series"
    assert value(agent, 'cotenant_agent_connected{host="h1"}') == 1

    controller = page(cluster.folder / "controller.log")
    assert value(controller, "cotenant_jobs_submitted_total") == 1
    assert value(controller, 'cotenant_devices{use="alone"}') == 1
    assert value(controller, "cotenant_queue_wait_seconds_count") == 1
    assert (value(controller, "cotenant_decision_seconds_count") or 0.0) > 0.0

    cluster.client.ask(wire.ChangeJobs(verb="cancel", job_ids=(JobId("1"),)))

    def ended() -> bool | None:
        (job,) = cluster.client.ask(wire.ListJobs(include_ended=True)).jobs
        return True if job.phase is Phase.CANCELLED else None

    until(ended)

    def counted() -> str | None:
        """The controller's page, once it is a new one: two within a moment are the same."""
        text = page(cluster.folder / "controller.log")
        return text if value(text, 'cotenant_jobs_ended_total{phase="cancelled"}') == 1 else None

    assert value(until(counted), 'cotenant_devices{use="free"}') == 1

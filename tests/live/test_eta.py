"""A dozen short real jobs on one CPU slot: what was told of them is kept, compared, and lives through a
restart of the controller."""

from __future__ import annotations

import sys

from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s
from tests.live.cluster import Cluster, all_done

JOBS = 12


def submit(cluster: Cluster, number: int) -> JobId:
    argv = (sys.executable, "-c", f"import time; time.sleep({0.2 + 0.1 * (number % 4)})")
    return cluster.send(f"short-{number}", argv, expected_s=0.4)


def told(cluster: Cluster) -> wire.Etas:
    return cluster.client.ask(wire.ListEtas())


def outcomes(reply: wire.Etas) -> int:
    return sum(each.predictions + each.uncalibrated for each in reply.scores if each.kind == "submission")


def test_what_is_told_of_real_jobs_is_compared_with_what_comes(cluster: Cluster) -> None:
    controller = cluster.add_controller("controller.eta_share=1.0")
    controller.start()
    ids = [submit(cluster, number) for number in range(JOBS)]
    cluster.add_agent("h1", "agent.devices=cpu:1").start()
    seen: list[wire.Etas] = []

    def look(_: object) -> bool:
        reply = told(cluster)
        if any(eta.finish is not None for eta in reply.etas):
            seen.append(reply)
        return bool(seen)

    cluster.until(look)
    known = [eta for eta in seen[0].etas if eta.finish is not None]
    ends_s = [wall_s(eta.finish.p50_at) for eta in known if eta.finish and eta.finish.p50_at]
    assert ends_s == sorted(ends_s), "of equal jobs who came first ends first"
    assert all("roll-outs of cotenant" in eta.basis for eta in known)
    cluster.until(lambda jobs: all_done(jobs, ids))
    counted = outcomes(told(cluster))
    assert counted >= 1
    controller.kill()
    controller.start()
    assert outcomes(told(cluster)) == counted

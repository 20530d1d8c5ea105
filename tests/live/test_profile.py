"""The profile in place with a real controller, agent, supervisor and job; then the kept one, and the series.

Nothing here asks how fast anything is: that a measured job trains what an undisturbed one trains, and what
was kept for whom.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import ProfileView
from cotenant.controller.wire import clients as wire
from tests.checkpoint.ranks import Warm, launch
from tests.live.cluster import EAGER, PATIENCE_S, Cluster

SCRIPT = Path(__file__).with_name("profiled.py")
T_PROF_S = 7.0
TRIES = 3
"""A profile takes what its seconds give; where others want the cores as well, that may be one s alone."""


def submit(cluster: Cluster, name: str, kind: int) -> JobId:
    """A job of that kind: its code is said to be another one for each."""
    words = ("--seconds", f"{T_PROF_S + 2.0}")
    argv = (sys.executable, str(SCRIPT), "--result", "result.json", *words)
    workdir = cluster.folder / "work"
    workdir.mkdir(exist_ok=True)
    env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(cluster.folder / "tmp")}
    code = f"{kind:064x}"
    return cluster.send(name, argv, workdir=workdir, env=env, batch_size=16, code_sha256=code)


def finished(cluster: Cluster, job_id: JobId) -> tuple[dict[str, Any], ProfileView | None]:
    cluster.until(lambda jobs: jobs[job_id].phase is Phase.DONE)
    result: dict[str, Any] = json.loads((cluster.folder / "work" / "result.json").read_text())
    return result, cluster.shown(job_id).job.profile


def test_a_job_is_profiled_while_it_trains_and_the_next_of_its_kind_is_not(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    cluster.add_controller(f"profiler.seconds={T_PROF_S}").start()
    cluster.add_agent("a", "agent.devices=cpu:1", "agent.heartbeat_s=0.3").start()

    # In place: the job is only watched.
    job_id = submit(cluster, "first", 1)
    result, profile = finished(cluster, job_id)
    assert result["history"] == "0:1"
    assert profile is not None and (profile.source, profile.accumulates) == ("in place", True)
    [point] = profile.points
    assert (point.accumulation_steps, point.sub_batch) == (1, 16) and point.step_s > 0
    assert profile.static_mib is not None and 1 < profile.static_mib <= point.memory_mib
    assert profile.load_s is not None and profile.load_s > 0
    indicators = profile.indicators
    assert {"SMACT", "SMOCC", "GRACT", "CPU", "NETTX", "NETRX"} == {
        name for name, stats in indicators.items() if stats.source is not None
    }
    assert indicators["SMACT"].source in ("cpu", "cgroup") and indicators["FP32A"].mean is None
    assert cluster.shown(job_id).job.attempt == 1, "nothing was started twice"

    # What it trained is what an undisturbed run trains.
    reference = tmp_path / "reference.json"
    steps = ("--result", str(reference), "--steps", str(result["steps"]))
    env = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    launch(warm, SCRIPT, tmp_path, *steps, ranks=1, env=env).wait(deadline_s=PATIENCE_S)
    again = json.loads(reference.read_text())
    assert again["parameters_sha256"] == result["parameters_sha256"]

    # Its like is known: the same profile, given and not measured.
    second = submit(cluster, "second", 1)
    shown = cluster.shown(second).job
    assert shown.profile == profile and shown.profile_given
    cluster.client.ask(wire.ChangeJobs(verb="cancel", job_ids=(second,)))
    known = next(each for each in cluster.client.ask(wire.ListProfiles()).profiles if each.job_id == job_id)
    assert (known.used, known.device_type, known.is_complete) == (1, "cpu", True)

    # The series: one job per configuration, told that it is only measured, ended when it is; it visits more.
    document = series_of_several(cluster)
    assert document["schema"] == "profile/1"
    [one] = document["configurations"]
    assert (one["gpus"], one["hosts"], one["state"]) == (1, 1, "done")
    measured = {point["accumulation_steps"] for point in one["points"]}
    assert {1, 2} <= measured, "how many more there is time for, the machine decides"
    assert document["device_time_s"]["measured"] > T_PROF_S


def series_of_several(cluster: Cluster) -> dict[str, Any]:
    """One in which the only configuration was measured at several s, or the last try."""
    for _ in range(TRIES - 1):
        document = series(cluster)
        if len(document["configurations"][0]["points"]) > 1:
            return document
        print(f"once more, because of {document}")
    return series(cluster)


def series(cluster: Cluster) -> dict[str, Any]:
    """`cotenant profile`, as a person calls it; it queues behind what runs."""
    words = ["-m", "cotenant.controller.cli.main", "profile", "--batch-size", "16", "-o", "json"]
    words += ["--endpoint", cluster.endpoint, "--env", "OMP_NUM_THREADS=1"]
    words += ["--", sys.executable, str(SCRIPT), "--result", "series.json"]
    env = {**os.environ, "COTENANT_CONFIG": str(cluster.folder / "none.toml"), "PYTHONPATH": EAGER}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cluster.folder,
        env=env,
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document

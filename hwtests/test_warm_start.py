"""A rank that was forked from a fork server opens the GPU as a cold one does, and trains to the same bits.

Rule: jobs come through the real controller and agent, without MPS. What a warm
start cannot save (the CUDA context, and what its first kernels load) is in the numbers.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.warm.refusals import SEEN_AT_START
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.wire import clients as wire
from hwtests import clusters, host
from hwtests.device import PASSED_ON, Device
from hwtests.measuring import Measure

pytestmark = pytest.mark.gpu

ROUNDS = 5
"""On a GPU; a dry run, whose times mean nothing, makes one."""
TRIES_MAX = 12
"""Cold starts until the server is ready."""
MAY_PASS = tuple(SEEN_AT_START[code] for code in ("first", "coming", "silent"))
"""Reasons for a cold start that a later start may not meet; any other holds for all starts of this kind."""
TIMEOUT_S = 180.0
SCRIPT = """
import hashlib, json, sys, time
import torch
torch.manual_seed(5)
torch.use_deterministic_algorithms(True)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 8).to(device)
optimizer = torch.optim.AdamW(model.parameters())
first = None
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 64).to(device)).square().mean().backward()
    optimizer.step()
    if first is None:
        torch.cuda.synchronize() if device == "cuda" else None
        first = time.time()
data = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
with open(sys.argv[1], "w") as file:
    json.dump({"device": device, "first": first, "sha256": hashlib.sha256(data).hexdigest()}, file)
"""


@pytest.fixture
def client(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    host.skip_if(host.lacks_cluster())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTENANT_MPS__MODE", "off")
        folder = tmp_path_factory.mktemp("c")
        with clusters.cluster(folder, device) as cluster, Client(cluster.endpoint) as client:
            yield client


def run(
    client: Client, folder: Path, name: str, *, warm: bool
) -> tuple[wire.AttemptView, dict[str, object], float]:
    """Its attempt, what it says, and seconds from its submission to its first step."""
    (folder / "train.py").write_text(SCRIPT)
    result = folder / f"{name}.json"
    env = {each: os.environ[each] for each in PASSED_ON if each in os.environ}
    launch = Launch(
        argv=(sys.executable, str(folder / "train.py"), str(result)),
        workdir=str(folder),
        env={**env, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        warm=warm,
        uid=os.getuid(),
        gid=os.getgid(),
    )
    before_s = time.time()
    job_id = client.ask(wire.Submit(specs=(JobSpec(job_id=JobId("new-0"), launch=launch),))).job_ids[0]
    client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=TIMEOUT_S), timeout_s=TIMEOUT_S + 10)
    shown = client.ask(wire.ShowJob(job_id=job_id))
    assert shown.job.exit_code == 0, shown.job.reason
    said = json.loads(result.read_text())
    return shown.attempts[-1], said, said["first"] - before_s


def await_server(client: Client, folder: Path) -> None:
    """Start jobs until one is warm; skip at the first refusal that is final: nothing was measured then."""
    why = ""
    for number in range(TRIES_MAX):
        attempt, _, _ = run(client, folder, f"try-{number}", warm=True)
        if attempt.launch == "warm":
            return
        why = attempt.launch_why
        if not why.startswith(MAY_PASS):
            pytest.skip(f"jobs start cold here: {why}")
        time.sleep(1.0)  # The server imports torch meanwhile.
    pytest.fail(f"no job started warm, {TRIES_MAX} times: {why}")


def test_a_warm_rank_opens_the_gpu_and_trains_to_the_same_bits(
    client: Client, device: Device, tmp_path: Path, measured: Measure
) -> None:
    await_server(client, tmp_path)
    taken: dict[str, list[float]] = {"cold": [], "warm": []}
    sums = set()
    for number in range(ROUNDS if device.kind == "cuda" else 1):
        for launch in ("cold", "warm"):
            attempt, said, first_s = run(client, tmp_path, f"{launch}-{number}", warm=launch == "warm")
            assert attempt.launch == launch, attempt.launch_why
            assert said["device"] == device.kind
            sums.add(said["sha256"])
            taken[launch].append(first_s)
    for launch, times in taken.items():
        measured(f"{launch} start", statistics.median(times), "s", "submission to first step, median")
    assert len(sums) == 1, "cold and warm runs differ"

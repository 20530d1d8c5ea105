"""A cluster whose controller is a stand-in and whose jobs run here, when and how often a test says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.domain import JobId, JobSpec, Phase, array_of
from cotenant.controller.python import inside
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies


class FakeCluster:
    """Numbers jobs from 7; each runs as soon as somebody waits for it, unless `runs` is off."""

    def __init__(self, controller: StandIn) -> None:
        self.controller = controller
        self.runs = True
        self.specs: dict[JobId, JobSpec] = {}
        self.views: dict[JobId, wire.JobView] = {}
        self.keys: dict[str, tuple[JobId, ...]] = {}
        self.log = b""
        controller.says(wire.Submit, self._submit)
        controller.says(wire.ListJobs, self._list)
        controller.says(wire.WaitJobs, self._wait)
        controller.says(wire.ShowJob, self._show)
        controller.says(wire.ChangeJobs, self._change)
        controller.says(wire.ReadJobLog, self._read)

    @property
    def submissions(self) -> list[wire.Submit]:
        return self.controller.asked_for(wire.Submit)

    def is_now(self, job_id: str, phase: Phase, reason: str = "", code: str = "", **more: Any) -> None:
        spec = self.specs[JobId(job_id)]
        known = {"name": spec.name, "gpus": spec.gpus, "reason_code": code, **more}
        self.views[JobId(job_id)] = replies.job_view(job_id, phase=phase, reason=reason, **known)

    def run(self, job_id: str, attempt: int = 1, phase: Phase | None = None, code: str = "") -> None:
        """An attempt, one rank after the other; what becomes of the job is `phase`, or as its ranks end."""
        spec = self.specs[JobId(job_id)]
        codes = [0]
        if spec.launch.argv[1:3] == ("-m", inside.MODULE):
            env = {**os.environ, "COTENANT_ATTEMPT": str(attempt), "WORLD_SIZE": str(spec.gpus)}
            ranks = range(spec.gpus)
            codes = [inside.main(spec.launch.argv[3:], {**env, "RANK": str(rank)}) for rank in ranks]
        phase = phase or (Phase.FAILED if any(codes) else Phase.DONE)
        reason = "finished" if phase is Phase.DONE else f"it ended as {code or 'failed'}"
        exit_code = {Phase.DONE: 0, Phase.FAILED: max(codes)}.get(phase)
        self.is_now(job_id, phase, reason, code, attempt=attempt, exit_code=exit_code)

    def _submit(self, request: wire.Submit) -> wire.Submitted:
        ids = self.keys.get(request.idempotency_key)
        if ids is None:
            first = 7 + len(self.specs)
            numbers = [str(first + at) for at in range(len(request.specs))]
            if request.array_indices:
                numbers = [f"{first}_{index}" for index in request.array_indices]
            ids = self.keys[request.idempotency_key] = tuple(map(JobId, numbers))
            for job_id, spec in zip(ids, request.specs, strict=True):
                self.specs[job_id] = spec
                self.is_now(job_id, Phase.QUEUED, "first in line", attempt=0)
        return wire.Submitted(request_id=0, job_ids=ids, notes=("it is the first",))

    def _list(self, request: wire.ListJobs) -> Any:
        names = {name: [v for v in self.views if name in (v, array_of(v))] for name in request.job_ids}
        if not all(names.values()):
            return refusal("not-found", f"no job {request.job_ids[0]}")
        found = [self.views[job_id] for ids in names.values() for job_id in ids]
        return replies.jobs(*(job for job in found if not request.states or job.phase in request.states))

    def _wait(self, request: wire.WaitJobs) -> Any:
        assert request.first
        if any(job_id not in self.views for job_id in request.job_ids):
            return refusal("not-found", f"no job {request.job_ids[0]}")
        if self.runs:
            for job_id in request.job_ids:
                if self.views[job_id].phase is Phase.QUEUED:
                    self.run(job_id)
                    break
        found = [self.views[job_id] for job_id in request.job_ids]
        ended = (Phase.DONE, Phase.FAILED, Phase.CANCELLED)
        return replies.jobs(*(job for job in found if job.phase in ended))

    def _show(self, request: wire.ShowJob) -> Any:
        if request.job_id not in self.views:
            return refusal("not-found", f"no job {request.job_id}", hint="it is an array: try 7_0")
        return replies.shown(self.views[request.job_id], self.specs[request.job_id])

    def _change(self, request: wire.ChangeJobs) -> Any:
        ended = (Phase.DONE, Phase.FAILED, Phase.CANCELLED)
        left = [job_id for job_id in request.job_ids if self.views[job_id].phase not in ended]
        if not left:
            return refusal("refused", "it has already ended")
        for job_id in left:
            self.is_now(job_id, Phase.CANCELLED, "cancelled by ada", "cancelled-by")
        return wire.Done(request_id=0, lines=())

    def _read(self, request: wire.ReadJobLog) -> wire.LogPart:
        return wire.LogPart(
            request_id=0,
            job_id=request.job_id,
            attempt=1,
            rank=request.rank,
            data=self.log[request.offset :],
            next_offset=len(self.log),
            at_end=True,
            closed=True,
            attempts=(1,),
            ranks=1,
        )


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "cotenant.toml"))
    (tmp_path / "cotenant.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    stand_in = StandIn(at_home / "c.sock")
    monkeypatch.setenv("COTENANT_CONTROLLER__ENDPOINT", stand_in.endpoint)
    yield FakeCluster(stand_in)
    stand_in.close()

"""Gives hosts the packed trees that jobs run in, a part at a time.

Rule: a host gets the tree of an attempt that was placed on it, as long as that attempt is under way, and no
other.
"""

from __future__ import annotations

from cotenant.controller.domain import ON_DEVICES, HostId, JobId, Phase
from cotenant.controller.store import Core
from cotenant.controller.system.trees import TreeFiles
from cotenant.controller.wire import SNAPSHOT_PART_BYTES_MAX
from cotenant.controller.wire import agents as wire


class TreeService:
    def __init__(self, core: Core, files: TreeFiles | None) -> None:
        self._core, self._files = core, files
        self.fetched: dict[JobId, int] = {}
        """How many bytes of its tree a loading job's host has been sent; never journalled."""

    def part_for(self, host_id: HostId, asked: wire.FetchSnapshot) -> wire.SnapshotPart:
        """The part that a host asks for, or why there is none."""
        data, missing = self._read(host_id, asked)
        jobs = self._core.state.engine.jobs
        self.fetched[asked.job_id] = asked.offset + len(data)
        for each in list(self.fetched):
            if each not in jobs or jobs[each].phase is not Phase.LOADING:
                del self.fetched[each]
        return wire.SnapshotPart(
            job_id=asked.job_id, attempt=asked.attempt, offset=asked.offset, data=data, missing=missing
        )

    def _read(self, host_id: HostId, asked: wire.FetchSnapshot) -> tuple[bytes, str]:
        job = self._core.state.engine.jobs.get(asked.job_id)
        if job is None or job.phase not in ON_DEVICES or job.attempt.number != asked.attempt:
            return b"", f"attempt {asked.attempt} of job {asked.job_id} is over"
        tree, devices = job.spec.launch.snapshot, job.placement.devices if job.placement is not None else ()
        if tree is None or self._files is None or not any(each.startswith(f"{host_id}/") for each in devices):
            return b"", f"no attempt of job {asked.job_id} that starts on {host_id} has a snapshot"
        try:
            key = (job.spec.user, tree.sha256)
            return self._files.read(key, max(0, asked.offset), SNAPSHOT_PART_BYTES_MAX), ""
        except OSError as error:
            return b"", (
                f"the controller that leads has no snapshot {tree.sha256[:12]} of {job.spec.user} "
                f"({error.strerror}): submit it again (cotenant submit --snapshot {tree.kind} ...)"
            )

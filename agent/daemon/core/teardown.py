"""How attempts end: from the last of their processes, or a fault of their GPU, to the report. Pure.

Rule: the agent reports an end once, when it knows everything that decides it. On GPUs that is later than the
last process: their memory has to be back, and their watchers must have told all faults they knew. The agent
then decides from all of it, so the order of the news does not matter.

Devices on which an MPS client was killed without its daemon's help are in quarantine: such a kill can leave
the daemon's server, and its other clients, in an undefined state. The device takes no new attempt until every
co-client that was training there has made a step again, or is gone. Co-clients that never reported a step
cannot prove anything, so the agent does not wait for them. A quarantine is a note like any other: it outlives
the agent, and ends with those it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from cotenant.agent.daemon.core import edge, gpu_faults, notes, quick_failures, reporting
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey, DeviceQuarantine, StepBefore
from cotenant.agent.daemon.core.tenants import Tenants
from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.records import Result, Status
from cotenant.controller.domain import Device, ExitVerdict, JobId, Outcome
from cotenant.controller.domain import events as ev


class Teardown:
    def __init__(self, tenants: Tenants, outbox: reporting.Outbox) -> None:
        self.quarantine = Quarantine(outbox)
        self._tenants = tenants
        self._out = outbox
        self._memory = outbox.memory
        self._faults = gpu_faults.FaultWitnesses(self._memory)
        self._quick = quick_failures.QuickFailures()

    def strike(self, fault: edge.GpuFault, now_s: float, *, gone: AttemptKey | None = None) -> None:
        """Every attempt on the devices learns its role; unless the fault is contained it is told to end.
        `gone`: of this one no process is left."""
        tenants = self._tenants
        for record in list(self._faults.strike(fault, tenants.config.report, list(tenants.live), now_s)):
            key, live = record.key, tenants.live[record.key]
            is_told = record.stop == self._memory.attempts[key].stop
            self._out.keep(notes.Kept(attempt=record))
            self._out.say(f"{name_of(key)}: {fault.why}: told to end", bad=True)
            if key != gone and live.is_there and not is_told and record.stop is not None:
                live.stop_asked_s = now_s
                self._tenants.tell(key, StopNow(save=False, deadline_s=0.0, reason=record.stop.reason))

    def end_attempt(self, result: Result, now_s: float) -> None:
        key = (result.job_id, result.attempt)
        live = self._tenants.live.get(key)
        if live is None or live.releasing is not None:
            return
        spread = self._faults.spread(key, result, self._tenants.config.report, list(self._tenants.live))
        if spread is not None:
            self.strike(spread, now_s, gone=key)
        self._faults.note_end(key, result, now_s)
        self._over(self._memory.attempts[key], result, now_s)

    def _over(self, attempt: Attempt, result: Result, now_s: float) -> None:
        """No process of it is left. On GPUs that is not enough: its memory has to be back, and all faults
        have to be known."""
        live = self._tenants.live[attempt.key]
        live.releasing, live.ended_s, live.connected = result, now_s, False
        gpus = self._tenants.gpus_of(attempt)
        if not gpus:
            self._judge(attempt.key, {})
            return
        if result.unclean:
            self._doubt(attempt, gpus)
        asked = self._quick.note_end(attempt, live, result, now_s)
        self._out.add(
            edge.AwaitMemory(
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                devices=gpus,
                failed=result.verdict.outcome in ("user-failed", "infra-failed"),
                tries_cuda=asked or result.verdict.asks_cuda,
            )
        )

    def memory_known(self, answer: edge.MemoryFree | edge.MemoryHeld) -> None:
        """The devices are free or marked, and their watchers have told all faults until now."""
        key = (answer.job_id, answer.attempt)
        live = self._tenants.live.get(key)
        if live is None or live.releasing is None:
            return
        if isinstance(answer, edge.MemoryHeld):
            for uuid, who in sorted(answer.holders.items()):
                self._out.say(
                    f"{name_of(key)}: {uuid}: {who}; the device is not offered until it is free", bad=True
                )
        self._judge(key, answer.cuda)

    def _judge(self, key: AttemptKey, cuda: Mapping[str, str]) -> None:
        """The verdict on an end, given every fault that was reported by now. `cuda`: as in `MemoryFree`."""
        live, attempt = self._tenants.live[key], self._memory.attempts[key]
        assert live.releasing is not None, f"{name_of(key)} has not ended"
        names = {gpu.local: gpu.device_id for gpu in self._tenants.gpus_of(attempt)}
        tried = {names[uuid]: why for uuid, why in cuda.items() if uuid in names}
        judged = self._faults.judge_end(key, live.releasing, live.ended_s)
        self._tell_end(attempt, gpu_faults.judge_cuda(judged, tried, by_mps=attempt.mps))

    def _doubt(self, attempt: Attempt, gpus: tuple[Device, ...]) -> None:
        """Puts GPUs in quarantine: the attempt's co-clients have to show that the kill did them no harm."""
        for gpu in gpus:
            steps = {
                key: live.status.step
                for key, live in self._tenants.live.items()
                if key != attempt.key
                and live.is_there
                and gpu.device_id in self._memory.attempts[key].devices
                and live.status is not None
                and live.status.first_step is not None
            }
            self.quarantine.raise_for(gpu.local, attempt.job_id, steps)

    def _tell_end(self, attempt: Attempt, result: Result) -> None:
        energy_j = self._tenants.energy_j(attempt)
        self._tenants.keep_energy()  # Before the report: else both could be lost, or counted twice.
        self._tenants.live.pop(attempt.key, None)
        self.quarantine.forget(attempt.key)
        self._tenants.tell_co_tenants()
        device_type = self._tenants.device_type(attempt)
        for event, record in reporting.from_result(
            attempt, result, self._tenants.host_id, device_type, energy_j
        ):
            self._out.report(event, record)
        detail = f": {result.verdict.detail}" if result.verdict.detail else ""
        self._out.say(f"{name_of(attempt.key)}: {result.verdict.outcome}{detail}")

    # --- Without a supervisor's word ---------------------------------------------------------------

    def end(
        self,
        attempt: Attempt,
        outcome: Outcome,
        detail: str,
        *,
        workdir_missing: bool = False,
        host_fault: bool = False,
    ) -> None:
        """The end of an attempt that has no supervisor and no result file."""
        self._tenants.live.pop(attempt.key, None)
        self._tenants.tell_co_tenants()
        ended = ev.AttemptEnded(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            host_id=self._tenants.host_id,
            verdict=ExitVerdict(
                outcome=outcome, detail=detail, workdir_missing=workdir_missing, host_fault=host_fault
            ),
        )
        self._out.report(ended, reporting.add_end(attempt, ended))
        self._out.say(f"{name_of(attempt.key)}: {outcome}: {detail}")

    def clean(self, key: AttemptKey, why: str, *, rebooted: bool = False) -> None:
        """Cleans up after an attempt whose supervisor is gone: its processes are ended, and the result that
        is missing is written. `rebooted`: with all of the host, so it was no process of the job's doing."""
        live = self._tenants.live[key]
        live.cleaning, live.connected = True, False
        status = live.status or Status(job_id=key[0], attempt=key[1])
        result = Result(
            status=status,
            verdict=ExitVerdict(
                outcome="infra-failed", detail=why, ours=why, rule="" if rebooted else "supervisor gone"
            ),
        )
        self._out.say(f"{name_of(key)}: {why}; ending what is left of it", bad=True)
        self._out.add(edge.EndLeftovers(result=result))


def name_of(key: AttemptKey) -> str:
    """Returns the name of an attempt for a person."""
    return f"job {key[0]} attempt {key[1]}"


# --- Quarantine ------------------------------------------------------------------------------------


class Quarantine:
    def __init__(self, outbox: reporting.Outbox) -> None:
        self._out = outbox

    @property
    def _by_uuid(self) -> dict[str, DeviceQuarantine]:
        return self._out.memory.quarantined

    def raise_for(self, uuid: str, after: JobId, steps: Mapping[AttemptKey, int]) -> None:
        """Puts a GPU in quarantine until its co-clients have made a step. `steps`: of the co-clients that
        train there. None of them: no other client can be harmed."""
        before = self._by_uuid.get(uuid)
        waits = {each.key: each for each in before.waits} if before is not None else {}
        waits |= {key: StepBefore(key=key, step=step) for key, step in steps.items()}
        if steps:
            doubt = DeviceQuarantine(after=after, waits=tuple(waits[key] for key in sorted(waits)))
            self._out.keep(notes.Doubted(uuid=uuid, doubt=doubt))

    def note_step(self, key: AttemptKey, step: int) -> None:
        self._settle(lambda each: each.key == key and step > each.step)

    def forget(self, key: AttemptKey) -> None:
        self._settle(lambda each: each.key == key)

    def only(self, live: Collection[AttemptKey]) -> None:
        """No co-client is left."""
        self._settle(lambda each: each.key not in live)

    def _settle(self, is_over: Callable[[StepBefore], bool]) -> None:
        for uuid, doubt in list(self._by_uuid.items()):
            left = tuple(each for each in doubt.waits if not is_over(each))
            if left != doubt.waits:
                rest = msgspec.structs.replace(doubt, waits=left) if left else None
                self._out.keep(notes.Doubted(uuid=uuid, doubt=rest))

    def laid_over(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        """The devices, those in quarantine marked as suspect. Worse states and their notes stay."""
        texts = {uuid: _text(doubt) for uuid, doubt in self._by_uuid.items()}
        return tuple(
            msgspec.structs.replace(device, state="suspect", healthy=False, note=texts[device.local])
            if device.local in texts and device.state in ("ok", "suspect")
            else device
            for device in devices
        )


def _text(doubt: DeviceQuarantine) -> str:
    jobs = ", ".join(sorted({each.key[0] for each in doubt.waits}))
    return (
        f"an MPS client of job {doubt.after} was killed without its daemon's help: waiting for job {jobs} "
        "to make a step"
    )

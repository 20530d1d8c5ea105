"""A cluster of twelve jobs in every situation: a real controller whose time is set by hand, and which a
stand-in's socket asks. What hosts say is played; what the controller makes of it is its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cotenant.controller.domain import (
    AttemptNo,
    Capabilities,
    Dependency,
    ExitVerdict,
    Followed,
    HostId,
    JobId,
    Launch,
    SeenLength,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import agents, clients
from tests.building.hosts import cpu, gpu, host
from tests.controller.building import profile
from tests.controller.station import ADMIN, ALICE, BOB, Station, job

BEGAN_S: Final = 1_763_625_600.0
"""2025-11-20T08:00:00Z: when the controller was started."""
GPU: Final[dict[str, Any]] = {"gpu_type": "H200"}
ZERO_CODE: Final = ("progress", "accumulate", "checkpoint")
DEVICES_OF: Final = {"gpu1": 2, "gpu2": 2, "cpu1": 2, "old": 1, "spare": 1}


class TwelveJobs(Station):
    """Twelve jobs of two people, on five hosts of which two take no work; 13 minutes after the start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, wall_s=BEGAN_S, policy="castor")
        self._sequences: dict[str, int] = {}
        self._beats = 0
        self._join_hosts()
        self._end_three()
        self._run_four()
        self._let_five_wait()
        self.ask(clients.ReserveDevices(
            gpus=1, from_unix_s=BEGAN_S + 86_400.0, length_s=7200.0, every="day", user="bob",
        ))  # fmt: skip
        self.ask(clients.ChangeNode(verb="drain", host_id=HostId("spare")))
        self.ask(clients.ChangeNode(verb="lost", host_id=HostId("old")))

    def answer(self, body: clients.AnyRequest) -> Any:
        """What an administrator is told; None: nothing yet."""
        address = self.post(body, ADMIN)
        self.settle()
        return next(iter(self.answers(address)), None)

    # --- What happened -----------------------------------------------------------------------------

    def _join_hosts(self) -> None:
        for name, devices in DEVICES_OF.items():
            made = [
                gpu(f"{name}/{at}", f"GPU-{name}-{at}", max_tenants=2)
                if name.startswith("gpu")
                else cpu(f"{name}/cpu{at}", memory_mib=8000, max_tenants=2)
                for at in range(devices)
            ]
            if name == "gpu2":
                bad = {"state": "suspect", "healthy": False, "note": "XID 79: it has fallen off the bus"}
                made.append(gpu("gpu2/2", "GPU-gpu2-2", **bad))
            report = host(name, *made, cpus=16, memory_mib=64_000, address=f"10.0.0.{len(name)}")
            hello = agents.Hello(session="s1", report=report, attempts=(), followed=Followed())
            self.agent_says(f"agent-{name}".encode(), hello)

    def _end_three(self) -> None:
        """1 is done, 2 has failed, 3 was cancelled."""
        on_gpus: dict[str, Any] = {"gpu_type": "H200", "memory_mib": 9000}
        one = self.submit(ALICE, name="train", organisation="vision", **on_gpus)
        two = self.submit(BOB, name="eval", organisation="speech", **on_gpus)
        three = self.submit(ALICE, name="sweep", hold=True)
        for each in (one, two):
            self._begin(each)
        self._pass(120)
        self._progress(one, step=99, total=100, step_s=1.2)
        self._end(one, ExitVerdict(outcome="finished", exit_code=0), step=100)
        self._end(
            two, ExitVerdict(outcome="user-failed", exit_code=1, detail="ValueError: no such file"), step=7
        )
        self.ask(clients.ChangeJobs(verb="cancel", job_ids=(three,)), ALICE)

    def _run_four(self) -> None:
        """4 has two GPUs alone; 5 and 7 share one, 7 accumulates; 6 is elastic and was preempted once."""
        four = self.submit(ALICE, name="large", gpus_min=2, gpus_max=2, expected_s=7200.0, **GPU)
        self._begin(four, batch=64)
        self._progress(four, step=40, total=9000, step_s=0.5)
        self._tell(four, ev.CheckpointDurable, step=30)
        self._run_beside_others(ALICE, "first")
        six = self.submit(
            BOB, name="elastic", job_class="spot", gpus_min=1, gpus_max=4, batch_size=16, resumable=True,
            iterations=5000, organisation="speech", share="never", **GPU,
        )  # fmt: skip
        self._begin(six)
        self._progress(six, step=90, total=5000, step_s=0.7)
        self._run_beside_others(BOB, "second")
        self._pass(300)
        self.ask(clients.ChangeJobs(verb="preempt", job_ids=(six,)), BOB)
        self._tell(six, ev.CheckpointDurable, step=95)
        self._end(six, ExitVerdict(outcome="stopped"), step=95)
        self._pass(60)

    def _run_beside_others(self, who: Identity, name: str) -> None:
        """A job of a known profile: two of its kind fit on a GPU if one of them takes its batch in parts."""
        points = ((1, 0.5, 50_000.0), (2, 0.52, 28_000.0), (4, 0.55, 16_000.0), (32, 1.0, 4_000.0))
        launch = Launch(argv=("python", f"{name}.py"), workdir="/tmp", zero_code=ZERO_CODE)
        job_id = self.submit(
            who, name=name, launch=launch, memory_mib=50_000, batch_size=32, iterations=6000,
            expected_s=2400.0, profile=profile(32, *points, duty=0.2), **GPU,
        )  # fmt: skip
        self._begin(job_id, batch=32)
        self._progress(job_id, step=200, total=6000, step_s=0.45)

    def _let_five_wait(self) -> None:
        """8 is held, 9 waits for 4, 10 is an array of three, 13 is promised an end, 14 begins tomorrow."""
        self.submit(ALICE, name="held", hold=True, priority=-5)
        self.submit(
            BOB, name="after", after=(Dependency(job_id=JobId("4")),), notify=("end", "ann@example.org")
        )
        tasks = tuple(
            job(f"task{at}", job_id=JobId(f"new-{at}"), gpus_min=2, gpus_max=2, **GPU) for at in range(3)
        )
        self.ask(clients.Submit(specs=tasks, array_indices=(0, 1, 2)), ALICE)
        promised = job("promised", expected_s=600.0, load_s=10.0, job_class="hp", **GPU)
        self.ask(clients.Submit(specs=(promised,), promise=clients.PromiseAsked()), ALICE)
        self.submit(BOB, name="tomorrow", begin_s=BEGAN_S + 90_000.0, gpus_min=2, gpus_max=2)
        self._pass(240)

    # --- As agents ---------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Time passes. All hosts but `old` say that they are there; the engine is woken when it wants."""
        for _ in range(int(seconds)):
            self._beats += 1
            for name in DEVICES_OF:
                if name != "old":
                    self.agent_says(
                        f"agent-{name}".encode(), agents.Heartbeat(beat=self._beats, session="s1")
                    )
            alarm_s = self.core.state.engine.next_alarm_s
            if alarm_s is not None and alarm_s <= self.core.clock.now_s():
                self.core.happen(ev.AlarmRang())
            self.tick(1.0)

    def _progress(
        self, job_id: JobId, step: int, total: int, step_s: float, loss: float | None = None
    ) -> None:
        """What a heartbeat of its host says of a job's training."""
        known = self.core.state.engine.jobs[job_id]
        length = SeenLength(steps=total)
        said = agents.AttemptProgress(
            job_id=job_id,
            attempt=AttemptNo(known.attempt.number),
            step=step,
            step_s=step_s,
            loss=loss,
            length=length,
        )
        self._beats += 1
        beat = agents.Heartbeat(beat=self._beats, session="s1", progress=(said,))
        assert self.agent_says(f"agent-{min(known.attempt.hosts_left)}".encode(), beat)

    def _tell(self, job_id: JobId, kind: type[Any], **fields: Any) -> None:
        """The agents of the job's hosts say it."""
        known = self.core.state.engine.jobs[job_id]
        for host_id in sorted(known.attempt.hosts_left):
            event = kind(job_id=job_id, attempt=AttemptNo(known.attempt.number), host_id=host_id, **fields)
            sequence = self._sequences[host_id] = self._sequences.get(host_id, 0) + 1
            assert self.agent_says(f"agent-{host_id}".encode(), agents.Report(sequence=sequence, event=event))

    def _begin(self, job_id: JobId, batch: int | None = None) -> None:
        """Its processes start, say hello and finish their first step."""
        self._pass(5)
        assert self.core.state.engine.jobs[job_id].attempt.hosts_left, f"{job_id} has not started"
        self._tell(job_id, ev.AttemptStarted)
        can = Capabilities(accumulates=batch is not None)
        self._tell(job_id, ev.CapabilitiesSeen, resumable=True, capabilities=can, step=0)
        self._pass(8)
        self._tell(job_id, ev.FirstStepDone, step=1)

    def _end(self, job_id: JobId, verdict: ExitVerdict, step: int) -> None:
        self._tell(job_id, ev.AttemptEnded, verdict=verdict, step=step)

"""A controller without its socket: time is set by hand, messages are caught, commits are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cotenant.controller.api import About, RequestHandlers, TreeRequests
from cotenant.controller.domain import (
    Capabilities,
    ExitVerdict,
    Followed,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    LimitSettings,
    PolicySettings,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import EngineConfig, MakePolicy
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.notices import ChildDeliveries, DeliveryResult, Notifier, OwnerRequests
from cotenant.controller.policies import registry
from cotenant.controller.slurm.alloc.requests import AllocationRequests
from cotenant.controller.store import (
    Clock,
    Core,
    Database,
    Decided,
    Effect,
    Journal,
    Poisoned,
    SqliteDatabase,
    StorageError,
    Stuck,
    WritingConnection,
    let_follow,
)
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.system.sections import NotifySettings, SnapshotSettings
from cotenant.controller.system.trees import TreeFiles
from cotenant.controller.wire import agents, clients, decode
from tests.building.hosts import cpu, host
from tests.building.journals import NO_RESERVE

ADMIN = Identity(name="root", role="admin", uid=0, gid=0)
ALICE = Identity(name="alice", role="user", uid=1001, gid=1001, groups=(1001, 2000))
BOB = Identity(name="bob", role="user", uid=1002, gid=1002)


class CaughtDeliveries(ChildDeliveries):
    """Deliveries that a test carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[dict[str, Any], Callable[[DeliveryResult], None]]] = []

    def start(self, argv: Sequence[str], data: bytes, then: Callable[[DeliveryResult], None]) -> None:
        self.waiting.append((msgspec.json.decode(data), then))


class Station:
    """Core, agents' link and clients' desk over one journal folder."""

    def __init__(
        self,
        folder: Path,
        *,
        wall_s: float = 1_000.0,
        policy: str = "fifo",
        make_policy: MakePolicy = registry.make,
        snapshot_every: int = 20_000,
        lease_s: float | None = 300.0,
        disk_bytes_min: int = NO_RESERVE,
        endpoint: str = "ipc:///x",
        keep_ended: int = 10_000,
        database: Database | None = None,
        writing: WritingConnection | None = None,
        notify: NotifySettings | None = None,
        snapshots: SnapshotSettings | None = None,
        people: LimitSettings = LimitSettings(),  # noqa: B008
        **limits: Any,
    ) -> None:
        """`database`, `writing`: of the journal, if it is not a file in the folder. `people`: of users.
        `limits`: as `RequestHandlers` takes them, and `why_unreached` of the notifier."""
        self.time_s = 0.0
        self.wall_s = wall_s
        self.handed: list[Sequence[Effect]] = []
        self.failures: list[StorageError] = []
        self.sent: list[tuple[bytes, bytes]] = []
        self.gone: set[bytes] = set()
        self.stopped = False
        self.heard: list[Decided] = []
        """All that was decided, in order."""
        self._rebuilds = self._requests = 0
        self.journal = Journal(
            database or SqliteDatabase(folder, disk_bytes_min=disk_bytes_min),
            writing=writing,
            commit_every_ms=0.0,
            hand_over=self.handed.append,
            on_failure=self.failures.append,
        )
        self.core = Core(
            self.journal,
            make_policy,
            EngineConfig(policy=PolicySettings(name=policy), keep_ended=keep_ended, limits=people),
            package="1.2.3",
            wall_s=wall_s,
            snapshot_every=snapshot_every,
            clock=self._clock,
        )
        self._open_peers(
            folder, notify or NotifySettings(), snapshots or SnapshotSettings(), endpoint, lease_s, limits
        )

    def _open_peers(
        self,
        folder: Path,
        notify: NotifySettings,
        snapshots: SnapshotSettings,
        endpoint: str,
        lease_s: float | None,
        limits: dict[str, Any],
    ) -> None:
        self.secrets = Secrets(folder / "secrets")
        self.trees = TreeFiles(folder / "trees")
        self.link = AgentExecutor(
            self.core, self._send, self.secrets, lease_s=lease_s, silent_after_s=15.0, trees=self.trees
        )
        self.deliveries = CaughtDeliveries()
        why_unreached = limits.pop("why_unreached", lambda smtp: "")
        self.notifier = Notifier(self.core, self.link, self.secrets, notify, self.deliveries, why_unreached)
        trees = TreeRequests(self.core, self.trees, snapshots, run=lambda work: work())
        about = About(version="1.2.3", endpoint=endpoint, started_s=0.0)
        self.desk = RequestHandlers(
            self.core,
            self.link,
            self._send,
            self.secrets,
            about,
            self._stop,
            more=(
                AllocationRequests(self.core, about.endpoint, {}),
                self.notifier,
                OwnerRequests(self.core, self.notifier),
                trees,
            ),
            tells=self.notifier,
            trees=trees,
            **limits,
        )

    def _clock(self, start_s: float) -> Clock:
        return Clock(start_s, monotonic=lambda: self.time_s, wall=lambda: self.wall_s + self.time_s)

    def _send(self, address: bytes, frame: bytes) -> bool:
        if address in self.gone:
            return False
        self.sent.append((address, frame))
        return True

    def _stop(self) -> None:
        self.stopped = True

    def settle(self) -> None:
        """Wait for the disk, and let what became durable have its effects."""
        self.seal()
        self.journal.flush()
        while self.handed or self.failures:
            let_follow(self.handed.pop(0) if self.handed else (), self.link.carry_out)
            if self.failures:
                instead = self.core.commit_failed(self.failures.pop(0))
                self._believe()
                let_follow(instead, self.link.carry_out)

    def seal(self) -> None:
        """The end of a message, as in the controller's loop."""
        decided = self.core.take_decided()
        self.heard += decided
        self.desk.settle(decided)
        self._believe()
        let_follow(self.core.seal(), self.link.carry_out)

    def _believe(self) -> None:
        if self.core.rebuilds != self._rebuilds:
            self._rebuilds = self.core.rebuilds
            self.link.rebuilt()
            self.notifier.rebuilt()
            self.desk.rebuilt()

    def tick(self, passed_s: float) -> None:
        self.time_s += passed_s
        self.link.tick()
        self.notifier.tick()
        self.desk.tick()
        self.settle()

    # --- As a client -------------------------------------------------------------------------------

    def post(self, body: clients.AnyRequest, who: Identity = ADMIN) -> bytes:
        """Send a request and return the address its answer will go to; nothing is durable yet."""
        self._requests += 1
        address = f"client-{self._requests}".encode()
        self.desk.ask(address, who, clients.Request(request_id=self._requests, body=body))
        self.seal()
        return address

    def answers(self, address: bytes) -> list[Any]:
        return [decode(frame, clients.AnyReply) for to, frame in self.sent if to == address]

    def ask(self, body: clients.AnyRequest, who: Identity = ADMIN) -> Any:
        address = self.post(body, who)
        self.settle()
        (answer,) = self.answers(address)
        return answer

    def submit(self, who: Identity = ALICE, **fields: Any) -> JobId:
        answer = self.ask(clients.Submit(specs=(job(**fields),)), who)
        assert isinstance(answer, clients.Submitted), answer
        return answer.job_ids[0]

    # --- As an agent -------------------------------------------------------------------------------

    def agent_says(self, address: bytes, message: agents.FromAgent, who: Identity = ADMIN) -> bool:
        try:
            return self.link.heard(address, who, message)
        except (Poisoned, Stuck):
            return False
        finally:
            self.settle()

    def join(self, name: str = "h1", devices: int = 1, **more: Any) -> bytes:
        """A host joins; returns its address."""
        address = f"agent-{name}".encode()
        self.agent_says(address, hello(name, devices, **more))
        return address

    def told(self, address: bytes, kind: type) -> list[Any]:
        """What an agent was told, of one type."""
        messages: list[Any] = [decode(frame, agents.ToAgent) for to, frame in self.sent if to == address]
        return [message for message in messages if isinstance(message, kind)]

    def commands(self, address: bytes, kind: type = StartAttempt) -> list[Any]:
        obeyed = [obey.command for obey in self.told(address, agents.CommandDelivery)]
        return [command for command in obeyed if isinstance(command, kind)]

    def close(self) -> None:
        if self.core.stuck:
            self.journal.rewind()
        self.journal.close()


def job(name: str = "job", **fields: Any) -> JobSpec:
    launch = fields.pop("launch", Launch(argv=("python", "train.py"), workdir="/tmp"))
    return JobSpec(job_id=fields.pop("job_id", JobId("new-0")), name=name, launch=launch, **fields)


def report(name: str = "h1", devices: int = 1, **more: Any) -> HostReport:
    return host(name, *(cpu(f"{name}/{at}", memory_mib=8_000) for at in range(devices)), **more)


def hello(name: str = "h1", devices: int = 1, session: str = "s1", **more: Any) -> agents.Hello:
    more.setdefault("followed", Followed())  # An agent that has not obeyed anybody before.
    return agents.Hello(session=session, report=report(name, devices), attempts=(), **more)


def run_one(
    station: Station, address: bytes, job_id: JobId, *, until: str = "end", says_no: bool = False
) -> None:
    """Play an agent that runs a job: `until` is `start`, `hello`, `step` or `end`. says_no: the job's library
    cannot save it, whatever its user says."""
    job = station.core.state.engine.jobs[job_id]
    attempt, can = job.attempt.number, job.spec.resumable is True and not says_no
    host_id = HostId(address.decode().removeprefix("agent-"))
    named: dict[str, Any] = {"job_id": job_id, "attempt": attempt, "host_id": host_id}
    events: dict[str, ev.FromAttempt] = {
        "start": ev.AttemptStarted(**named),
        "hello": ev.CapabilitiesSeen(
            **named, resumable=can, capabilities=Capabilities(accumulates=can), step=0
        ),
        "step": ev.FirstStepDone(**named, step=1),
        "end": ev.AttemptEnded(**named, verdict=ExitVerdict(outcome="finished", exit_code=0), step=9),
    }
    for name, event in events.items():
        sequence = station.journal.reports().get(host_id, 0) + 1
        assert station.agent_says(address, agents.Report(sequence=sequence, event=event))
        if name == until:
            return

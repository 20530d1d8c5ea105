"""A whole cluster from one seed: jobs, users, faults, and the promises watched at every step.

Rule: what is true is kept here, by the fake ranks; what the controller believes is only compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from cotenant.agent.daemon.core.edge import DevicesChanged, GpuFault
from cotenant.agent.ipc.records import Order
from cotenant.controller.domain import (
    ENDED,
    LEAVING,
    AnyCommand,
    Booking,
    Device,
    DeviceId,
    Job,
    JobId,
    JobSpec,
    Launch,
    Phase,
    PolicySettings,
    Preempt,
    render_whole,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import EngineConfig
from cotenant.controller.loop import ControllerLoop
from cotenant.controller.policies import registry
from cotenant.controller.wire import pack, unpack
from tests.controller.building import profile, report
from tests.controller.watching import Watcher
from tests.simulation.clockwork import Clockwork
from tests.simulation.headquarters import Headquarters
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.paper import Pages
from tests.simulation.training import Key, Nature, Rank, Storage, Training

LEASE_S = 40.0
SILENT_AFTER_S = 6.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of."""

    faults: int = 18
    faults_s: float = 300.0
    """Faults happen in this time; then everything works again."""
    patience_s: float = 4000.0
    """How long after that the cluster may take to get everything done."""
    kind: Literal["mixed", "gentle", "storm", "restored", "elastic", "classes", "reserved"] = "mixed"
    """gentle: only faults that running jobs must not notice; storm: many, and messages from long ago."""
    jobs: int = 10
    policies: tuple[str, ...] = ()
    """One of them, by the seed; empty: one of those of old."""
    gpu_faults: int = 0
    """Faults of GPUs that are shared by way of MPS, under a policy that shares."""
    restores: int = 0
    """How often the controller's journal is put back from a copy."""
    elastic: bool = False
    """Jobs take more and fewer devices, under a policy that resizes them every few seconds."""
    bookings: int = 0
    """Reservations that users make for some time."""
    jobs_after: int = 0
    """Submitted right after each restore, when their numbers may still be in use on hosts."""

    @property
    def gentle(self) -> bool:
        return self.kind == "gentle"


def plan_of(seed: int) -> Plan:
    """Every fourth seed is gentle, every fourth a storm."""
    if seed % 4 == 1:
        return Plan(kind="gentle")
    plan = Plan(kind="storm", faults=45) if seed % 4 == 3 else Plan()
    return msgspec.structs.replace(plan, gpu_faults=20, jobs=20) if seed % 5 == 1 else plan


NAMES = """
fifo sjf srtf srtf-full ssf f1 wfp3 unicep qssf slurm-multifactor scorer rltune srsf tiresias las
interval interval-60 interval-360 interval-600 patient castor cotenant castor-cost sjf-ffs lucid pcs
max-min afs-l themis lazer yarn-cs fgd lyra chronus gfs gfs-e gfs-d gfs-s gfs-p gfs-sp gfs-rise
"""
POLICIES = tuple(name for name in NAMES.split() if not registry.lacks(name))
"""To change to; in an order of their own, so that a seed stays the run that it was."""


class Broken(AssertionError):
    """A promise was broken; the text has the seed and the end of the trace."""


class Cluster:
    def __init__(
        self,
        seed: int,
        plan: Plan | None = None,
        *,
        loud: bool = False,
        make_loop: type[ControllerLoop] = ControllerLoop,
    ) -> None:
        self.plan = plan if plan is not None else plan_of(seed)
        self.name = f"{seed}" if plan is None or plan == plan_of(seed) else f"{seed}:{plan.kind}"
        self.clock = Clockwork(seed, loud=loud)
        self.chance = self.clock.chance
        self.network = Network(self.clock)
        self.storage = Storage()
        self.datagram_loss = 0.0 if self.plan.gentle else self.chance.choice((0.0, 0.0, 0.02))
        self.start_failures = 0.0 if self.plan.gentle else self.chance.choice((0.0, 0.02))
        self.policy = self.chance.choice(
            ("srtf", "castor", "fifo", "sjf") if not self.plan.gentle else ("fifo",)
        )
        if self.plan.gpu_faults:
            self.policy = "castor"
        if self.plan.policies:
            self.policy = self.plan.policies[seed % len(self.plan.policies)]
        settings = PolicySettings(
            name=self.policy,
            ageing_s=300.0,
            stop_deadline_s=20.0,
            infra_retries=5,
            back_off_s=1.0,
            resize_lease_s=3.0,
        )
        every_s = self.chance.choice((8.0, 20.0, 60.0))
        # Half of the worlds profile their jobs in place: turns of s among stops, saves and losses.
        config = EngineConfig(policy=settings, checkpoint_every_s=every_s, profile_s=15.0 * (seed % 2))
        self.headquarters = Headquarters(
            self.clock,
            self.network,
            config,
            lease_s=LEASE_S,
            silent_after_s=SILENT_AFTER_S,
            make_loop=make_loop,
        )
        self.headquarters.watch = self._decided
        self.machines = {m.name: m for m in self._make_machines()}
        self.natures: dict[str, Nature] = {}
        """By submission: its name, which is the job's, whatever its number."""
        self.answered: set[int] = set()
        """Submissions that have been acknowledged, and the jobs that they became."""
        self.accepted: set[str] = set()
        self.trainings: dict[tuple[str, int, str], Training] = {}
        self.living: dict[str, Counter[tuple[str, int, str]]] = {}
        """Job -> live ranks by attempt."""
        self.tenants: dict[DeviceId, list[Training]] = {}
        """Attempts that truly have a live rank on the device."""
        self.events: Counter[str] = Counter()
        self.faults_over = False
        self.lost_by_admin: set[str] = set()
        self.struck_alone: set[JobId] = set()
        """Jobs that had a GPU to themselves when a program's fault struck it: their own failure."""

    def _make_machines(self) -> list[Machine]:
        made = []
        for name, devices, domain in (("a", 2, "a"), ("b", 2, "nfs"), ("c", 2, "nfs"), ("d", 2, "nfs")):
            shown = report(name, devices, checkpoint_domain=domain)
            if self.plan.gpu_faults:
                shown = report(
                    name, devices, checkpoint_domain=domain, kind="cuda", device={"sharing": "mps"}
                )
            made.append(Machine(self.clock, self.network, self, shown, domain))
        return made

    # --- The run -----------------------------------------------------------------------------------

    def run(self) -> Cluster:
        """Play it to the end.

        Raises:
            Broken: a promise was not kept.
        """
        try:
            self._prepare()
            self._play()
        except AssertionError as error:
            tail = "\n".join(self.clock.lines[-60:])
            raise Broken(
                f"seed {self.name}: {type(error).__name__}: {error}\n"
                f"with its trace: COTENANT_SIM_SEED={self.name} python -m pytest -s tests/simulation\n{tail}"
            ) from error
        return self

    def _prepare(self) -> None:
        self.headquarters.start()
        if self.plan.elastic:
            short: dict[str, str | int | float | bool] = {"min_lease_s": 3.0, "lease_factor": 0.0}
            self.headquarters.happen(ev.PolicyChanged(name=self.policy, parameters=short, by="root"))
        for machine in self.machines.values():
            self.clock.soon(2.0, machine.start_agent)
        for number in range(1, self.plan.jobs + 1):
            self.clock.after(self.chance.uniform(1.0, 0.7 * self.plan.faults_s), self._submit, number)
        for _ in range(self.plan.faults):
            self.clock.after(self.chance.uniform(5.0, self.plan.faults_s), self._fault)
        for _ in range(self.plan.gpu_faults):
            self.clock.after(self.chance.uniform(20.0, self.plan.faults_s), self._fault_gpu)
        for number in range(self.plan.bookings):
            self.clock.after(self.chance.uniform(1.0, self.plan.faults_s), self._reserve, number)
        for number in range(self.plan.restores):
            # One after another: what a copy lacks must not come back with the next.
            copied_s = (number + self.chance.uniform(0.1, 0.5)) * self.plan.faults_s / self.plan.restores
            self.clock.after(copied_s, self._back_up, number)
        self.clock.after(self.plan.faults_s, self._heal)

    def _play(self) -> None:
        end_s = self.plan.faults_s + self.plan.patience_s
        while not (self.faults_over and self._is_at_rest()):
            assert self.clock.step()
            assert self.clock.now_s < end_s, (
                f"not at rest {self.plan.patience_s} s after the last fault: " + ("; ".join(self._unrest()))
            )
        self._check_end()

    # --- Jobs --------------------------------------------------------------------------------------

    def _submit(self, number: int) -> None:
        """A user submits, and again until the answer comes; the key makes it one job."""
        if number in self.answered:
            return
        if not self.headquarters.is_up:
            self.clock.after(2.0, self._submit, number)
            return
        name = f"key-{number}"
        engine = self.headquarters.engine
        known = next((job for job in engine.jobs.values() if job.spec.name == name), None)
        job_id = known.job_id if known is not None else JobId(str(engine.ledger.next_number))
        spec = known.spec if known is not None else self._spec(job_id, name)
        event = unpack_event(ev.JobArrived(spec=spec))
        self.headquarters.happen(event, then=lambda: self._accepted(number, job_id, name))
        self.clock.after(3.0, self._submit, number)

    def _reserve(self, number: int) -> None:
        """A user reserves devices, if they can be had."""
        if not self.headquarters.is_up or self.headquarters.core.stuck:
            return
        engine, now_s = self.headquarters.engine, self.headquarters.engine.now_s
        from_s = now_s + self.chance.choice((0.0, 5.0, 20.0, 60.0))
        booking = Booking(
            booking_id=f"r{number}",
            user=self.chance.choice(("ann", "bob")),
            gpus=self.chance.choice((1, 1, 2, 3)),
            from_s=from_s,
            until_s=from_s + self.chance.choice((10.0, 60.0, 200.0)),
        )
        if isinstance(engine.bookings.offer(booking, now_s), tuple):
            self.headquarters.happen(ev.BookingMade(booking=booking, by=booking.user))

    def _check_bookings(self) -> None:
        """Whoever else is on a reserved device leaves it, and could be asked to."""
        engine = self.headquarters.engine
        for each in engine.ledger.bookings.open.values():
            for device_id in each.own if engine.now_s >= each.from_s else ():
                for job in (engine.jobs[job_id] for job_id in engine.tenants(device_id)):
                    self.events["on reserved devices"] += 1
                    is_own = job.spec.user == each.user
                    assert is_own or job.phase in LEAVING, f"{job.job_id} stays on {device_id} of {each}"

    def _accepted(self, number: int, job_id: JobId, name: str) -> None:
        self.answered.add(number)
        self.accepted.add(name)
        self.clock.say(f"job {job_id} is accepted")

    def _spec(self, job_id: JobId, name: str) -> JobSpec:
        chance = self.chance
        gpus = chance.choice((1, 1, 1, 2, 2, 4)) if not self.plan.gentle else chance.choice((1, 2))
        most = gpus * chance.choice((1, 2, 2)) if self.plan.elastic else gpus
        plain = not self.plan.gentle and chance.random() < 0.2
        steps = chance.choice((5, 20, 60, 120)) * (3 if self.plan.elastic else 1)
        step_s = chance.choice((0.4, 1.0, 2.0)) if not plain else 2.0
        nature = Nature(
            steps=steps,
            step_s=step_s,
            load_s=chance.uniform(0.5, 6.0),
            save_s=chance.choice((0.2, 2.0)),
            uses_library=not plain,
            fails_at=chance.randrange(1, steps + 1)
            if not self.plan.gentle and chance.random() < 0.1
            else None,
            deaf=chance.random() < 0.1,
            exit_s=chance.choice((0.3, 0.3, 8.0)),
        )
        self.natures[name] = nature
        measured = [(s, step_s * (1 + 0.1 * s), 600.0 / s) for s in (1, 2, 8)]
        return JobSpec(
            job_id=job_id,
            name=name,
            user="ann",
            gpus_min=gpus,
            gpus_max=most,
            nodes=2 if gpus == 2 and chance.random() < 0.4 and not self.plan.gentle else 0,
            batch_size=8,
            iterations=steps,
            expected_s=chance.choice((None, steps * step_s)),
            profile=profile(8, *measured, duty=chance.choice((0.3, 0.9))) if chance.random() < 0.7 else None,
            job_class=chance.choice(("spot", "spot", "spot", "hp")),
            resumable=chance.choice((None, None, True)),
            retries=chance.randrange(2),
            time_limit_s=300.0 if chance.random() < 0.05 and not self.plan.gentle else None,
            launch=Launch(argv=("python", "train.py"), uid=1000),
        )

    # --- What the ranks truly do -------------------------------------------------------------------

    def training(self, order: Order) -> Training:
        launch = (order.start.name, order.attempt, order.start.epoch)
        if launch not in self.trainings:
            key = (order.job_id, order.attempt)
            made = Training(self.clock, key, order.world_size, self.natures[order.start.name], self)
            made.launch, self.trainings[launch] = launch, made
        return self.trainings[launch]

    def began(self, training: Training, rank: Rank) -> None:
        """A rank's process starts: no rank of another attempt may live, anywhere."""
        launch = training.launch
        counts = self.living.setdefault(launch[0], Counter())
        others = {other: count for other, count in counts.items() if count and other != launch}
        assert not others, (
            f"promise 2: rank {rank.number} of {launch} starts while attempts {others} have live ranks"
        )
        counts[launch] += 1
        tenants = self.tenants.setdefault(device_of(rank), [])
        tenants.append(training)
        assert len(tenants) <= 2, f"promise 1: {device_of(rank)} has {[each.launch for each in tenants]}"

    def ceased(self, training: Training, rank: Rank) -> None:
        self.living[training.launch[0]][training.launch] -= 1
        self.tenants[device_of(rank)].remove(training)

    def loaded(self, key: Key, order: Order, step: int) -> None:
        """An attempt begins to train: not behind what its start command said is durable."""
        assert step >= order.start.resume_step or not self.natures[order.start.name].uses_library, (
            f"{key} was told of a checkpoint at step {order.start.resume_step} and begins at {step}"
        )
        self.clock.say(f"{key[0]}-a{key[1]} trains from step {step}")

    def pace(self, training: Training) -> float:
        """A co-tenant costs a third."""
        shared = any(len(self.tenants[device_of(r)]) > 1 for r in training.ranks.values())
        return 1.33 if shared else 1.0

    def waited(self, key: Key, wait_s: float) -> None:
        """A rank stands at a step boundary. On one host an agreement takes no more than a few datagrams."""
        self.events["waits"] += 1
        assert not self.plan.gentle or wait_s < 1.0, (
            f"promise 3: a rank of {key} waited {wait_s:.1f} s at a step"
        )

    # --- What the controller decides ---------------------------------------------------------------

    def _decided(self, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        self.events[type(event).__name__] += 1
        self._check_preemptions(event)
        if self.plan.bookings:
            self._check_bookings()
        interesting = not isinstance(event, ev.ProgressSeen | ev.AlarmRang) or commands
        if interesting:
            shown = ", ".join(
                f"{type(c).__name__}#{c.command_id}({getattr(c, 'job_id', '')}-a{getattr(c, 'attempt', '')}"
                f" on {getattr(c, 'host_id', '')})"
                for c in commands
            )
            self.clock.say(f"controller: {brief(event)} -> {shown or '-'}")

    def _check_preemptions(self, event: ev.AnyEvent) -> None:
        """Nobody preempts an hp job, and no victim leaves for two. Counts what happens in the midst of it."""
        engine = self.headquarters.engine
        jobs = engine.jobs
        for action in engine.decision.actions:
            if isinstance(action, Preempt):
                assert jobs[action.job_id].spec.job_class == "spot", f"hp job {action.job_id} is preempted"
                for_hp = action.for_job is not None and jobs[action.for_job].spec.job_class == "hp"
                self.events["victims of hp"] += for_hp
                if for_hp and self.plan.policies and self.chance.random() < 0.3:
                    self.clock.after(self.chance.uniform(0.05, 1.0), self._regret, action.for_job)
        waiting = [job for job in jobs.values() if job.phase is Phase.RESERVED and job.placement]
        claimed = Counter(d for job in waiting if job.placement for d in job.placement.devices)
        assert all(count == 1 for count in claimed.values()), f"reserved twice: {claimed}"
        if isinstance(event, ev.HostSilent | ev.HostLost):
            host = event.host_id
            self.events["hosts gone while victims save"] += any(
                host in job.attempt.hosts_left for job in jobs.values() if job.phase is Phase.CHECKPOINTING
            )
        if isinstance(event, ev.CancelRequested) and jobs[event.job_id].phase is Phase.CANCELLED:
            saving = any(job.phase is Phase.CHECKPOINTING for job in jobs.values())
            self.events["hp cancelled while victims save"] += (
                saving and jobs[event.job_id].spec.job_class == "hp"
            )

    def _regret(self, job_id: JobId) -> None:
        """A user cancels an hp job for which others are just leaving."""
        job = self.headquarters.engine.jobs.get(job_id) if self.headquarters.is_up else None
        if job is not None and job.phase is Phase.RESERVED:
            self.headquarters.happen(ev.CancelRequested(job_id=job_id, by="ann"))

    # --- Faults ------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self.faults_over:
            return
        faults = GENTLE if self.plan.gentle else FAULTS
        name = self.chance.choices([each for each, _ in faults], [weight for _, weight in faults])[0]
        self.events[f"fault {name}"] += 1
        getattr(self, f"_fault_{name}")()

    def _any_machine(self) -> Machine:
        return self.chance.choice(list(self.machines.values()))

    def _fault_agent(self) -> None:
        machine = self._any_machine()
        if self.chance.random() < 0.6:
            machine.crash_in = self.chance.randrange(12)
            return
        machine.kill_agent()
        self.clock.soon(self._outage_s(30.0), machine.start_agent)

    def _outage_s(self, most_s: float) -> float:
        return min(most_s, 0.3 * LEASE_S) if self.plan.gentle else most_s

    def _fault_controller(self) -> None:
        self.headquarters.crash()
        self.clock.soon(self._outage_s(self.chance.choice((3.0, 20.0, 80.0))), self.headquarters.start)

    def _back_up(self, number: int) -> None:
        """Somebody copies the journal; later it is put back, and what was accepted since is lost."""
        pages, accepted = self.headquarters.pages.copied(), set(self.accepted)
        self.clock.say(f"the journal is copied at entry {len(pages.entries)}")
        wait_s = self.chance.uniform(1.0, 0.4 * self.plan.faults_s / self.plan.restores)
        self.clock.after(wait_s, self._restore, number, pages, accepted)

    def _restore(self, number: int, pages: Pages, accepted: set[str]) -> None:
        self.headquarters.crash()
        lost = len(self.headquarters.pages.entries) - len(pages.entries)
        self.clock.say(f"the journal is put back from its copy: {lost} entries are lost")
        self.events["entries lost"] += lost
        self.headquarters.pages = pages
        self.accepted = accepted
        self.clock.soon(self.chance.choice((1.0, 20.0)), self.headquarters.start)
        first = self.plan.jobs + number * self.plan.jobs_after + 1
        for submission in range(first, first + self.plan.jobs_after):
            self.clock.soon(20.0, self._submit, submission)

    def _fault_supervisor(self) -> None:
        living = [each for machine in self.machines.values() for each in machine.living()]
        if living:
            victim = self.chance.choice(living)
            self.clock.say(f"{victim.machine.name}: supervisor of {victim.name} is killed")
            victim.kill()

    def _fault_rank(self) -> None:
        ranks = [
            (training, rank)
            for training in self.trainings.values()
            for rank in training.ranks.values()
            if rank.alive
        ]
        if ranks:
            training, rank = self.chance.choice(ranks)
            self.clock.say(f"rank {rank.number} of {training.key} is killed")
            training.kill(rank, 9)

    def _fault_host(self) -> None:
        machine = self._any_machine()
        machine.crash()
        back_s = self.chance.choice((5.0, 30.0, 100.0))
        self.clock.after(back_s, machine.reboot)
        if back_s > 50.0 and self.chance.random() < 0.3:
            self.clock.after(20.0, self._give_up, machine)

    def _give_up(self, machine: Machine) -> None:
        """An admin says that a host will not come back; true, for what ran on it."""
        if not machine.is_on:
            self.headquarters.happen(ev.HostLost(host_id=machine.name, by="root"))
            self.lost_by_admin.add(machine.name)

    def _fault_partition(self) -> None:
        weather = self.network.weather(self._any_machine().name)
        kind = self.chance.choice(("both", "up", "down"))
        weather.up, weather.down = kind == "down", kind == "up"
        self.clock.say(f"partition ({kind})")
        self.clock.after(self._outage_s(self.chance.choice((2.0, 10.0, 60.0, 100.0))), self._mend, weather)

    def _fault_cut(self) -> None:
        """A host at work is out of reach for longer than its lease."""
        busy = [machine for machine in self.machines.values() if machine.living()]
        if busy:
            machine = self.chance.choice(busy)
            weather = self.network.weather(machine.name)
            weather.up = False
            weather.down = self.chance.random() < 0.3
            self.clock.say(f"{machine.name} is cut off")
            self.clock.after(self.chance.uniform(0.9, 3.0) * LEASE_S, self._mend, weather)

    def _mend(self, weather: Any) -> None:
        weather.up = weather.down = True
        self.clock.say("a partition is over")

    def _fault_weather(self) -> None:
        weather = self.network.weather(self._any_machine().name)
        weather.loss = self.chance.choice((0.05, 0.4)) if not self.plan.gentle else 0.1
        weather.repeats = self.chance.choice((0.0, 0.3))
        weather.delay_s = self.chance.choice((0.2, 3.0)) if not self.plan.gentle else 0.5
        weather.straggle_s = self.chance.choice((0.0, 10.0, 2.5 * LEASE_S)) if not self.plan.gentle else 3.0
        if self.plan.kind == "storm":
            weather.straggle_s, weather.repeats = 4 * LEASE_S, 0.5
        self.clock.soon(60.0, self._calm, weather)

    def _calm(self, weather: Any) -> None:
        weather.loss = weather.repeats = weather.straggle_s = 0.0
        weather.delay_s = 0.05

    def _fault_line(self) -> None:
        for machine in self.machines.values():
            for supervisor in machine.living():
                machine.break_line(supervisor.key)

    def _fault_greet(self) -> None:
        """A device's lock is lost and won again: the agent tells its whole inventory anew."""
        for machine in self.machines.values():
            machine.post(DevicesChanged(devices=machine.report.devices))

    def _fault_gpu(self) -> None:
        """A fatal fault on a GPU with clients of MPS: some die at once, some hang; sometimes the device is
        lost with it, sometimes the process that did it is known. The news comes a little later."""
        machine = self._any_machine()
        devices = [d for d in machine.report.devices if self.tenants.get(d.device_id)]
        shared = [d for d in devices if len(self.tenants[d.device_id]) > 1]
        if self.faults_over or machine.state is None or not devices:
            return
        device = self.chance.choice(shared or devices)
        there = list(self.tenants[device.device_id])
        here = [training.key for training in there]
        self.clock.say(f"{device.device_id}: a fatal fault, with {here} there")
        self.events["fault gpu"] += 1
        self.events["fault gpu shared"] += len(here) > 1
        failed = self.chance.random() < 0.3
        if failed:
            self._set_device(machine, device, state="lost", healthy=False, note="lost: Xid 79")
            self.clock.after(self.chance.choice((5.0, 40.0)), self._set_device, machine, device)
        for training in [each for each in there if self.chance.random() < 0.5]:
            for rank in training.ranks.values():
                if rank.alive and device_of(rank) == device.device_id:
                    training.kill(rank, 6)
        culprits = (self.chance.choice(here),) if self.chance.random() < 0.5 and not failed else ()
        fault = GpuFault(
            uuids=(device.local,),
            why="Xid 79 (fallen off the bus)" if failed else "Xid 31 (GPU memory page fault)",
            culprits=culprits,
            device_failed=failed,
        )
        self.clock.soon(1.0, self._tell_fault, machine, device, fault, here, machine.boot)

    def _tell_fault(
        self, machine: Machine, device: Device, fault: GpuFault, were_here: list[Key], boot: int
    ) -> None:
        """News that no agent hears wait in the kernel's log for the next one, until the host is booted."""
        if machine.state is None and machine.boot == boot:
            self.clock.after(0.5, self._tell_fault, machine, device, fault, were_here, boot)
            return
        running = machine.state.running if machine.state is not None else ()
        there = {*were_here, *(a.key for a in running if device.device_id in a.devices)}
        if len(there) == 1 and not fault.device_failed:
            self.struck_alone |= {key[0] for key in there}
        machine.post(fault)

    def _set_device(self, machine: Machine, device: Device, **changes: Any) -> None:
        """The agent says what has become of a device; without changes: it is as it was at first."""
        if machine.state is not None:
            devices = tuple(
                msgspec.structs.replace(device, **changes) if d.device_id == device.device_id else d
                for d in machine.state.config.report.devices
            )
            machine.post(DevicesChanged(devices=devices))

    def _fault_journal(self) -> None:
        self.headquarters.fill_disk(True)
        self.clock.soon(15.0, self.headquarters.fill_disk, False)

    def _fault_disk(self) -> None:
        domain = self.chance.choice(("a", "nfs"))
        self.storage.full.add(domain)
        self.clock.soon(40.0, self.storage.full.discard, domain)

    def _fault_user(self) -> None:
        if not self.headquarters.is_up or not self.headquarters.engine.jobs:
            return
        job_id = self.chance.choice(list(self.headquarters.engine.jobs))
        host_id = self._any_machine().name
        event: ev.AnyEvent = self.chance.choice(
            (
                ev.CancelRequested(job_id=job_id, by="ann"),
                ev.PreemptRequested(job_id=job_id, by="ann"),
                ev.PreemptRequested(job_id=job_id, by="ann"),
                ev.CheckpointRequested(job_id=job_id, by="ann"),
                ev.HoldRequested(job_id=job_id, by="ann"),
                ev.ReleaseRequested(job_id=job_id, by="ann"),
                ev.HostDrained(host_id=host_id, by="root"),
                ev.HostResumed(host_id=host_id, by="root"),
                ev.PolicyChanged(name=self.chance.choice(POLICIES), by="root"),
            )
        )
        self.headquarters.happen(event)

    # --- After the faults --------------------------------------------------------------------------

    def _heal(self) -> None:
        """Everything works again, and somebody tidies up."""
        self.clock.say("the faults are over")
        self.faults_over = True
        for machine in self.machines.values():
            machine.crash_in = None
            machine.reboot()
            machine.start_agent()
            machine.post(DevicesChanged(devices=machine.report.devices))
            self._mend(self.network.weather(machine.name))
            self._calm(self.network.weather(machine.name))
        self.storage.full.clear()
        self.headquarters.start()
        self.headquarters.fill_disk(False)
        self._tidy()

    def _tidy(self) -> None:
        """What an operator does: hosts back to work, held jobs released."""
        if self.headquarters.is_up and not self.headquarters.core.stuck:
            for host_id in self.machines:
                self.headquarters.happen(ev.HostResumed(host_id=host_id, by="root"))
            for job in list(self.headquarters.engine.jobs.values()):
                if job.phase is Phase.HELD:
                    self.headquarters.happen(ev.ReleaseRequested(job_id=job.job_id, by="root"))
        self.clock.after(20.0, self._tidy)

    def _is_at_rest(self) -> bool:
        """Asked after each step: the first thing that is not at rest will do."""
        return next(self._unrest(), None) is None

    def _unrest(self) -> Iterator[str]:
        if not self.headquarters.is_up:
            yield "no controller"
            return
        for job in self.headquarters.engine.jobs.values():
            if job.phase not in ENDED:
                yield f"job {job.job_id} is {job.phase} ({job.reason})"
        hosts = self.headquarters.engine.hosts
        yield from (f"host {name} has not joined" for name in self.machines if name not in hosts)
        yield from (f"host {host.host_id} is {host.state}" for host in hosts.values() if host.state != "ok")
        devices = self.headquarters.engine.ledger.devices.values()
        yield from (f"{each.device_id} is not offered: {each.note}" for each in devices if not each.healthy)
        if len(self.answered) < self.plan.jobs + self.plan.restores * self.plan.jobs_after:
            yield "not all jobs are submitted"
        for machine in self.machines.values():
            if machine.pending_reports:
                yield f"{machine.name} has {machine.pending_reports} unconfirmed reports"
            yield from (f"{machine.name}: supervisor of {each.name} lives" for each in machine.living())
            kept = machine.state.memory.kept_jobs() if machine.state is not None else ()
            yield from (f"{machine.name} has not forgotten job {job_id}" for job_id in kept)
        if self.headquarters.link.undelivered:
            yield f"{self.headquarters.link.undelivered} commands are not seen"

    def _check_end(self) -> None:
        engine = self.headquarters.engine
        names = {job.spec.name for job in engine.jobs.values()}
        assert self.accepted <= names, f"accepted, and lost: {self.accepted - names}"
        for job in engine.jobs.values():
            self._check_ended(job)
        view = engine.ledger
        for device_id, device in view.devices.items():
            assert not view.holdings.tenants(device_id), f"{device_id} is not free"
            assert view.holdings.claimed_by(device_id) is None
            assert device_id in view.free.devices[device.host_id, device.type], f"{device_id} is not offered"
        assert not any(count for counts in self.living.values() for count in counts.values()), (
            "ranks are left"
        )
        Watcher(engine, within_s=1e-6).saw(ev.AlarmRang(), ())

    def _check_ended(self, job: Job) -> None:
        nature = self.natures[job.spec.name]
        ran = [training for launch, training in self.trainings.items() if launch[0] == job.spec.name]
        reached = max((training.step or 0 for training in ran), default=0)
        if job.phase is Phase.DONE:
            assert reached == nature.steps, f"job {job.job_id} is done at step {reached} of {nature.steps}"
        elif job.phase is Phase.FAILED:
            explained = nature.fails_at is not None or job.spec.time_limit_s is not None
            struck = any(word in render_whole(job.reason) for word in ("Xid", "SIGABRT"))
            assert not struck or job.job_id in self.struck_alone, (
                f"job {job.job_id} is failed for a fault that may be another's: {job.reason}"
            )
            assert explained or not self.plan.gentle, f"job {job.job_id} failed: {job.reason}"
        if self.plan.gentle:
            assert job.phase is Phase.DONE, f"job {job.job_id} is {job.phase}: {job.reason}"
            ran = [training for training in ran if training.ranks]
            # Several short outages in a row are a long one.
            outage_s = max(self.machines[host_id].longest_gap_s for host_id in job.visited)
            assert len(ran) == 1 or outage_s > 0.5 * LEASE_S, (
                f"promise 3: job {job.job_id} ran as attempts {[each.launch for each in ran]}"
            )


FAULTS = (
    ("agent", 4),
    ("controller", 3),
    ("supervisor", 2),
    ("rank", 2),
    ("host", 2),
    ("partition", 3),
    ("cut", 4),
    ("weather", 3),
    ("line", 1),
    ("greet", 2),
    ("journal", 1),
    ("disk", 1),
    ("user", 5),
)
GENTLE = (
    ("greet", 3),
    ("agent", 3),
    ("controller", 3),
    ("partition", 3),
    ("weather", 2),
    ("line", 2),
    ("journal", 1),
    ("disk", 1),
)


def device_of(rank: Rank) -> DeviceId:
    order = rank.order
    part = next(member for member in order.gang if member.host_id == order.host_id)
    return part.devices[rank.number - part.first_rank]


def unpack_event(event: ev.AnyEvent) -> ev.AnyEvent:
    """As it is after the wire."""
    out: ev.AnyEvent = unpack(pack(event), ev.AnyEvent)
    return out


def brief(event: ev.AnyEvent) -> str:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    fields.pop("report", None)
    if "spec" in fields:
        spec = fields.pop("spec")
        fields |= {"job": spec.job_id, "gpus": spec.gpus_min, "nodes": spec.nodes, "class": spec.job_class}
    if isinstance(event, ev.HostJoined):
        fields["attempts"] = [
            f"{a.job_id}-a{a.attempt}{'' if a.running else ' (over)'}" for a in event.attempts
        ]
        fields["host"] = event.report.host_id
    return f"{type(event).__name__}({', '.join(f'{k}={v}' for k, v in fields.items())})"

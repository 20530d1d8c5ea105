"""Simulates a workload under one policy: the engine of production, driven through a world.

Rule: a simulation takes no decision and keeps no state of its own. It records only what the engine said or
what happened in the world, and at each job's end the two accounts must agree.

Rule: computations are answered inline, and their time is reported apart from that of decisions.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from cotenant.controller.domain import LATE_SHARE, AnyCommand, ComputeRequest, PolicySettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.drive import Computes, answer_inline, drive, nothing
from cotenant.controller.sim.world.devices import Devices
from cotenant.controller.sim.world.jobs import AskingSpecs, Specs, draw_asking_rows, host_reports, known_pairs
from cotenant.controller.sim.world.outcome import Columns, RunResult, cells
from cotenant.controller.sim.world.physics import (
    Failures,
    FailureTimes,
    Physics,
    bound_ratios,
    find_load_ratios,
    pair_data,
)
from cotenant.controller.sim.world.run import JobRun
from cotenant.controller.sim.world.workload import Cluster, Workload
from cotenant.controller.sim.world.world import World

Watch = Callable[[int, int, float], None]
"""Called now and then with (jobs finished, jobs in all, virtual seconds); may raise KeyboardInterrupt."""
Look = Callable[[Engine, ev.AnyEvent, Sequence[AnyCommand]], None]

WATCH_EVERY: Final = 1000
NO_DEADLINE_S: Final = 1e9
"""No deadline: saves take the time that the workload says."""
BUDGET_SLACK: Final = 0.05
"""Of its budget; that much more a job may have trained when the engine, which reckons on between reports of
steps, ends it."""
EXACT: Final = 1e-6
"""Relative, between two accounts of the same seconds (and of GPU-seconds)."""


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: str,
    parameters: Parameters | None = None,
    *,
    seed: int = 0,
    physics: Physics | None = None,
    failures: Failures | None = None,
    ageing_s: float = 0.0,
    late_share: float | None = None,
    checkpoint_every_s: float = 600.0,
    validate: bool = False,
    watch: Watch | None = None,
    compute: Computes = nothing,
    make_policy: MakePolicy = registry.make,
    make_world: Callable[..., World] = World,
    look: Look | None = None,
    promise_share: float = 0.0,
) -> RunResult:
    """Run a workload under one policy, to the end or until `watch` (or Ctrl-C) interrupts it.

    Args:
        seed: of the failures; all else that is random was drawn when the workload was made.
        ageing_s: off as in the papers; see `PolicySettings`.
        late_share: see `PolicySettings`; None: as live where lengths are not said, else off as in the papers.
        checkpoint_every_s: of training in one attempt; matters only where hosts fail. 0 = only when asked.
        compute: answers what the policy asks to be computed (`training.kinds.compute`).
        look: is shown the engine after each event, and what it said.
        promise_share: of the jobs, drawn, ask to be promised the earliest end that can be.
        validate: after every event the engine checks all its invariants, and its tenants against the world's.

    Raises:
        ValueError: unknown policy, parameter or pair table.
    """
    physics = physics if physics is not None else Physics()
    simulation = _Simulation(workload, cluster, policy, parameters or {}, physics, validate, compute)
    times = None if failures is None else failures.times(cluster.hosts, seed)
    asks = draw_asking_rows(len(workload), promise_share, seed)
    if late_share is None:
        late_share = 0.0 if workload.knowledge.known == "exact" else LATE_SHARE
    settings = PolicySettings(
        name=policy,
        ageing_s=ageing_s,
        late_share=late_share,
        stop_deadline_s=NO_DEADLINE_S,
        resize_lease_s=0.0,  # How long a lease is, policies say here.
    )
    simulation.prepare(times, settings, checkpoint_every_s, make_policy, make_world, asks)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with _quiet_gc():
        try:
            simulation.run(watch, look)
        except KeyboardInterrupt:
            simulation.interrupted = True
    return simulation.outcome(seed, time.perf_counter() - wall_s, time.process_time() - cpu_s)


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """Nothing here makes cycles, so the collector need not look for them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Simulation:
    """A run of the simulation: the engine, the world, and the columns that are filled as jobs end."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: str,
        parameters: Parameters,
        physics: Physics,
        validate: bool,
        compute: Computes,
    ) -> None:
        self.interrupted = False
        self._compute = compute
        self._workload, self._cluster = workload, cluster
        self._submit_s = cells(workload.submit_s)
        self._duration_s = cells(workload.time_on_fewest_s(workload.duration_s))
        self._policy, self._parameters = policy, parameters
        self._physics, self._validate = physics, validate
        self._finished = self._events = 0
        self._compute_s = 0.0
        self._ends_gpu_s = 0.0
        self._decision_ns = array("q")
        self._columns = Columns(len(workload))

    def prepare(
        self,
        failures: FailureTimes | None,
        settings: PolicySettings,
        checkpoint_every_s: float,
        make_policy: MakePolicy,
        make_world: Callable[..., World],
        asks: Collection[int] = (),
    ) -> None:
        """Make engine and world; the hosts join before anything arrives."""
        data = pair_data(self._physics.pairs)
        max_tenants = self._cluster.max_tenants if data is not None else 1
        hosts = host_reports(self._cluster, max_tenants, divides=bool(self._workload.fractions))
        ratios = None if data is None else data.ratios(self._workload.models)
        sharing = self._physics.sharing
        bound = bound_ratios(ratios, sharing) if ratios is not None and sharing.is_on else None
        kept, lost = (ratios, []) if bound is None else bound
        rows = 0 if kept is None else len(kept)
        loads = find_load_ratios(self._physics.load_duty, self._workload.duty_cycles, rows)
        specs = Specs(self._workload, self._cluster)
        asking = AskingSpecs(specs, asks, self._submit_s) if asks else None
        self._asking, self._row_of = asking, specs.row_of
        self._world = make_world(
            self._workload,
            asking or specs,
            Devices(hosts, kept, loads, lost),
            hosts,
            self._physics,
            failures,
            checkpoint_every_s,
        )
        told = ratios if self._physics.xi == "measured" else None
        pairs = None if told is None else known_pairs(self._workload, specs, told)
        config = EngineConfig(
            policy=settings,
            sharing=sharing,
            predictor=None if self._physics.xi in ("learned", "measured") else self._physics.xi,
            checkpoint_every_s=checkpoint_every_s,
            keep_ended=8,
            # Jobs of one model differ in length. That is all that is known of them where none has a command.
            lengths_by_command=self._workload.knowledge.known == "exact" or bool(self._workload.submissions),
        )
        self._engine = Engine(make_policy, config, validate=self._validate, pairs=pairs)
        self._jobs = self._engine.jobs
        if asking is not None:
            asking.engine = self._engine
        if self._parameters:
            self._engine.handle(ev.PolicyChanged(name=self._policy, parameters=self._parameters), 0.0)
        for host in hosts:
            self._engine.handle(ev.HostJoined(report=host), 0.0)

    def run(self, watch: Watch | None, look: Look | None = None) -> None:
        engine, world, total = self._engine, self._world, len(self._workload)
        has_budgets = self._workload.knowledge.budget_s is not None
        for event, commands in drive(engine, world, self._answer, decision_ns=self._decision_ns):
            self._events += 1
            if look is not None:
                look(engine, event, commands)
            if world.done is not None:
                self._end(world.done)
            if has_budgets and isinstance(event, (ev.AttemptEnded, ev.HostLost)):
                for run in world.take_ended(lambda job_id: self._jobs[job_id].ended_s is not None):
                    self._end(run)
            if self._validate:
                self._compare()
            if watch is not None and not self._events % WATCH_EVERY:
                watch(self._finished, total, world.now_s)
            if self._finished == total:
                return

    def _answer(self, request: ComputeRequest) -> ev.Computed:
        began_s = time.process_time()
        answer = answer_inline(request, self._compute)
        self._compute_s += time.process_time() - began_s
        return answer

    def _end(self, run: JobRun) -> None:
        """A job has finished: engine and world must have seen the same."""
        job = self._jobs[run.job_id]
        row = run.row
        ended_s = job.ended_s
        assert ended_s is not None, f"job {row} has finished, and the engine holds it {job.phase}"
        jct_s: float = ended_s - self._submit_s[row]
        near_s = EXACT * jct_s + EXACT
        wait_s, load_s, run_s, pause_s = (
            job.spent.wait_s,
            job.spent.load_s,
            job.spent.run_s,
            job.spent.pause_s,
        )
        agree = (
            -near_s <= run.waited_s - wait_s <= near_s
            and -near_s <= run.loaded_s - load_s <= near_s
            and -near_s <= run.ran_s - run_s <= near_s
            and -near_s <= run.paused_s - pause_s <= near_s
            and -near_s <= jct_s - wait_s - load_s - run_s - pause_s <= near_s
        )
        assert agree, f"job {row}: {vars(run)} in the world, JCT {jct_s} s and {job} in the engine"
        self._check_training(run)
        self._finished += 1
        self._ends_gpu_s += run.held_gpu_s
        self._columns.put(row, jct_s, job, run.rework_s)
        had_it_waited_s = self._world.had_it_waited_s
        if row in had_it_waited_s and jct_s > 0.0:
            self._columns.sharing_benefit[row] = had_it_waited_s.pop(row) / jct_s

    def _check_training(self, run: JobRun) -> None:
        """A job has done all of its work; one that its budget has ended, that much at most."""
        trained_s = run.trained_s - run.lost_s
        near_s = EXACT * run.trained_s + EXACT
        budget_s = self._workload.knowledge.budget_s
        if run.done or budget_s is None:
            left_s = trained_s - self._duration_s[run.row]
            assert -near_s <= left_s <= near_s, f"job {run.row} ended {left_s} s past its work"
        else:
            assert trained_s <= budget_s * (1.0 + BUDGET_SLACK), f"job {run.row} trained {trained_s} s"

    def _compare(self) -> None:
        for device_id, here in self._world.devices.tenants().items():
            there = self._engine.tenants(device_id)
            assert sorted(here) == sorted(there), f"{device_id}: {here} in the world, {there} in the ledger"

    def outcome(self, seed: int, wall_s: float, cpu_s: float) -> RunResult:
        world, columns = self._world, self._columns
        world.devices.count_to(world.now_s)
        if not self.interrupted:
            self._check_end()
        for job_id, job in self._engine.jobs.items():
            columns.count(self._row_of(job_id), job)
        end_s = world.now_s if self.interrupted else world.last_end_s
        return RunResult(
            workload=self._workload,
            cluster=self._cluster,
            policy=self._policy,
            parameters=dict(self._parameters),
            seed=seed,
            **columns.arrays(),
            makespan_s=end_s,
            busy_gpu_s=world.devices.busy_gpu_s,
            arriving_s=world.arriving_s,
            arriving_gpu_s=world.arriving_gpu_s,
            events=self._events,
            decision_ns=np.frombuffer(self._decision_ns, dtype=np.int64),
            wall_s=wall_s,
            cpu_s=cpu_s,
            interrupted=self.interrupted,
            thinking_s=self._compute_s,
            promises=None if self._asking is None else self._asking.result(),
        )

    def _check_end(self) -> None:
        world = self._world
        if self._finished == len(self._workload):
            world.check_end()
            held = (world.devices.held_gpu_s, self._ends_gpu_s)
            near = EXACT * held[0] + EXACT
            assert abs(held[0] - held[1]) <= near, f"GPU-seconds of devices and of jobs differ: {held}"

"""The full profile of a command: the same job on 1, 2, 4, ... devices of a host, then over two hosts; planned
from the hosts there are, watched to its end.

Rule: every configuration is an ordinary job in the queue, placed by the controller like any other: no device
is emptied for it and nobody is preempted for it by us. It shares with nobody, knows that it is only measured
(COTENANT_PROFILING=1), splits its batches into 1, 2, 4, 8 and 16 parts in turns (in a run of its own that
harms nobody), and ends when its profile is complete. The first Ctrl-C cancels the jobs that are left, and
what was measured is still shown.

Source: Castor section 7: powers of two within a node; over nodes not more than two, so that short jobs do not
queue for long and the cost of crossing hosts is still seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cotenant.checkpoint.talk.protocol import ENV_PROFILING
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, Dependency, HostState, JobId, JobSpec, is_type_for
from cotenant.controller.performance import SCHEDULE_VARIABLE, plan_visits, schedule_text
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.units import duration, plural
from cotenant.controller.wire import ProfileView
from cotenant.controller.wire import clients as wire

BLIND_S: Final = 60.0
"""How long to wait, on top of T_prof, for a job that does not report its progress."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A number of devices over a number of hosts, equally many on each."""

    gpus: int
    hosts: int


def configurations(
    hosts: Iterable[wire.NodeView], spec: JobSpec, gpus_max: int | None = None
) -> tuple[Configuration, ...]:
    """What there is to measure on these hosts, cheapest first; empty where no device suits the job."""
    suited = [
        (sum(device.healthy and is_type_for(spec.gpu_type, device.type) for device in host.devices), host)
        for host in hosts
        if set(spec.features) <= set(host.features)
    ]
    largest = max((count for count, _ in suited), default=0)
    reachable = sorted((count for count, host in suited if not host.address.startswith("127.")), reverse=True)
    second = reachable[1] if len(reachable) > 1 else 0
    found = [Configuration(gpus=n, hosts=1) for n in _powers_of_two(largest)]
    found += [Configuration(gpus=2 * n, hosts=2) for n in _powers_of_two(second)]
    return tuple(each for each in found if gpus_max is None or each.gpus <= gpus_max)


def _powers_of_two(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length())] if most > 0 else []


def device_seconds(series: Sequence[Configuration], load_s: float, profile_s: float) -> float:
    """Expected device time of the whole series: each device for a load and for T_prof."""
    return sum(each.gpus * (load_s + profile_s) for each in series)


def series_specs(spec: JobSpec, series: Sequence[Configuration], profile_s: float) -> tuple[JobSpec, ...]:
    """The specs of a series, one job per configuration, with placeholder ids of its own."""
    return tuple(_one(spec, at, each, profile_s) for at, each in enumerate(series))


def job_of_series(spec: JobSpec, series: Sequence[JobSpec]) -> JobSpec:
    """The job itself, once the series is over: with the profile of its own configuration, if there is one."""
    after = tuple(Dependency(job_id=each.job_id, need="any") for each in series)
    return msgspec.structs.replace(spec, after=(*spec.after, *after))


def measured_only(spec: JobSpec, profile_s: float) -> JobSpec:
    """The job as one that is there for its profile, and leaves with it; it visits several s."""
    schedule = schedule_text(plan_visits(spec.batch_size))
    env = {**spec.launch.env, ENV_PROFILING: "1", SCHEDULE_VARIABLE: schedule}
    return msgspec.structs.replace(
        spec,
        share="never",
        profiling="only",
        profile=None,
        iterations=None,
        expected_s=profile_s + BLIND_S,
        hold=False,
        retries=0,
        launch=msgspec.structs.replace(spec.launch, env=env),
    )


def _one(spec: JobSpec, at: int, each: Configuration, profile_s: float) -> JobSpec:
    return msgspec.structs.replace(
        measured_only(spec, profile_s),
        job_id=JobId(f"profile-{at}"),
        name=f"{spec.name[:40]}-profile-{each.gpus}x{each.hosts}",
        gpus_min=each.gpus,
        gpus_max=each.gpus,
        nodes=each.hosts,
    )


LOOK_S: Final = 2.0


class SeriesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be measured and what it costs."""

    spec: JobSpec
    series: tuple[Configuration, ...]
    profile_s: float
    load_s: float

    @property
    def estimated_device_s(self) -> float:
        return device_seconds(self.series, self.load_s, self.profile_s)

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        return series_specs(self.spec, self.series, self.profile_s)

    def announcement(self) -> str:
        shapes = ", ".join(
            f"{each.gpus}" if each.hosts == 1 else f"{each.gpus} over {each.hosts} hosts"
            for each in self.series
        )
        each = f"a load of {duration(self.load_s)} and {duration(self.profile_s)} measured, on each"
        total = f"about {duration(self.estimated_device_s)} of device time"
        noun = "device" if shapes == "1" else "devices"
        once = ", each one process" if noun == "devices" and self.spec.launch.mode == "process" else ""
        return f"{plural(len(self.series), 'job')} on {shapes} {noun}{once}, {total} ({each})"

    def account(self, results: tuple[SeriesResult, ...]) -> str:
        spent_s = sum(each.device_s for each in results)
        return (
            f"{duration(spent_s)} of device time were used; {duration(self.estimated_device_s)} were expected"
        )


class SeriesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one configuration, measured or not."""

    configuration: Configuration
    job: wire.JobView
    profile: ProfileView | None

    @property
    def is_measured(self) -> bool:
        return self.profile is not None and bool(self.profile.points or self.profile.has_indicators)

    @property
    def device_s(self) -> float:
        """Seconds that its devices were held."""
        return self.job.gpus * (self.job.load_s + self.job.run_s + self.job.pause_s)


def plan_series(
    client: Client, spec: JobSpec, *, gpus_max: int | None = None, hosts_max: int | None = None
) -> SeriesPlan:
    """Plans a series from the hosts there are now.

    Raises:
        Problem: this controller does not profile, or nothing here suits the job.
    """
    known = client.ask(wire.ListProfiles())
    if known.profile_s <= 0:
        raise Problem("refused", "this controller profiles nothing", "set profiler.seconds above 0")
    nodes = client.ask(wire.ListNodes()).nodes
    hosts = [node for node in nodes if node.state is HostState.OK]
    series = configurations(hosts, spec, gpus_max)
    if spec.launch.mode == "process":
        hosts_max = 1
    series = tuple(each for each in series if hosts_max is None or each.hosts <= hosts_max)
    if not series:
        kind = f" of type {spec.gpu_type}" if spec.gpu_type else ""
        raise Problem(
            "never-fits", f"no host here has a device{kind} for it", "`cotenant nodes` shows what there is"
        )
    return SeriesPlan(spec=spec, series=series, profile_s=known.profile_s, load_s=known.load_s)


class SeriesRun:
    """The jobs of one series."""

    def __init__(self, client: Client, plan: SeriesPlan, request: wire.Submit) -> None:
        """Queues the jobs of the series."""
        self._client = client
        self._plan = plan
        submit = msgspec.structs.replace(request, specs=plan.specs, array_indices=())
        self.job_ids: tuple[JobId, ...] = client.ask(submit).job_ids
        self._told: dict[JobId, str] = {}

    def to_the_end(self) -> bool:
        """Wait, telling what changes; False if it was interrupted."""
        try:
            while not self._look(LOOK_S):
                pass
        except KeyboardInterrupt:
            left = [job_id for job_id in self.job_ids if self._told.get(job_id) not in _ENDED_WORDS]
            tell(
                f"\ncancelling {plural(len(left), 'job')}; what was measured follows (Ctrl-C again: at once)"
            )
            self._client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(left)))
            while not self._look(LOOK_S):
                pass
            return False
        return True

    def _look(self, timeout_s: float) -> bool:
        reply: wire.Jobs = self._client.ask(wire.WaitJobs(job_ids=self.job_ids, timeout_s=timeout_s))
        for job in reply.jobs:
            if self._told.get(job.job_id) != job.phase.value:
                self._told[job.job_id] = job.phase.value
                tell(f"job {job.job_id} ({job.name}) {job.phase.value}: {job.reason}")
        return all(job.phase in ENDED for job in reply.jobs)

    def results(self) -> tuple[SeriesResult, ...]:
        """The results of all configurations, in order."""
        shown = [self._client.ask(wire.ShowJob(job_id=job_id)) for job_id in self.job_ids]
        return tuple(
            SeriesResult(configuration=configuration, job=each.job, profile=each.job.profile)
            for configuration, each in zip(self._plan.series, shown, strict=True)
        )


_ENDED_WORDS: Final = frozenset(phase.value for phase in ENDED)

"""The full profile of a command: the same job on 1, 2, 4, ... devices of a host, then over two hosts. Pure.

Rule: every configuration is an ordinary job in the queue, placed by the controller like any other: no
device is emptied for it and nobody is preempted for it by us. It shares with nobody, knows that it is only
measured (COTENANT_PROFILING=1), and ends when its profile is complete.

Source: Castor section 7: powers of two within a node; over nodes not more than two, so that short jobs do not
queue for long and the cost of crossing hosts is still seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import Dependency, JobSpec
from cotenant.controller.wire.clients import NodeView

PROFILING_VARIABLE: Final = "COTENANT_PROFILING"
BLIND_S: Final = 60.0
"""What a job that says nothing of itself is waited for, on top of T_prof."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """So many devices over so many hosts, equally many on each."""

    gpus: int
    hosts: int


def configurations(
    hosts: Iterable[NodeView], spec: JobSpec, gpus_max: int | None = None
) -> tuple[Configuration, ...]:
    """What there is to measure on these hosts, cheapest first; empty where no device suits the job."""
    suited = [
        (sum(device.healthy and spec.gpu_type in ("", device.type) for device in host.devices), host)
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
    """Device time of the whole series as it must be expected: each device for a load and for T_prof."""
    return sum(each.gpus * (load_s + profile_s) for each in series)


def series_specs(spec: JobSpec, series: Sequence[Configuration], profile_s: float) -> tuple[JobSpec, ...]:
    """One job per configuration, with placeholder ids of its own."""
    return tuple(_one(spec, at, each, profile_s) for at, each in enumerate(series))


def behind(spec: JobSpec, series: Sequence[JobSpec]) -> JobSpec:
    """The job itself, once the series is over: with the profile of its own configuration, if there is one."""
    after = tuple(Dependency(job_id=each.job_id, need="any") for each in series)
    return msgspec.structs.replace(spec, after=(*spec.after, *after))


def measured_only(spec: JobSpec, profile_s: float) -> JobSpec:
    """The job as one that is there for its profile, and leaves with it."""
    env = {**spec.launch.env, PROFILING_VARIABLE: "1"}
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

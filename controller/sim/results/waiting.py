"""How long a job would have waited for devices of its own: the other half of the sharing benefit.

Source: Castor eq. 24: JCT "assuming it remains pending until sufficient resources are released" over JCT when
shared, "on the assumption that no new jobs will be submitted". So: those that hold devices go on as they do,
with their true lengths and present paces, nobody arrives, and nobody else in the queue takes what they leave.
The last makes waiting look shorter than it is, and the benefit with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from cotenant.controller.domain.cluster import HostReport
from cotenant.controller.sim.world.devices import Devices
from cotenant.controller.sim.world.run import JobRun


def wait_s(
    devices: Devices, hosts: Sequence[HostReport], gpus: int, leaves_in_s: Callable[[JobRun], float]
) -> float:
    """Seconds until a gang has devices to itself: on one host if one could hold it, else anywhere. Infinite
    if the cluster could never hold it."""
    at = [
        sorted(
            max((leaves_in_s(run) for run in devices.here(device.device_id)), default=0.0)
            for device in host.devices
        )
        for host in hosts
    ]
    if any(len(times) >= gpus for times in at):
        return min(times[gpus - 1] for times in at if len(times) >= gpus)
    everywhere = sorted(time for times in at for time in times)
    return everywhere[gpus - 1] if len(everywhere) >= gpus else inf

"""The agent as it is, with a kernel's log of the test's own and shorter waits: `python gpu_agent.py WORDS`.

Rule: nothing but numbers and that path is changed here; whoever takes minutes to trust a device again takes
seconds, so that a test sees it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from functools import partial
from typing import Any

import msgspec

from cotenant.agent import __main__ as agent
from cotenant.agent.daemon import assembly, runtime, tasks
from cotenant.agent.gpus import causes, mps_watch, watchers
from cotenant.agent.gpus.gpu_watch import GpuWatch
from cotenant.agent.gpus.mps_edge import MpsEdge
from cotenant.mps import daemon
from cotenant.profiler.driver import probe_client

TIMING = watchers.Timing(probe_s=0.3, start_s=20.0, silent_s=4.0, retry_s=0.3, retry_s_max=2.0, reap_s=1.0)


def main() -> int:
    faulthandler.register(signal.SIGUSR2)
    for cause, quiet_s in {"odd": 1.0, "silent": 0.5, "renewed": 0.5}.items():
        causes.CAUSES[cause] = msgspec.structs.replace(causes.CAUSES[cause], quiet_s=quiet_s)
    log = os.environ["CHAOS_KERNEL_LOG"]
    short: dict[Any, dict[str, Any]] = {
        assembly: {"GpuWatch": partial(GpuWatch, patience_s=5.0, kernel_log=log)},
        watchers: {"Timing": lambda probe_s: TIMING},
        probe_client: {"driver_facts": partial(probe_client.driver_facts, 20.0)},
        runtime: {"MpsEdge": partial(MpsEdge, period_s=0.4), "OFFER_PERIOD_S": 1.0},
        tasks: {"GpuRelease": partial(tasks.GpuRelease, daemons_s=5.0)},
        causes: {"LEAVE_GRACE_S": 0.8},
        mps_watch: {"AROUND_EVERY_S": 1.0},
        daemon: {"ASK_EVERY_S": 1.0, "STARTS_APART_S": 0.5, "START_AGAIN_S": 1.0},
    }
    for module, numbers in short.items():
        for name, value in numbers.items():
            assert hasattr(module, name), name
            setattr(module, name, value)
    return agent.main()


if __name__ == "__main__":
    sys.exit(main())

"""SIGKILL of one of two busy processes: what becomes of the other, with and without MPS.

Rule: recorded before it is judged. Under MPS NVIDIA calls the outcome undefined, so only what must hold for
us to go on is asserted: afterwards, once every client has left, a new one can start.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack

import pytest

from cotenant.mps import answers
from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.private_mps import MpsFailed, PrivateMps
from hwtests.readings import used_mib

pytestmark = pytest.mark.gpu

GONE_TIMEOUT_S = 60.0
SLACK_MIB = 64.0


def test_time_slicing(cuda: Device, seconds: float, measured: Measure) -> None:
    host.skip_if(host.lacks_time_slicing())
    with ExitStack() as stack:
        victim, other = (stack.enter_context(Busy("matmul", cuda)) for _ in range(2))
        survived, after = _kill_one(victim, other, cuda, seconds, measured)
        assert survived and after > 0, "processes that time-slice have nothing in common"


def test_under_mps(cuda: Device, mps: PrivateMps, seconds: float, measured: Measure) -> None:
    env = mps.environment()
    with ExitStack() as stack:
        victim, other = (stack.enter_context(Busy("matmul", cuda, env=env)) for _ in range(2))
        victim.ready(), other.ready()
        mps.await_clients(victim.pid, other.pid)
        survived, _ = _kill_one(victim, other, cuda, seconds, measured)
        measured("the other client survived", survived)
        measured("get_server_status after", _statuses(mps))
    with Busy("matmul", cuda, env=env) as newcomer:
        newcomer.ready()
        measured("a new client afterwards", newcomer.error() or "runs")
        assert newcomer.rate(min(seconds, 2.0)) > 0, newcomer.last_words()


def _kill_one(
    victim: Busy, other: Busy, device: Device, seconds: float, measured: Measure
) -> tuple[bool, float]:
    """Whether the other lives, and how fast it is then."""
    victim.ready(), other.ready()
    before = other.rate(seconds)
    used = used_mib(device)
    victim.kill()
    killed_s = time.monotonic()
    after = other.rate(seconds)
    survived = other.process.poll() is None and not other.error()
    measured("the other before", before, "TFLOP/s")
    measured("the other after", after, "TFLOP/s", other.error())
    measured("memory came back", _given_back_s(device, used, killed_s), "s", otherwise="not within a minute")
    return survived, after


def _given_back_s(device: Device, used: float, since_s: float) -> float | None:
    """When less was in use than while both lived; looked at from the end of the other's window on."""
    while time.monotonic() - since_s < GONE_TIMEOUT_S:
        if used_mib(device) < used - SLACK_MIB:
            return time.monotonic() - since_s
        time.sleep(0.05)
    return None


def _statuses(mps: PrivateMps) -> str:
    """Of every server; or what became of asking."""
    try:
        return ", ".join(mps.ask(f"get_server_status {server}") for server in mps.servers()) or "no server"
    except (MpsFailed, answers.Rejected) as problem:
        return str(problem)
    except subprocess.TimeoutExpired:
        return "the daemon does not answer any more"

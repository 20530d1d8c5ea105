"""A fatal fault on purpose, with a co-tenant: who is hit, how soon, and when the device takes work again.

Rule: only with `--allow-faults`, and last of all: a GPU may need a reset afterwards. The numbers are what the
agent's time limits are to be checked against.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.mps import answers
from cotenant.profiler.driver.facts import TIMEOUT, NvmlError
from cotenant.profiler.driver.library import handle_of, open_library
from hwtests import host
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device
from hwtests.host import ROOT
from hwtests.measuring import Measure
from hwtests.private_mps import MpsFailed, PrivateMps

pytestmark = pytest.mark.gpu

TIMEOUT_S = 60.0
XID_EVENT = 8
ILLEGAL_ADDRESS = "700"


@pytest.fixture(autouse=True)
def allowed(request: pytest.FixtureRequest, cuda: Device) -> None:
    if not request.config.getoption("--allow-faults"):
        pytest.skip("crashes the GPU's clients on purpose: add --allow-faults")


class Xids:
    """Listens for Xids of one device, through NVML, in a thread of its own."""

    def __init__(self, uuid: str) -> None:
        self._nvml = open_library()
        self._handle = handle_of(self._nvml, uuid)
        self._set = self._nvml.ask("nvmlEventSetCreate")
        self.seen: list[tuple[float, int]] = []
        self.silence = "none within 5 s"
        try:
            self._nvml.ask("nvmlDeviceRegisterEvents", self._handle, XID_EVENT, self._set)
        except NvmlError as error:
            self.silence = f"NVML does not tell of Xids here: {error}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                event = self._nvml.ask("nvmlEventSetWait_v2", self._set, 200)
            except NvmlError as error:
                if error.code != TIMEOUT:  # A GPU that is lost answers at once, and so for ever.
                    self._stop.wait(0.2)
                continue
            self.seen.append((time.monotonic(), int(event.eventData)))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5.0)
        self._nvml.ask("nvmlEventSetFree", self._set)
        self._nvml.close()


@pytest.fixture
def xids(cuda: Device) -> Iterator[Xids]:
    listening = Xids(cuda.uuid)
    yield listening
    listening.close()


def crash(device: Device, env: dict[str, str]) -> dict[str, Any]:
    """Runs the culprit to its end; when it launched, and what it met."""
    done = subprocess.run(
        [sys.executable, "-m", "hwtests.crash"],
        cwd=ROOT,
        env={**device.environment(), **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said: dict[str, Any] = {"code": done.returncode}
    for line in done.stdout.splitlines():
        said |= json.loads(line)
    return said


def test_alone_the_fault_is_the_job_s_own(
    cuda: Device, xids: Xids, seconds: float, measured: Measure
) -> None:
    """Without MPS: the co-tenant time-slices on."""
    host.skip_if(host.lacks_time_slicing())
    with Busy("matmul", cuda) as other:
        other.ready()
        said = crash(cuda, {})
        after = other.rate(seconds)
        _note(said, xids, measured, "time-slicing")
        measured("time-slicing: the other afterwards", after, "TFLOP/s", other.error())
        assert ILLEGAL_ADDRESS in str(said.get("error")), said
        assert after > 0 and not other.error()


def test_under_mps_every_client_is_hit(cuda: Device, mps: PrivateMps, xids: Xids, measured: Measure) -> None:
    env = mps.environment()
    with Busy("matmul", cuda, env=env) as other:
        other.ready()
        mps.await_clients(other.pid)
        (server,) = mps.servers()
        said = crash(cuda, env)
        launched_s = float(said.get("launched_s", time.monotonic()))
        _note(said, xids, measured, "MPS")
        hit = _hit(other)
        measured("MPS: the co-client is hit by", other.error() or "nothing")
        measured(
            "MPS: after", None if hit is None else hit - launched_s, "s", otherwise="not within a minute"
        )
        fault_s = _fault_seen_s(mps, server)
        measured(
            "MPS: FAULT seen after", None if fault_s is None else fault_s - launched_s, "s", otherwise="never"
        )
        with Busy("idle", cuda, env=env) as refused:
            try:
                measured("MPS: a new client meanwhile", refused.ready().get("error", "runs"))
            except LoadFailed as problem:
                measured("MPS: a new client meanwhile", str(problem))
    left_s = time.monotonic()
    with Busy("matmul", cuda, env=env) as newcomer:
        measured("MPS: a new client after all have left", newcomer.ready().get("error", "runs"))
        measured("MPS: time until it runs", time.monotonic() - left_s, "s")
        assert newcomer.rate(2.0) > 0, newcomer.last_words()


def _note(said: dict[str, Any], xids: Xids, measured: Measure, how: str) -> None:
    until_s = time.monotonic() + 5.0
    while not xids.seen and time.monotonic() < until_s:
        time.sleep(0.1)
    numbers = ", ".join(str(number) for _, number in xids.seen)
    measured(f"{how}: what the culprit meets", str(said.get("error")), "", f"exit {said['code']}")
    measured(f"{how}: Xids that NVML reports", numbers or None, otherwise=xids.silence)


def _hit(other: Busy) -> float | None:
    """When the co-client met its error."""
    try:
        other.until(lambda said: bool(said.get("error")), TIMEOUT_S)
    except LoadFailed:
        return None
    return next(at_s for at_s, said in other.heard() if said.get("error"))


def _fault_seen_s(mps: PrivateMps, server: int) -> float | None:
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s:
        try:
            if answers.server_state(mps.ask(f"get_server_status {server}")) is answers.ServerState.FAULT:
                return time.monotonic()
        except (answers.Rejected, MpsFailed):
            return None
        time.sleep(0.05)
    return None

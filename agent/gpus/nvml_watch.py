"""Watch GPUs through NVML, as a process of its own: `python -m cotenant.agent.gpus.nvml_watch`.

Rule: it may hang in any call, and be killed at any moment: it keeps nothing that matters, and says which GPU
it is about to ask before it asks, so that whoever waits knows which one hangs. One JSON line
(`probe_results.py`) per fact; it reports an error that it can know of before any probe that begins after it.
A line on its standard input has it probe at once. It ends by itself when nobody reads any more.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.agent.gpus.owners import Owners
from cotenant.agent.gpus.probe_results import (
    AnyWatchLine,
    Began,
    ProbeBegins,
    ProbeFailed,
    ProbeResult,
    Process,
    XidSeen,
)
from cotenant.agent.gpus.xid import KERNEL_LOG, RECOVERY_CHANGED, XID, XidLine, bus_address, record_of, xid_in
from cotenant.agent.host.facts import now_s
from cotenant.agent.host.process_identity import stat_of
from cotenant.profiler.driver.facts import (
    LOST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TIMEOUT,
    NvmlError,
    is_mig_instance,
)
from cotenant.profiler.driver.library import (
    DevicePlace,
    Library,
    bus_id,
    ecc_uncorrected,
    handle_of,
    is_divided,
    memory_mib,
    named_processes,
    open_library,
    place_of,
    recovery_action,
    remapping,
)

XID_EVENT: Final = 8
"""NVML's number of the event: the driver reports an error."""
EVENT_WAIT_S: Final = 0.25
"""So often the kernel's log is looked at, and a reader that has gone is noticed."""
NO_INSTANCE: Final = 0xFFFF_FFFF
"""So says an event that is not about one GPU instance."""
NOW_DIVIDED: Final = "it is in MIG mode now: restart the agent, which then offers its instances"
INSTANCE_GONE: Final = "the MIG instance is gone: restart the agent, which then offers those that are there"
LISTEN_AGAIN_S: Final = 60.0
"""After NVML has refused to wait for events; one lost GPU may have it refuse for all."""
SAME_XID_S: Final = 2.0
"""Both sources tell of an Xid; within this it is one."""
_RECORD_BYTES: Final = 8192
_RECORDS_MAX: Final = 1000
_RECORDS_KEPT_MAX: Final = 1_000_000
"""More than the kernel keeps."""
_EVENTS_MAX: Final = 32
"""Taken in one go, so that a GPU that says the same all the time does not keep the others unwatched."""


def say(line: AnyWatchLine) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(line) + b"\n")


class NvmlWatch:
    """The GPUs that were asked for, in one NVML session. Of a MIG instance NVML knows memory and processes;
    errors, their counters and energy are those of its GPU."""

    def __init__(self, nvml: Library, uuids: Sequence[str], owners: Owners, log: KernelLog) -> None:
        self._nvml = nvml
        self._owners = owners
        self._log = log
        self._handles: dict[str, Any] = {}
        self._places: dict[str, DevicePlace] = {}
        self._buses: dict[str, str] = {}
        self._told: dict[tuple[str, int], tuple[float, int | None, int | None]] = {}
        """(UUID, Xid) -> when it was said, with which process and which recovery action."""
        self._ask = sys.stdin.fileno() if sys.stdin is not None else -1
        """Lines here ask for a probe; -1: closed."""
        for uuid in uuids:
            say(ProbeBegins(uuid=uuid))
            try:
                handle = handle_of(nvml, uuid)
                self._places[uuid] = place_of(nvml, uuid, handle)
            except NvmlError as error:
                say(_failed(uuid, error))
            else:
                self._handles[uuid] = handle
                self._buses[uuid] = bus_address(bus_id(nvml, self._places[uuid].gpu))
        self._listen_again_s = 0.0
        self._events = self._register()
        say(Began(events=self._events is not None, kernel_log=log.is_open, missed=log.has_missed(uuids)))

    def _register(self) -> Any:
        """An event set for Xids; None where the driver or our rights do not give one, until the next try."""
        self._listen_again_s = time.monotonic() + LISTEN_AGAIN_S
        events = self._nvml.maybe("nvmlEventSetCreate")
        if events is None:
            return None
        registered = 0
        for uuid, place in self._places.items():
            say(ProbeBegins(uuid=uuid))
            try:
                self._nvml.ask("nvmlDeviceRegisterEvents", place.gpu, XID_EVENT, events)
                registered += 1
            except NvmlError:  # This GPU has none; its counters are looked at all the same.
                continue
        return events if registered else None

    def run(self, period_s: float) -> None:
        """Look at every GPU each period, and in between listen. Ends when NVML as a whole stops working."""
        while True:
            due_s = time.monotonic() + period_s
            for uuid in list(self._handles):
                say(ProbeBegins(uuid=uuid))
                at_s = now_s()
                self._tell_errors()
                say(msgspec.structs.replace(self._probe(uuid), at_s=at_s, record=self._log.newest))
            say(ProbeBegins(uuid=""))
            while (left_s := due_s - time.monotonic()) > 0 and not self._is_asked():
                self._listen(min(left_s, EVENT_WAIT_S))

    def _is_asked(self) -> bool:
        """Whether a probe is asked for now."""
        if self._ask < 0 or not select.select([self._ask], [], [], 0.0)[0]:
            return False
        if os.read(self._ask, _RECORD_BYTES):
            return True
        self._ask = -1
        return False

    def _tell_errors(self) -> None:
        """Read everything that NVML and the kernel's log have by now."""
        self._read_log()
        for _ in range(_EVENTS_MAX):
            if not self._next_event(0.0):
                return

    def _probe(self, uuid: str) -> ProbeResult:
        nvml, handle, gpu = self._nvml, self._handles[uuid], self._places[uuid].gpu
        try:
            # A layout that was changed may have given the handle to another instance.
            if is_mig_instance(uuid) and nvml.ask("nvmlDeviceGetUUID", handle) != uuid:
                return ProbeResult(uuid=uuid, code=NOT_SUPPORTED, problem=INSTANCE_GONE)
            if not is_mig_instance(uuid) and is_divided(nvml, handle):
                return ProbeResult(uuid=uuid, code=NOT_SUPPORTED, problem=NOW_DIVIDED)
            taken_mib = memory_mib(nvml, handle).taken_mib
        except NvmlError as error:
            return _failed(uuid, error)
        remapped = remapping(nvml, gpu)
        everybody, unlisted = named_processes(nvml, handle)
        return ProbeResult(
            uuid=uuid,
            used_mib=taken_mib,
            processes=tuple(
                Process(
                    pid=each.pid,
                    used_mib=each.memory_mib,
                    computes=each.computes,
                    state=_state(each.pid),
                    owner=self._owners.owner(each.pid),
                )
                for each in everybody
            ),
            unlisted=unlisted,
            ecc_uncorrected=ecc_uncorrected(nvml, gpu),
            remap_pending=bool(remapped.pending),
            remap_failed=bool(remapped.failed),
            energy_mj=nvml.maybe("nvmlDeviceGetTotalEnergyConsumption", gpu),
        )

    # --- Xids --------------------------------------------------------------------------------------

    def _listen(self, wait_s: float) -> None:
        self._read_log()
        if self._events is None and time.monotonic() >= self._listen_again_s:
            self._events = self._register()
            say(ProbeBegins(uuid=""))
        if self._events is None:
            select.select([self._ask] if self._ask >= 0 else [], [], [], wait_s)
        else:
            self._next_event(wait_s)

    def _next_event(self, wait_s: float) -> bool:
        """Tell of an Xid that NVML knows of within the time; whether there was one."""
        if self._events is None:
            return False
        try:
            data = self._nvml.ask("nvmlEventSetWait_v2", self._events, max(1, round(wait_s * 1000)))
        except NvmlError as error:
            if error.code != TIMEOUT:  # What that means for a GPU, its own probe tells.
                self._nvml.maybe("nvmlEventSetFree", self._events)
                self._events, self._listen_again_s = None, time.monotonic() + LISTEN_AGAIN_S
            return False
        self._read_log()  # It was written before the event came, and it names the process.
        xid, instance = int(data.eventData), int(data.gpuInstanceId)
        for uuid in self._whose(data.device, None if instance == NO_INSTANCE else instance):
            gpu = self._places[uuid].gpu
            recovery = recovery_action(self._nvml, gpu) if xid == RECOVERY_CHANGED else None
            self._tell(uuid, XidLine(pci="", xid=xid, pid=None, recovery=recovery), None)
        return True

    def _whose(self, device: Any, instance: int | None) -> list[str]:
        """The UUIDs that an event is about: by the GPU's handle, else as NVML says it, which a lost GPU's may
        not."""
        known = [uuid for uuid, place in self._places.items() if _address(place.gpu) == _address(device)]
        found = known or [self._nvml.maybe("nvmlDeviceGetUUID", device)]
        return [uuid for uuid in found if uuid in self._places and self._is_about(uuid, instance)]

    def _is_about(self, uuid: str, instance: int | None) -> bool:
        """Whether an error of that GPU instance (None: of the whole GPU) concerns a device of the GPU."""
        return instance is None or self._places[uuid].instance in (None, instance)

    def _read_log(self) -> None:
        for record, line in self._log.lines():
            found = xid_in(line)
            if found is None:
                continue
            for uuid, bus in self._buses.items():
                is_about = bus == found.pci and self._is_about(uuid, found.instance)
                if is_about and self._log.is_news(uuid, record):
                    self._tell(uuid, found, record)

    def _tell(self, uuid: str, line: XidLine, record: int | None) -> None:
        """Once per Xid, from the first source that reports it; again if now the process or the recovery
        action is known."""
        xid, pid, recovery = line.xid, line.pid, line.recovery
        at_s, key = time.monotonic(), (uuid, xid)
        told_s, told_pid, told_recovery = self._told.get(key, (-SAME_XID_S, None, None))
        says_nothing_new = pid in (None, told_pid) and recovery in (None, told_recovery)
        if at_s - told_s < SAME_XID_S and says_nothing_new:
            return
        self._told[key] = (at_s, pid, recovery)
        owner = self._owners.owner(pid) if pid is not None else None
        late = self._log.is_past(record)
        say(XidSeen(uuid=uuid, xid=xid, pid=pid, recovery=recovery, owner=owner, record=record, is_late=late))


def _failed(uuid: str, error: NvmlError) -> ProbeResult:
    is_gone = is_mig_instance(uuid) and error.code not in (LOST, RESET_REQUIRED)
    problem = f"{INSTANCE_GONE} ({error})" if is_gone else str(error)
    return ProbeResult(uuid=uuid, code=error.code, problem=problem)


def _state(pid: int) -> str:
    stat = stat_of(pid)
    return stat.state if stat is not None else ""


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class KernelLog:
    """What the kernel says, where we may read it: from where it was read to before, else from now on."""

    def __init__(self, path: str, read: Mapping[str, int]) -> None:
        """Opens the kernel's log and reads what it holds. `read`: by UUID, the last record that was dealt
        with for a GPU."""
        self._descriptor: int | None = None
        self._read = read
        self.newest: int | None = None
        """The newest record that was read."""
        self._oldest: int | None = None
        with suppress(OSError):  # Not allowed: the common case for users.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # All that is there, though none of it may be news: by it a later start knows where we began.
        self._past = self._next_lines(_RECORDS_KEPT_MAX)
        self._began_at: int | None = self.newest

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def has_missed(self, uuids: Sequence[str]) -> bool:
        """Whether records have been overwritten since the last one that was dealt with for one of these."""
        oldest = self._oldest
        return oldest is not None and any(self._read.get(uuid, oldest) + 1 < oldest for uuid in uuids)

    def is_past(self, record: int | None) -> bool:
        """Whether a record was there when we began."""
        return record is not None and self._began_at is not None and record <= self._began_at

    def is_news(self, uuid: str, record: int | None) -> bool:
        """Whether a record has not been dealt with for this GPU. Those without a number are always new."""
        before = self._read.get(uuid, self._began_at)
        return record is None or before is None or record > before

    def lines(self) -> list[tuple[int | None, str]]:
        """The lines about Xids that have come since, with the numbers of their records."""
        past, self._past = self._past, []
        return past + self._next_lines(_RECORDS_MAX)

    def _next_lines(self, records_max: int) -> list[tuple[int | None, str]]:
        found: list[tuple[int | None, str]] = []
        for _ in range(records_max if self._descriptor is not None else 0):
            assert self._descriptor is not None
            try:
                data = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # Records were overwritten before we read them; go on with what is there.
                continue
            except OSError:
                self._descriptor = None
                break
            if not data:
                break
            for line in data.decode(errors="replace").splitlines():
                record = record_of(line)
                if record is not None:
                    self.newest = record
                    self._oldest = record if self._oldest is None else self._oldest
                if XID in line:
                    found.append((record, line))
        return found


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m cotenant.agent.gpus.nvml_watch", description=__doc__)
    known.add_argument("--gpu", metavar="UUID", action="append", default=[], help="watch this one")
    known.add_argument(
        "--read",
        metavar="UUID=N",
        action="append",
        default=[],
        help="the kernel's log was read up to record N",
    )
    known.add_argument("--period-s", type=float, default=2.0, help="between two probes")
    known.add_argument("--attempts", type=Path, required=True, help="folder of our attempts")
    known.add_argument("--mps-runtime", default="", help="folder below which our MPS daemons live")
    known.add_argument("--kernel-log", default=KERNEL_LOG, help="where the kernel's messages are")
    return known


def _records(words: Sequence[str]) -> dict[str, int]:
    pairs = (word.rpartition("=") for word in words)
    return {uuid: int(number) for uuid, _, number in pairs}


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    owners = Owners(options.attempts, options.mps_runtime)
    try:
        log = KernelLog(options.kernel_log, _records(options.read))
        NvmlWatch(open_library(), options.gpu, owners, log).run(options.period_s)
    except NvmlError as error:
        say(ProbeFailed(code=error.code, problem=str(error)))
        return 1
    except (BrokenPipeError, KeyboardInterrupt):  # The reader has gone.
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())

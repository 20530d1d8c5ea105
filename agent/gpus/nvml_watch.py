"""Watch a GPU through NVML, as a process of its own: `python -m cotenant.agent.gpus.nvml_watch`.

Rule: it may hang in any call, and be killed at any moment: it keeps nothing that matters. One JSON line
(`probe_results.py`) per fact; it reports an error that it can know of before any probe that begins after it.
A line on its standard input has it probe at once. It ends by itself when nobody reads any more.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.agent.gpus import probe_results
from cotenant.agent.gpus.owners import Owners
from cotenant.agent.gpus.xid import (
    ABOUT_GPUS,
    BEGINS,
    KERNEL_LOG,
    RECOVERY_CHANGED,
    XidLine,
    bus_address,
    record_of,
    xid_in,
)
from cotenant.agent.host.facts import now_s
from cotenant.agent.host.process_identity import stat_of
from cotenant.profiler.driver import facts, library

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


def say(line: probe_results.AnyWatchLine) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(line) + b"\n")


class NvmlWatch:
    """One GPU or MIG instance, in an NVML session. Of an instance NVML knows memory and processes; errors,
    their counters and energy are those of its GPU."""

    def __init__(self, nvml: library.Library, uuid: str, owners: Owners, log: KernelLog) -> None:
        """Raises NvmlError: there is no such device, or it is lost."""
        self._nvml, self._uuid = nvml, uuid
        self._owners = owners
        self._log = log
        self._handle = library.handle_of(nvml, uuid)
        self._place = library.place_of(nvml, uuid, self._handle)
        self._bus = bus_address(library.bus_id(nvml, self._place.gpu))
        self._told: dict[int, tuple[float, int | None, int | None]] = {}
        """Xid -> when it was said, with which process and which recovery action."""
        self._ask = sys.stdin.fileno() if sys.stdin is not None else -1
        """Lines here ask for a probe; -1: closed."""
        self._listen_again_s = 0.0
        self._events = self._register()
        say(probe_results.Began(uuid=uuid, events=self._events is not None, kernel_log=log.is_open))

    def _register(self) -> Any:
        """An event set for Xids; None where the driver or our rights do not give one, until the next try."""
        self._listen_again_s = time.monotonic() + LISTEN_AGAIN_S
        events = self._nvml.maybe("nvmlEventSetCreate")
        try:
            self._nvml.ask("nvmlDeviceRegisterEvents", self._place.gpu, XID_EVENT, events)
        except facts.NvmlError:  # Its counters are looked at all the same.
            return None
        return events

    def run(self, period_s: float) -> None:
        """Look at the GPU each period, and in between listen."""
        while True:
            due_s, at_s = time.monotonic() + period_s, now_s()
            self._tell_errors()
            say(msgspec.structs.replace(self._probe(), at_s=at_s, record=self._log.newest))
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

    def _probe(self) -> probe_results.ProbeResult:
        nvml, uuid, handle, gpu = self._nvml, self._uuid, self._handle, self._place.gpu
        try:
            # A layout that was changed may have given the handle to another instance.
            if facts.is_mig_instance(uuid) and nvml.ask("nvmlDeviceGetUUID", handle) != uuid:
                return probe_results.ProbeResult(uuid=uuid, code=facts.NOT_SUPPORTED, problem=INSTANCE_GONE)
            if not facts.is_mig_instance(uuid) and library.is_divided(nvml, handle):
                return probe_results.ProbeResult(uuid=uuid, code=facts.NOT_SUPPORTED, problem=NOW_DIVIDED)
            taken_mib = library.memory_mib(nvml, handle).taken_mib
        except facts.NvmlError as error:
            return _failed(uuid, error)
        remapped = library.remapping(nvml, gpu)
        everybody, unlisted = library.named_processes(nvml, handle)
        return probe_results.ProbeResult(
            uuid=uuid,
            used_mib=taken_mib,
            processes=tuple(
                probe_results.Process(
                    pid=each.pid,
                    used_mib=each.memory_mib,
                    computes=each.computes,
                    state=_state(each.pid),
                    owner=self._owners.owner(each.pid),
                )
                for each in everybody
            ),
            lists_computing="computing" not in unlisted,
            ecc_uncorrected=library.ecc_uncorrected(nvml, gpu),
            remap_pending=bool(remapped.pending),
            remap_failed=bool(remapped.failed),
            energy_mj=nvml.maybe("nvmlDeviceGetTotalEnergyConsumption", gpu),
        )

    # --- Xids --------------------------------------------------------------------------------------

    def _listen(self, wait_s: float) -> None:
        self._read_log()
        if self._events is None and time.monotonic() >= self._listen_again_s:
            self._events = self._register()
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
        except facts.NvmlError as error:
            if error.code != facts.TIMEOUT:  # What that means for the GPU, a probe tells.
                self._nvml.maybe("nvmlEventSetFree", self._events)
                self._events, self._listen_again_s = None, time.monotonic() + LISTEN_AGAIN_S
            return False
        self._read_log()  # It was written before the event came, and it names the process.
        xid, instance = int(data.eventData), int(data.gpuInstanceId)
        if self._is_about(None if instance == NO_INSTANCE else instance):
            recovery = (
                library.recovery_action(self._nvml, self._place.gpu) if xid == RECOVERY_CHANGED else None
            )
            self._tell(XidLine(pci=self._bus, xid=xid, recovery=recovery), None)
        return True

    def _is_about(self, instance: int | None) -> bool:
        """Whether an error of that GPU instance (None: of the whole GPU) concerns the device."""
        return instance is None or self._place.instance in (None, instance)

    def _read_log(self) -> None:
        for record, line in self._log.lines():
            found = xid_in(line)
            if found is not None and found.pci in ("", self._bus) and self._is_about(found.instance):
                self._tell(found, record)

    def _tell(self, line: XidLine, record: int | None) -> None:
        """Once per Xid, from the first source that reports it; again if now the process or the recovery
        action is known."""
        xid, pid, recovery = line.xid, line.pid, line.recovery
        at_s = time.monotonic()
        told_s, told_pid, told_recovery = self._told.get(xid, (-SAME_XID_S, None, None))
        says_nothing_new = pid in (None, told_pid) and recovery in (None, told_recovery)
        if at_s - told_s < SAME_XID_S and says_nothing_new:
            return
        self._told[xid] = (at_s, pid, recovery)
        owner = self._owners.owner(pid) if pid is not None else None
        late = self._log.is_past(record)
        say(
            probe_results.XidSeen(
                uuid=self._uuid, xid=xid, pid=pid, recovery=recovery, owner=owner, record=record, is_late=late
            )
        )


def _failed(uuid: str, error: facts.NvmlError) -> probe_results.ProbeResult:
    is_gone = facts.is_mig_instance(uuid) and error.code not in (facts.LOST, facts.RESET_REQUIRED)
    problem = f"{INSTANCE_GONE} ({error})" if is_gone else str(error)
    return probe_results.ProbeResult(uuid=uuid, code=error.code, problem=problem)


def _state(pid: int) -> str:
    stat = stat_of(pid)
    return stat.state if stat is not None else ""


class KernelLog:
    """What the kernel says, where we may read it: from where it was read to before, else from now on."""

    def __init__(self, path: str, read: int | None) -> None:
        """Opens the kernel's log and reads what it holds. `read`: the last record that was dealt with."""
        self._descriptor: int | None = None
        self.newest: int | None = None
        """The newest record that was read."""
        self._begun = ""
        """The record before, if it has named the GPU of the next."""
        with suppress(OSError):  # Not allowed: the common case for users.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # All that is there, though none of it may be news: by it a later start knows where we began.
        past = self._next_lines(_RECORDS_KEPT_MAX)
        self._began_at: int | None = self.newest
        if read is None:
            read = self.newest
        self._past = [line for line in past if line[0] is None or read is None or line[0] > read]

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def is_past(self, record: int | None) -> bool:
        """Whether a record was there when we began."""
        return record is not None and self._began_at is not None and record <= self._began_at

    def lines(self) -> list[tuple[int | None, str]]:
        """The lines about GPUs that have come since, with the numbers of their records."""
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
                if ABOUT_GPUS.search(line):
                    found.append((record, self._begun + line))
                    self._begun = line if BEGINS.search(line) else ""
        return found


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m cotenant.agent.gpus.nvml_watch", description=__doc__)
    known.add_argument("--gpu", metavar="UUID", required=True, help="watch this one")
    known.add_argument("--read", metavar="N", type=int, help="the kernel's log was read up to record N")
    known.add_argument("--period-s", type=float, default=2.0, help="between two probes")
    known.add_argument("--attempts", type=Path, required=True, help="folder of our attempts")
    known.add_argument("--mps-runtime", default="", help="folder below which our MPS daemons live")
    known.add_argument("--kernel-log", default=KERNEL_LOG, help="where the kernel's messages are")
    return known


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    owners = Owners(options.attempts, options.mps_runtime, os.getppid())
    try:
        log = KernelLog(options.kernel_log, options.read)
        nvml = library.open_library()
        try:
            watch = NvmlWatch(nvml, options.gpu, owners, log)
        except facts.NvmlError as error:
            say(_failed(options.gpu, error))
            return 1
        watch.run(options.period_s)
    except facts.NvmlError as error:
        say(probe_results.ProbeFailed(problem=str(error)))
        return 1
    except (BrokenPipeError, KeyboardInterrupt):  # The reader has gone.
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())

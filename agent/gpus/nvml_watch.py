"""Watch GPUs through NVML, as a process of its own: `python -m cotenant.agent.gpus.nvml_watch`.

Rule: it may hang in any call, and be killed at any moment: it keeps nothing that matters, and says which GPU
it is about to ask before it asks, so that whoever waits knows which one hangs. One JSON line (`looks.py`) per
thing worth saying. It ends by itself when nobody reads any more.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from cotenant.agent.gpus.kernel_log import bus_address, xid_in
from cotenant.agent.gpus.looks import AnyWatchLine, Asking, Began, Failed, Look, Process, XidSeen
from cotenant.agent.gpus.nvml_calls import MIB, compute_processes, graphics_processes, in_words, text
from cotenant.agent.gpus.owners import Owners

TIMEOUT: Final = 10
"""NVML's code for: nothing has happened meanwhile."""
EVENT_WAIT_S: Final = 0.25
"""So often the kernel's log is looked at, and it is noticed that nobody listens any more."""
SAME_XID_S: Final = 2.0
"""Both sources tell of an Xid; within this it is one."""
KERNEL_LOG: Final = "/dev/kmsg"
_RECORD_BYTES: Final = 8192
_RECORDS_MAX: Final = 1000


def say(line: AnyWatchLine) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(line) + b"\n")


class Watch:
    """The GPUs that were asked for, in one NVML session."""

    def __init__(self, pynvml: ModuleType, uuids: Sequence[str], owners: Owners, log: KernelLog) -> None:
        self._nvml = pynvml
        self._owners = owners
        self._log = log
        self._handles: dict[str, Any] = {}
        self._by_bus: dict[str, str] = {}
        self._told: dict[tuple[str, int], tuple[float, int | None]] = {}
        """(UUID, Xid) -> when it was said, and with which process."""
        for uuid in uuids:
            say(Asking(uuid=uuid))
            try:
                self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                bus = pynvml.nvmlDeviceGetPciInfo(self._handles[uuid]).busId
                self._by_bus[bus_address(text(bus))] = uuid
            except pynvml.NVMLError as error:
                if uuid not in self._handles:
                    say(Look(uuid=uuid, code=error.value, problem=in_words(error)))
        self._events = self._register()
        say(Began(events=self._events is not None, kernel_log=log.is_open))

    def _register(self) -> Any:
        """An event set for Xids; None where the driver or our rights do not give one."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        registered = 0
        for uuid, handle in self._handles.items():
            say(Asking(uuid=uuid))
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                registered += 1
            except nvml.NVMLError:  # This GPU has none; its counters are looked at all the same.
                continue
        return events if registered else None

    def run(self, period_s: float) -> None:
        """Look at every GPU each period, and in between listen. Ends when NVML as a whole stops working."""
        while True:
            due_s = time.monotonic() + period_s
            for uuid in list(self._handles):
                say(Asking(uuid=uuid))
                say(self._look(uuid))
            say(Asking(uuid=""))
            while (left_s := due_s - time.monotonic()) > 0:
                self._listen(min(left_s, EVENT_WAIT_S))

    def _look(self, uuid: str) -> Look:
        nvml, handle = self._nvml, self._handles[uuid]
        try:
            used = nvml.nvmlDeviceGetMemoryInfo(handle).used
            computing = compute_processes(nvml, handle)
            drawing = graphics_processes(nvml, handle)
        except nvml.NVMLError as error:
            return Look(uuid=uuid, code=error.value, problem=in_words(error))
        known = {each.pid for each in computing}
        shown = [(each, True) for each in computing]
        shown += [(each, False) for each in drawing if each.pid not in known]
        rows = self._optional(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        retired = self._optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        return Look(
            uuid=uuid,
            used_mib=-(-int(used) // MIB),
            processes=tuple(
                Process(
                    pid=each.pid, used_mib=each.used_mib, computes=computes,
                    owner=self._owners.owner(each.pid),
                )
                for each, computes in shown
            ),
            ecc_uncorrected=self._optional(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            remap_pending=bool(rows[2] or retired),
            remap_failed=bool(rows[3]),
            energy_mj=self._optional(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        )  # fmt: skip

    def _optional(self, call: Any, *arguments: Any) -> Any:
        """What most GPUs or drivers lack."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    # --- Xids --------------------------------------------------------------------------------------

    def _listen(self, wait_s: float) -> None:
        self._read_log()
        if self._events is None:
            time.sleep(wait_s)
            return
        nvml = self._nvml
        try:
            data = nvml.nvmlEventSetWait_v2(self._events, max(1, round(wait_s * 1000)))
        except nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            return
        self._read_log()  # It was written before the event came, and it names the process.
        uuid = self._whose(data.device)
        if uuid is not None:
            self._tell(uuid, int(data.eventData), None)

    def _whose(self, device: Any) -> str | None:
        """The UUID of an event's device: by its handle, else as NVML says it, which a lost GPU's may not."""
        known = {_address(handle): uuid for uuid, handle in self._handles.items()}
        found = known.get(_address(device)) or self._optional(self._nvml.nvmlDeviceGetUUID, device)
        return None if found is None or text(found) not in self._handles else text(found)

    def _read_log(self) -> None:
        for line in self._log.lines():
            found = xid_in(line)
            uuid = self._by_bus.get(found.pci) if found is not None else None
            if found is not None and uuid is not None:
                self._tell(uuid, found.xid, found.pid)

    def _tell(self, uuid: str, xid: int, pid: int | None) -> None:
        """Once per Xid, whoever tells first; again if now the process is known."""
        now_s, key = time.monotonic(), (uuid, xid)
        told_s, told_pid = self._told.get(key, (-SAME_XID_S, None))
        if now_s - told_s < SAME_XID_S and (pid is None or pid == told_pid):
            return
        self._told[key] = (now_s, pid)
        say(XidSeen(uuid=uuid, xid=xid, pid=pid))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class KernelLog:
    """What the kernel says from now on, where we may read it."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            pass  # Not allowed (the common case for users), or a pipe, which has no end to go to.

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def lines(self) -> list[str]:
        """The records that have come since."""
        found: list[str] = []
        for _ in range(_RECORDS_MAX if self._descriptor is not None else 0):
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
            found += data.decode(errors="replace").splitlines()
        return found


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m cotenant.agent.gpus.nvml_watch", description=__doc__)
    known.add_argument("--gpu", metavar="UUID", action="append", default=[], help="watch this one")
    known.add_argument("--period-s", type=float, default=2.0, help="between two looks")
    known.add_argument("--attempts", type=Path, required=True, help="folder of our attempts")
    known.add_argument("--mps-runtime", default="", help="folder below which our MPS daemons live")
    known.add_argument("--kernel-log", default=KERNEL_LOG, help="where the kernel's messages are")
    return known


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        import pynvml
    except ImportError:
        say(Failed(code=12, problem="the Python package nvidia-ml-py is not installed"))
        return 1
    owners = Owners(options.attempts, options.mps_runtime)
    try:
        pynvml.nvmlInit()
        Watch(pynvml, options.gpu, owners, KernelLog(options.kernel_log)).run(options.period_s)
    except pynvml.NVMLError as error:
        say(Failed(code=error.value, problem=in_words(error)))
        return 1
    except (BrokenPipeError, KeyboardInterrupt):  # Nobody listens any more.
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())

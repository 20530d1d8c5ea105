"""The GPUs of this host, watched: what the watchers say becomes faults for the state machine and an offer.

Rule: everything is decided in `health.py`; here its inputs are carried to it, its answers away, and its marks
to disk. Marks are worth something only until the next boot: a file with another boot's id is thrown away.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.edge import AgentConfig, GpuFault
from cotenant.agent.files import BadRecord, read_record, write_record
from cotenant.agent.gpus.health import Condition, Foreign, Health, Mark, Marks
from cotenant.agent.gpus.looks import AnyWatchLine, Began, Look, XidSeen
from cotenant.agent.gpus.watchers import Timing, Watchers
from cotenant.agent.host import now_s
from cotenant.agent.identity import boot_id
from cotenant.agent.memory import Attempt, Key
from cotenant.controller.domain.cluster import Device

MARKS: Final = "devices.json"

Log = Callable[[str], None]


class GpuWatch:
    def __init__(
        self,
        devices: Sequence[Device],
        *,
        state_dir: Path,
        attempts: Path,
        log: Log,
        foreign: Foreign = "avoid",
        busy: Sequence[str] = (),
        timing: Timing | None = None,
    ) -> None:
        """`devices`: those of the host; MIG instances and GPUs that could not be found are not watched."""
        self._path = state_dir / MARKS
        self._log = log
        watched = {d.local: d.reserve_mib for d in devices if is_watched(d)}
        self.health = Health(watched, foreign=foreign, marks=self._load(), busy=busy)
        self._written = _lasting(self.health.marks)
        self._names = {d.local: d.device_id for d in devices}

        self._attempts = attempts
        self._timing = timing if timing is not None else Timing()
        self._told: dict[str, Condition] = {}
        self._watchers = Watchers(
            self._command,
            heard=self._heard,
            unanswered=self._unanswered,
            log=lambda text: self._log(text),
            timing=self._timing,
        )
        self._post: Callable[[GpuFault], None] = lambda fault: None
        self._changed: Callable[[], None] = lambda: None
        self._look_around: Callable[[], tuple[AgentConfig, Sequence[Attempt]]] | None = None

    def start(
        self,
        *,
        post: Callable[[GpuFault], None],
        changed: Callable[[], None],
        look_around: Callable[[], tuple[AgentConfig, Sequence[Attempt]]],
        log: Log,
    ) -> None:
        """Begin to watch. `post` takes faults; `changed` is called when a device's condition has changed;
        `look_around` gives the agent's configuration and its running attempts."""
        self._post, self._changed, self._look_around, self._log = post, changed, look_around, log
        if self.health.uuids:
            self._watchers.start(self.health.uuids)

    def _command(self, uuids: Sequence[str]) -> list[str]:
        assert self._look_around is not None
        mps_runtime = self._look_around()[0].mps_runtime
        return [
            *(sys.executable, "-m", "cotenant.agent.gpus.nvml_watch"),
            *("--attempts", str(self._attempts), "--period-s", str(self._timing.look_s)),
            *(("--mps-runtime", mps_runtime) if mps_runtime else ()),
            *(word for uuid in uuids for word in ("--gpu", uuid)),
        ]

    def close(self) -> None:
        self._watchers.close()

    def conditions(self) -> dict[str, Condition]:
        """Of every watched device now, by UUID."""
        self._refresh()
        self.health.settle(now_s())
        self._store()
        return self.health.conditions()

    @property
    def held(self) -> frozenset[str]:
        """Devices, by UUID, that were last told of because memory is held there without a job's leave."""
        return frozenset(uuid for uuid, condition in self._told.items() if condition.held)

    def attributed(self, fault: GpuFault) -> GpuFault:
        """A fault that was found elsewhere, with what is known here of its processes; its devices wait until
        those who were on them are gone."""
        self._refresh()
        known = self.health.faulted(fault, now_s())
        self._tell()
        return known

    def trust(self) -> None:
        """A person says that all is well."""
        self.health.trusted(now_s())
        self._tell()

    # --- From the watchers -------------------------------------------------------------------------

    def _heard(self, line: AnyWatchLine) -> None:
        self._refresh()
        faults: list[GpuFault] = []
        match line:
            case Look():
                faults = self.health.looked(line, now_s())
            case XidSeen(uuid=uuid, xid=xid, pid=pid):
                process = f" (process {pid})" if pid is not None else ""
                self._log(f"{self._names.get(uuid, uuid)}: Xid {xid}{process}")
                faults = self.health.xid(line, now_s())
            case Began(events=events, kernel_log=kernel_log):
                if not events and not kernel_log:
                    self._log("neither NVML nor the kernel's log tells of Xids here: counters are watched")
            case _:
                pass
        # The device is out before anybody hears that its jobs end: nothing new is put there meanwhile.
        self._tell()
        for fault in faults:
            self._post(fault)

    def _unanswered(self, uuids: tuple[str, ...], why: str) -> None:
        self._refresh()
        self.health.unanswered(uuids, why, now_s())
        self._tell()

    def _tell(self) -> None:
        conditions = self.conditions()
        if conditions != self._told:
            self._told = conditions
            self._changed()

    def _refresh(self) -> None:
        """Tell `health` who is where."""
        if self._look_around is None:
            return
        config, running = self._look_around()
        local = {d.device_id: d.local for d in config.report.devices}
        live: dict[str, set[Key]] = {}
        for attempt in running:
            for device_id in attempt.devices:
                if device_id in local:
                    live.setdefault(local[device_id], set()).add(attempt.key)
        mps = frozenset(d.local for d in config.report.devices if d.sharing == "mps")
        self.health.surroundings({uuid: frozenset(keys) for uuid, keys in live.items()}, mps, now_s())

    # --- The disk ----------------------------------------------------------------------------------

    def _load(self) -> tuple[Mark, ...]:
        try:
            kept = read_record(self._path, Marks)
        except (BadRecord, OSError) as error:
            self._log(f"cannot use {self._path}: {error}")
            return ()
        if kept is None or kept.boot_id != boot_id():
            return ()
        # What has been quiet while nobody watched proves nothing.
        return tuple(msgspec.structs.replace(mark, since_s=now_s()) for mark in kept.marks)

    def _store(self) -> None:
        marks = self.health.marks
        if _lasting(marks) == self._written:
            return
        try:
            write_record(self._path, Marks(boot_id=boot_id(), marks=marks))
        except OSError as error:  # It is known until the agent ends; the next change tries again.
            self._log(f"cannot write {self._path}: {error.strerror}")
        else:
            self._written = _lasting(marks)


def is_watched(device: Device) -> bool:
    """GPUs that work, as far as was known at the start; what the others have will not pass by itself."""
    return device.kind == "cuda" and device.healthy


def _lasting(marks: Sequence[Mark]) -> tuple[tuple[str, str, str], ...]:
    """What makes it worth writing them again."""
    return tuple((mark.uuid, mark.state, mark.why) for mark in marks)

"""Counters of NVIDIA GPUs from DCGM's host engine, by NVIDIA's own Python bindings.

Rule: the engine samples, we ask. A value counts once, by the time the engine gave it: before Hopper not all
counters can be measured at a time, so they take turns, with blanks before their first one. Fields are
addressed by number, because their names differ between versions. The engine is reached by its Unix socket or
on this machine's loopback only, and is never started inside our own process: it would be a second one.

Other clients of the engine may have asked for another period; the engine serves the shortest.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from cotenant.profiler.indicators import counters
from cotenant.profiler.indicators.sources import Fresh, Indicator, IndicatorValues, SourceName, Wanted

BINDINGS: Final = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
"""Where NVIDIA's packages put them, of DCGM 4 and of DCGM 3; they are in no package index."""
BINDINGS_ENV: Final = "COTENANT_DCGM_BINDINGS"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
CONNECT_MS_MAX: Final = 2000
PERIOD_S: Final = 0.1
KEPT_S: Final = 10.0
FIELDS: Final[dict[Indicator, int]] = {
    Indicator.GRACT: 1001,
    Indicator.SMACT: 1002,
    Indicator.SMOCC: 1003,
    Indicator.TENSO: 1004,
    Indicator.DRAMA: 1005,
    Indicator.PCITX: 1009,
    Indicator.PCIRX: 1010,
    Indicator.NVLTX: 1011,
    Indicator.NVLRX: 1012,
    Indicator.FP64A: 1006,
    Indicator.FP32A: 1007,
    Indicator.FP16A: 1008,
    Indicator.INTA: 1016,
}
"""DCGM's number. Shares of 1, and bytes per second."""
FEWER: Final = (9, 7, 5)
"""So many of them are asked for where the engine does not take them all: without the pipes beside the tensor
pipe, without NVLink, without PCIe."""
BUSY: Final = 203
"""NVML's utilisation, in percent."""


class Dcgm(counters.Counters):
    """Some devices, as the host engine of this machine sees them."""

    name: SourceName = "dcgm"
    about = "DCGM's host engine, every {period:g} s"
    offers = tuple(FIELDS)
    gauges = frozenset(FIELDS)
    lacks = "DCGM has no such value of this GPU"
    blank_s = 2.0
    blank = (
        "DCGM answers, but its profiling values stay blank: they need a data-centre GPU, root or "
        "NVreg_RestrictProfilingToAdminUsers=0, and that nobody has paused profiling"
    )
    period_s = PERIOD_S

    def __init__(
        self, pydcgm: Any, address: str, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`address` is a path, or a host on the loopback with or without a port.

        Raises Unsupported.
        """
        super().__init__(uuids, clock)
        self._errors = (pydcgm.dcgm_structs.DCGMError, pydcgm.DcgmException, OSError)
        self._fresh = [{name: Fresh() for name in FIELDS} for _ in uuids]
        self._movements = [counters.Movement() for _ in uuids]
        try:
            self._handle = pydcgm.DcgmHandle(**connection(address), timeoutMs=CONNECT_MS_MAX)
            system = self._handle.GetSystem()
            self._gpus = _numbers(system, uuids)
            mark = f"cotenant-{os.getpid()}-{secrets.token_hex(4)}"  # Pids repeat between containers.
            self._group = system.GetGroupWithGpuIds(mark, [gpu for gpu in self._gpus if gpu is not None])
            self._counters = self._watch(pydcgm, mark, self._measurable())
            self._busy = pydcgm.DcgmFieldGroup(self._handle, name=f"{mark}-busy", fieldIds=[BUSY])
            self._group.samples.WatchFields(self._busy, 1_000_000, KEPT_S, 0)
            system.UpdateAllFields(True)
        except self._errors as error:
            raise counters.Unsupported(f"DCGM at {address}: {error_text(error)}") from None

    @classmethod
    def open(cls, wanted: Wanted, uuids: Sequence[str]) -> Self:
        return cls(bindings(), wanted.dcgm, uuids)

    def _measurable(self) -> list[int]:
        """Which of the fields the GPUs can measure at all, by the engine's word; all, where it has none."""
        try:
            said = self._group.profiling.GetSupportedMetricGroups()
        except self._errors:
            return list(FIELDS.values())
        groups = said.metricGroups[: said.numMetricGroups]
        known = {int(field) for group in groups for field in group.fieldIds[: group.numFieldIds]}
        return [field for field in FIELDS.values() if field in known] or list(FIELDS.values())

    def _watch(self, pydcgm: Any, mark: str, fields: list[int]) -> Any:
        """Engines refuse a group with a field that a GPU lacks: then fewer are asked for."""
        try:
            group = pydcgm.DcgmFieldGroup(self._handle, name=f"{mark}-{len(fields)}", fieldIds=fields)
            self._group.samples.WatchFields(group, int(PERIOD_S * 1e6), KEPT_S, 0)
        except self._errors:
            fewer = next((count for count in FEWER if count < len(fields)), 0)
            if not fewer:
                raise
            return self._watch(pydcgm, mark, fields[:fewer])
        return group

    def read_devices(self, at_s: float) -> list[IndicatorValues]:
        """What the engine measured since the last time; nothing of a GPU whose counters do not move."""
        found = self._latest(self._counters)
        self._problems = ["" if each else "DCGM knows nothing of this GPU" for each in found]
        gracts = [_value(known, FIELDS[Indicator.GRACT]) for known in found]
        busy = self._latest(self._busy) if 0.0 in gracts else [{}] * len(found)
        devices: list[IndicatorValues] = []
        for number, (known, state, gract) in enumerate(zip(found, busy, gracts, strict=True)):
            new = {
                name: self._fresh[number][name].take(_value(known, field), _stamp_s(known, field))
                for name, field in FIELDS.items()
            }
            if self._movements[number].is_stuck(gract, _value(state, BUSY), at_s):
                self._problems[number], new = counters.STUCK, {}
            devices.append(new)
        return devices

    def _latest(self, group: Any) -> list[Any]:
        """The latest values of each device, by field number. Raises Unsupported: the engine does not
        answer."""
        try:
            known = self._group.samples.GetLatest(group).values
        except self._errors as error:
            raise counters.Unsupported(f"DCGM: {error_text(error)}") from None
        return [known.get(gpu, {}) for gpu in self._gpus]

    def close(self) -> None:
        """The engine forgets what we asked for when we disconnect."""
        with contextlib.suppress(*self._errors):  # It may have gone first.
            self._handle.Shutdown()


def bindings() -> Any:
    """The bindings of DCGM: NVIDIA's `pydcgm`.

    Raises:
        Unsupported: it is not on this machine, or cannot be used.
    """
    wanted = os.environ.get(BINDINGS_ENV)
    folders = (wanted,) if wanted else BINDINGS
    folder = next((each for each in folders if Path(each, "pydcgm.py").is_file()), None)
    if folder is None:
        where = " or ".join(folders)
        raise counters.Unsupported(f"no DCGM bindings in {where}: install datacenter-gpu-manager-4-core")
    sys.path.append(folder)
    try:
        import pydcgm
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        raise counters.Unsupported(
            f"the DCGM bindings in {folder} cannot be loaded: {error_text(error)}"
        ) from None
    return pydcgm


def connection(address: str) -> dict[str, str]:
    """How pydcgm is told where the engine is.

    Raises:
        Unsupported: an address that is not on this machine.
    """
    if address.startswith("/"):
        return {"unixSocketPath": address}
    host = address.rpartition(":")[0] if address.count(":") == 1 or "]:" in address else address
    if host not in LOOPBACK:
        raise counters.Unsupported(
            f"profiler.dcgm = {address!r}: write the path of the engine's Unix socket, or 127.0.0.1[:PORT]"
        )
    return {"ipAddress": address}


def _numbers(system: Any, uuids: Sequence[str]) -> list[int | None]:
    """DCGM's own numbers of the devices; None for one that it does not support. Raises Unsupported: none."""
    by_uuid = {}
    for gpu in system.discovery.GetAllSupportedGpuIds():
        uuid = system.discovery.GetGpuAttributes(gpu).identifiers.uuid
        by_uuid[uuid.decode() if isinstance(uuid, bytes) else str(uuid)] = int(gpu)
    if not set(uuids) & set(by_uuid):
        raise counters.Unsupported(f"DCGM does not support {', '.join(uuids)}")
    return [by_uuid.get(uuid) for uuid in uuids]


def _value(known: Any, field: int) -> float:
    """The newest value of a field, NaN: blank, or none."""
    series = known.get(field)
    return float(series[-1].value) if series and not series[-1].isBlank else math.nan


def _stamp_s(known: Any, field: int) -> float:
    series = known.get(field)
    return float(series[-1].ts) / 1e6 if series else 0.0


def error_text(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]

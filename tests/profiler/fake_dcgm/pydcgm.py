"""FAKE. As much of NVIDIA's pydcgm as is used, in front of a host engine that is made up.

The environment says how it behaves: FAKE_DCGM is a JSON object with
    gpus        DCGM's number -> UUID
    listens     addresses at which the engine is found
    values      field number -> value
    refuses     fields that no group may have
    blanks      how many updates of every field are blank at first
    turns       fields that are updated every second time only
    hangs       the connection is never made
    measures    fields that the GPUs can measure, where the engine says which
    prints      what the library prints on standard output, as C does
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import dcgm_structs  # type: ignore[import-not-found]

SAYS: dict[str, Any] = json.loads(os.environ.get("FAKE_DCGM", "{}"))
BLANK = 140737488355328.0


class DcgmException(Exception):
    pass


class DcgmHandle:
    fake = True

    def __init__(
        self, ipAddress: str | None = None, unixSocketPath: str | None = None, timeoutMs: int = 0
    ) -> None:
        if SAYS.get("hangs"):
            time.sleep(3600.0)
        if (ipAddress or unixSocketPath) not in SAYS.get("listens", ["127.0.0.1"]):
            raise dcgm_structs.DCGMError("Host engine connection invalid/disconnected")

        os.write(1, SAYS.get("prints", "").encode())

    def GetSystem(self) -> System:
        return System()

    def Shutdown(self) -> None:
        pass


class System:
    def __init__(self) -> None:
        self.discovery = self

    def GetAllSupportedGpuIds(self) -> list[int]:
        return [int(number) for number in SAYS["gpus"]]

    def GetGpuAttributes(self, gpu: int) -> Any:
        return SimpleNamespace(identifiers=SimpleNamespace(uuid=SAYS["gpus"][str(gpu)].encode()))

    def GetGroupWithGpuIds(self, name: str, gpus: list[int]) -> Group:
        return Group(gpus)

    def UpdateAllFields(self, wait: bool) -> None:
        pass


class DcgmFieldGroup:
    def __init__(self, handle: DcgmHandle, name: str, fieldIds: list[int]) -> None:
        self.fields = fieldIds
        self.watched_s = self.period_s = 0.0


class Group:
    def __init__(self, gpus: list[int]) -> None:
        self.gpus = gpus
        self.samples = self.profiling = self

    def GetSupportedMetricGroups(self) -> Any:
        """Ten places for groups of up to 64 fields; the rest of both is empty."""
        if "measures" not in SAYS:
            raise dcgm_structs.DCGMError("Profiling is not supported for this group of GPUs or GPU")
        fields = SAYS["measures"]
        empty = SimpleNamespace(numFieldIds=0, fieldIds=[0] * 64)
        group = SimpleNamespace(numFieldIds=len(fields), fieldIds=[*fields, *[1016] * (64 - len(fields))])
        return SimpleNamespace(numMetricGroups=1, metricGroups=[group, *[empty] * 9])

    def WatchFields(self, fields: DcgmFieldGroup, period_us: int, keep_s: float, keep: int) -> None:
        if set(fields.fields) & set(SAYS.get("refuses", [])):
            raise dcgm_structs.DCGMError("Feature not supported")
        fields.watched_s, fields.period_s = time.time(), period_us / 1e6

    def GetLatest(self, fields: DcgmFieldGroup) -> Any:
        updates = int((time.time() - fields.watched_s) / fields.period_s)
        known = {field: [self._value(fields, field, updates)] for field in fields.fields}
        return SimpleNamespace(values=dict.fromkeys(self.gpus, known))

    def _value(self, fields: DcgmFieldGroup, field: int, updates: int) -> Any:
        number = updates // 2 * 2 if field in SAYS.get("turns", []) else updates
        value = SAYS.get("values", {}).get(str(field))
        is_blank = value is None or number < SAYS.get("blanks", 0)
        stamp_us = int((fields.watched_s + number * fields.period_s) * 1e6)
        return SimpleNamespace(ts=stamp_us, isBlank=is_blank, value=BLANK if is_blank else value)

"""Ask NVML how much memory of some devices is in use, and by whom: `python -m cotenant.agent.gpus.held_probe
UUID...`.

Rule: prints one `Answer` as JSON and ends with 0, whatever NVML does; whoever asks kills it when it hangs.
Devices are named by UUID, and what the driver does not say stays unsaid.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from cotenant.agent.gpus.held import Answer, DeviceUse, Holder
from cotenant.agent.gpus.nvml_calls import MIB, compute_processes, graphics_processes, in_words
from cotenant.agent.identity import stat_of


def ask(pynvml: ModuleType, uuids: list[str]) -> Answer:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Answer(problem=in_words(error))
    try:
        return Answer(devices=tuple(_use(pynvml, uuid) for uuid in uuids))
    finally:
        pynvml.nvmlShutdown()


def _use(pynvml: ModuleType, uuid: str) -> DeviceUse:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        used_mib = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // MIB
    except pynvml.NVMLError as error:
        return DeviceUse(uuid=uuid, used_mib=0, problem=in_words(error))
    return DeviceUse(uuid=uuid, used_mib=used_mib, holders=_holders(pynvml, handle))


def _holders(pynvml: ModuleType, handle: Any) -> tuple[Holder, ...]:
    """Each process once, though it may both compute and draw. What a driver does not list stays unsaid."""
    used: dict[int, int | None] = {}
    for listed in (graphics_processes, compute_processes):
        with suppress(pynvml.NVMLError):
            used |= dict(listed(pynvml, handle))
    return tuple(_holder(pid, used_mib) for pid, used_mib in sorted(used.items()))


def _holder(pid: int, used_mib: int | None) -> Holder:
    stat = stat_of(pid)
    if stat is None:
        return Holder(pid=pid, used_mib=used_mib)
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        name = ""
    return Holder(pid=pid, used_mib=used_mib, state=stat.state, name=name)


def main(uuids: list[str]) -> int:
    try:
        import pynvml
    except ImportError:
        answer = Answer(problem="the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py")
    else:
        answer = ask(pynvml, uuids)
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

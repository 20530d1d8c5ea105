"""Ask NVML how much memory of some devices is in use, and by whom: `python -m cotenant.agent.gpus.held_probe
UUID...`.

Rule: prints one `Answer` as JSON and ends with 0, whatever NVML does; whoever asks kills it when it hangs.
Devices are named by UUID, and what the driver does not say stays unsaid.
"""

from __future__ import annotations

import sys

from cotenant.agent.gpus.held import Answer, DeviceUse, Holder
from cotenant.agent.identity import stat_of
from cotenant.profiler.driver import who
from cotenant.profiler.driver.failures import NvmlError
from cotenant.profiler.driver.library import Library, tell
from cotenant.profiler.driver.reading import handle_of, memory_mib, named_processes


def use(nvml: Library, uuid: str) -> DeviceUse:
    try:
        handle = handle_of(nvml, uuid)
        taken_mib = memory_mib(nvml, handle).taken_mib
    except NvmlError as error:
        return DeviceUse(uuid=uuid, used_mib=0, problem=str(error))
    named, _ = named_processes(nvml, handle)
    return DeviceUse(
        uuid=uuid,
        used_mib=taken_mib,
        holders=tuple(_holder(each.pid, each.memory_mib) for each in named),
    )


def _holder(pid: int, used_mib: int | None) -> Holder:
    stat = stat_of(pid)
    if stat is None:
        return Holder(pid=pid, used_mib=used_mib)
    return Holder(pid=pid, used_mib=used_mib, state=stat.state, name=who.name(pid))


def main(uuids: list[str]) -> int:
    return tell(
        lambda nvml: Answer(devices=tuple(use(nvml, uuid) for uuid in uuids)),
        lambda error: Answer(problem=str(error)),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Read and set the compute mode of a GPU, in a process of its own: `python -m cotenant.agent.gpus.mps_modes`.

Rule: NVML may hang, so nobody calls it in the agent. The child prints one line of JSON and ends with 0,
whatever NVML does; the parent waits a limited time.

    python -m cotenant.agent.gpus.mps_modes UUID         {"mode": 0}
    python -m cotenant.agent.gpus.mps_modes UUID 3       {"mode": 3}, or {"problem": "why not"}
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.mps.exclusive import ModeRefused
from cotenant.profiler.driver.asking import NoAnswer, ask
from cotenant.profiler.driver.library import Library, tell
from cotenant.profiler.driver.reading import handle_of

CALL_S: Final = 20.0


class NvmlModes:
    """`mps.exclusive.Modes` by way of NVML."""

    def mode(self, uuid: str) -> int:
        return _ask(uuid)

    def set_mode(self, uuid: str, mode: int) -> None:
        found = _ask(uuid, str(mode))
        if found != mode:
            raise ModeRefused(f"the driver left {uuid} in compute mode {found}")


class Mode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the child prints."""

    mode: int | None = None
    problem: str = ""


def _ask(*arguments: str) -> int:
    """Raises ModeRefused."""
    try:
        told = ask((sys.executable, "-m", "cotenant.agent.gpus.mps_modes", *arguments), Mode, CALL_S)
    except NoAnswer as why:
        raise ModeRefused(str(why)) from None
    if told.mode is None:
        raise ModeRefused(told.problem)
    return told.mode


def _answer(nvml: Library, uuid: str, mode: int | None) -> Mode:
    handle = handle_of(nvml, uuid)
    if mode is not None:
        nvml.ask("nvmlDeviceSetComputeMode", handle, mode)
    return Mode(mode=int(nvml.ask("nvmlDeviceGetComputeMode", handle)))


def main(argv: Sequence[str] | None = None) -> int:
    uuid, *rest = sys.argv[1:] if argv is None else argv
    mode = int(rest[0]) if rest else None
    return tell(lambda nvml: _answer(nvml, uuid, mode), lambda error: Mode(problem=str(error)))


if __name__ == "__main__":
    sys.exit(main())

"""Read and set the compute mode of a GPU, in a process of its own: `python -m cotenant.agent.gpus.mps_modes`.

Rule: NVML may hang, so nobody calls it in the agent. The child prints one line of JSON and ends with 0,
whatever NVML does; the parent waits a limited time.

    python -m cotenant.agent.gpus.mps_modes UUID         {"mode": 0}
    python -m cotenant.agent.gpus.mps_modes UUID 3       {"mode": 3}, or {"problem": "why not"}
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from cotenant.agent.gpus.nvml_calls import in_words
from cotenant.mps.exclusive import ModeRefused

CALL_S: Final = 20.0


class NvmlModes:
    """`mps.exclusive.Modes` by way of NVML."""

    def mode(self, uuid: str) -> int:
        return _ask(uuid)

    def set_mode(self, uuid: str, mode: int) -> None:
        found = _ask(uuid, str(mode))
        if found != mode:
            raise ModeRefused(f"the driver left {uuid} in compute mode {found}")


def _ask(*arguments: str) -> int:
    command = (sys.executable, "-m", "cotenant.agent.gpus.mps_modes", *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=CALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModeRefused(f"NVML did not answer within {CALL_S:.0f} s") from None
    try:
        told = json.loads(done.stdout)
        if "mode" in told:
            return int(told["mode"])
        raise ModeRefused(str(told["problem"]))
    except (ValueError, KeyError, TypeError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise ModeRefused(f"asking NVML failed: {last[0]}") from None


def _answer(pynvml: Any, uuid: str, mode: int | None) -> dict[str, int | str]:
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if mode is not None:
                pynvml.nvmlDeviceSetComputeMode(handle, mode)
            return {"mode": int(pynvml.nvmlDeviceGetComputeMode(handle))}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return {"problem": in_words(error)}


def main(argv: Sequence[str] | None = None) -> int:
    uuid, *rest = sys.argv[1:] if argv is None else argv
    try:
        import pynvml
    except ImportError:
        answer: dict[str, int | str] = {"problem": "the Python package nvidia-ml-py is not installed"}
    else:
        answer = _answer(pynvml, uuid, int(rest[0]) if rest else None)
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

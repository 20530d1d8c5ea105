"""NVML's return codes in our words: pure.

Rule: whoever shows an error shows these words. What is wrong and what to do are apart, since `doctor` has a
command of its own for what to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOT_NVMLS: Final = 0
"""Stands for a failure that NVML has no code for: nobody could ask it."""
NO_PERMISSION: Final = 4
NOT_LOADED: Final = 9
TIMEOUT: Final = 10
NO_LIBRARY: Final = 12
FUNCTION_NOT_FOUND: Final = 13
LOST: Final = 15
RESET_REQUIRED: Final = 16
MISMATCH: Final = 18
UNKNOWN: Final = 999


class NvmlFailure(NamedTuple):
    what: str
    todo: str


# As nvml.h numbers them.
FAILURES: Final[dict[int, NvmlFailure]] = {
    NO_PERMISSION: NvmlFailure(
        "this user may not talk to the NVIDIA driver", "check the permissions of /dev/nvidia*"
    ),
    NOT_LOADED: NvmlFailure(
        "the NVIDIA driver is not loaded", "run `nvidia-smi` as root, or `modprobe nvidia`"
    ),
    11: NvmlFailure("the NVIDIA driver has a problem with its interrupts", "see `dmesg`"),
    NO_LIBRARY: NvmlFailure("no NVIDIA driver library, libnvidia-ml.so.1, on this machine", ""),
    FUNCTION_NOT_FOUND: NvmlFailure("the NVIDIA driver is too old for this question", "update it"),
    LOST: NvmlFailure("a GPU has fallen off the bus", "reboot the host"),
    RESET_REQUIRED: NvmlFailure("a GPU needs a reset", "`nvidia-smi --gpu-reset`, or reboot the host"),
    MISMATCH: NvmlFailure(
        "driver and library have different versions", "reload the driver, or reboot the host"
    ),
}


class NvmlError(Exception):
    """NVML has refused; the text says why, and what to do where we know."""

    def __init__(self, code: int, own_words: str = "") -> None:
        """`own_words`: NVML's, for a code that we have none for; ours where it was not NVML."""
        self.code = code
        if code == NOT_NVMLS:
            self.what = own_words
        else:
            self.what = FAILURES[code].what if code in FAILURES else f"NVML error {code}: {own_words}"
        super().__init__(advised(self.what, code))


def advised(what: str, code: int) -> str:
    """What is wrong, and what to do about it where we know."""
    todo = FAILURES[code].todo if code in FAILURES else ""
    return f"{what}: {todo}" if todo else what

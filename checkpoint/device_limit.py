"""How much of each of its CUDA devices this process may have, and how much of one is in use.

Rule: no device is opened for the sake of its limit. A CUDA context takes hundreds of MiB, and a process that
sees several devices may use one of them. A torch that reads the fraction from its allocator's settings also
sets one without a context: there all devices are limited at once, when CUDA is first used. An older torch
opens the device whose limit is set, and its C++ gives no sign when a device is first used; so a thread looks
which devices have a context, and each is limited as soon as it has one. What was taken meanwhile counts
against the limit.

A limit comes in MiB and becomes a fraction of what torch multiplies, for each device by itself: devices
differ in size. A smaller fraction of the script's own wins, a larger one does not.

A client of MPS is limited twice. Nothing tells it whether the driver enforces the limit it was given (a
spelling that it does not like is dropped without a word), so torch's allocator is held to the same number.
Where both work the driver's is met first, since it counts more than torch does."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

import torch

from cotenant.checkpoint.talk.protocol import JobEnvironment

ENV_MPS_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""MPS's own variable: `0=4096M`, by the number of the device as this process counts them."""
WITHOUT_CONTEXT: Final = (2, 13)
"""From this torch on the native allocator is taken to accept a fraction without opening the device. Its
headers have been seen to have what came with that (`per_process_memory_fraction`, pytorch pull request 161035
of autumn 2025); earlier releases may do so as well, and are treated with more care than they need. Where it
is not so a process opens devices of its own job too early, and is limited all the same."""
THREAD: Final = "cotenant-limit"
LOOK_S: Final = 0.05
"""Between two looks for devices that have been opened, at first."""
LOOKS_OFTEN_S: Final = 60.0
LOOK_LATER_S: Final = 1.0
_LIMIT: Final = re.compile(r"[^=,]+=(\d+)M")
_MIB: Final = 1024 * 1024
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class DeviceShare:
    """A share of each device: bytes, or a fraction where the job's environment says no more."""

    size_bytes: int | None = None
    fraction: float | None = None

    def fraction_of(self, total_bytes: int) -> float:
        """The fraction of a device of this size."""
        if self.size_bytes is not None:
            return min(1.0, self.size_bytes / total_bytes)
        return 1.0 if self.fraction is None else self.fraction

    def __str__(self) -> str:
        if self.size_bytes is not None:
            return f"{self.size_bytes // _MIB} MiB"
        return f"{self.fraction:.0%}" if self.fraction is not None else "all"


def share_of(env: JobEnvironment, environ: Mapping[str, str]) -> DeviceShare | None:
    """What was planned for this process; None: nothing was."""
    if env.memory_mib is not None:
        return DeviceShare(size_bytes=env.memory_mib * _MIB)
    if env.memory_fraction is not None:
        return DeviceShare(fraction=env.memory_fraction)
    limit = mps_limit_bytes(environ) if env.socket is not None else None
    return DeviceShare(size_bytes=limit) if limit is not None else None


def mps_limit_bytes(environ: Mapping[str, str]) -> int | None:
    """The smallest limit that the agent gave this client of MPS; None where there is none."""
    found = [int(number) for number in _LIMIT.findall(environ.get(ENV_MPS_LIMIT, ""))]
    return min(found) * _MIB if found else None


class DeviceLimits:
    """The limits of one process's devices."""

    def __init__(self, share: DeviceShare, plain: Any = None) -> None:
        """Keeps the share to apply. plain: torch's own `set_per_process_memory_fraction`, where something
        wraps it."""
        self._share = share
        self._plain = plain or torch.cuda.set_per_process_memory_fraction
        self._asked: dict[int, float] = {}
        """Fractions that the script set itself, by the number of the device."""
        self._without_context = _sets_without_context()

    def begin(self) -> None:
        """CUDA is used for the first time. Returns at once."""
        count = torch.cuda.device_count()
        if self._without_context or count == 1:  # The only device is about to be opened anyway.
            for no in range(count):
                self.hold(no)
        else:
            if not hasattr(torch._C, "_cuda_hasPrimaryContext"):
                raise RuntimeError("this torch does not say which devices are open")
            threading.Thread(target=self._hold_as_opened, name=THREAD, daemon=True).start()

    def hold(self, no: int) -> None:
        """Have torch take no more of this device; it is opened by that where torch is old."""
        self._plain(min(self._fraction(no), self._own(no)), no)

    def note_asked(self, fraction: Any, device: Any = None) -> None:
        """The script sets a fraction by itself."""
        if isinstance(fraction, float) and 0 <= fraction <= 1:
            no = torch.cuda.current_device() if device is None else _number(device)
            self._asked[no] = fraction
            device, fraction = no, min(fraction, self._fraction(no))
        self._plain(fraction, device)  # It says what is wrong with anything else.

    def _fraction(self, no: int) -> float:
        """A client of MPS may be shown the limit as its device's whole memory by one of the two calls."""
        if self._without_context:
            return self._share.fraction_of(torch.cuda.get_device_properties(no).total_memory)
        return self._share.fraction_of(torch.cuda.mem_get_info(no)[1])

    def _own(self, no: int) -> float:
        set_before = _fraction_now(no) if self._without_context else 1.0
        return min(self._asked.get(no, 1.0), set_before)

    def _hold_as_opened(self) -> None:
        waiting = list(range(torch.cuda.device_count()))
        is_open = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009  # CPU builds have no such name.
        began_s = monotonic()
        while waiting:
            for no in [each for each in waiting if is_open(each)]:
                waiting.remove(no)
                try:
                    self.hold(no)
                except Exception as error:  # noqa: BLE001  # an allocator of the script's own, say
                    say_unlimited(error)
            sleep(LOOK_S if monotonic() - began_s < LOOKS_OFTEN_S else LOOK_LATER_S)


_LIMITS: list[DeviceLimits] = []
"""At most one: the object that enforces this process's limits."""


def limits_of(environ: Mapping[str, str], plain: Any = None) -> DeviceLimits | None:
    """The process's own, made when first asked for; None: nothing was planned for it."""
    if not _LIMITS:
        share = share_of(JobEnvironment.read(environ), environ)
        if share is None:
            return None
        _LIMITS.append(DeviceLimits(share, plain))
    return _LIMITS[0]


def limit_memory(env: JobEnvironment, device: torch.device | None = None) -> None:
    """Hold the device that trains, also where nothing was installed that does so at the first use of CUDA.

    Args:
        device: where it trains; None: torch's current one.
    """
    if not torch.cuda.is_available():
        return
    share = share_of(env, os.environ)
    if share is None:
        return
    limits = _LIMITS[0] if _LIMITS else DeviceLimits(share)
    limits.hold(torch.cuda.current_device() if device is None else _number(device))


class SharedLimits:
    """What others leave of the devices, as long as they are there: for a process that started without a
    limit, when nobody was there and perhaps nobody knew how much it needs. Limits only devices that it has
    open; memory that it has cached beyond its limit goes back when it asks for more."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}

    def keep_to(self, memory_mib: int | None) -> None:
        """Limits the memory of each device; None: all of it, as before. Called from the listener's thread;
        does not raise."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        try:
            for no in open_devices():
                before = self._before.setdefault(no, _fraction_now(no))
                room = 1.0 if memory_mib is None else memory_mib * _MIB / torch.cuda.mem_get_info(no)[1]
                torch.cuda.set_per_process_memory_fraction(min(before, room), no)
        except Exception as error:  # noqa: BLE001  # an allocator of the script's own, say
            say_unlimited(error)


def open_devices() -> list[int]:
    """Devices on which this process has a context."""
    count = torch.cuda.device_count()
    is_open = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if is_open is None:
        return [0] if count == 1 else []
    return [no for no in range(count) if is_open(no)]


def _fraction_now(no: int) -> float:
    """1.0 where torch does not say."""
    known = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
    return float(known(no)) if known is not None else 1.0


def say_unlimited(error: BaseException) -> None:
    """Say so once, in the job's log; the script runs on."""
    text = f"cotenant: this process is not held to its part of the GPU ({type(error).__name__}: {error})\n"
    if sys.__stderr__ is not None:
        sys.__stderr__.write(text)


def _number(device: Any) -> int:
    index: int | None = device if isinstance(device, int) else torch.device(device).index
    return torch.cuda.current_device() if index is None else int(index)


def _sets_without_context() -> bool:
    found = _VERSION.match(torch.__version__)
    backend = getattr(torch.cuda.memory, "get_allocator_backend", None)
    new = found is not None and (int(found[1]), int(found[2])) >= WITHOUT_CONTEXT
    return new and backend is not None and backend() == "native"  # cudaMallocAsync opens the device.


def used_bytes(device: int) -> int:
    """The bytes in use on a device, whoever uses it. A client of MPS may be shown what is free of its limit
    beside the total of the whole device: then what it does not have is not in use."""
    free, total = torch.cuda.mem_get_info(device)
    limit = mps_limit_bytes(os.environ)
    if limit is not None and limit < total and limit - free >= torch.cuda.memory_reserved(device):
        return int(limit - free)
    return int(total - free)

"""What a process that must not hang can learn of GPUs: by asking the driver in a child, with a time limit;
and from the PCI bus, where they are seen without any driver.

Rule: we kill a child that hangs, and leave it behind where the kernel does not let go of it. With too many
such children we ask no more. One GPU that hangs does not hide the others: we then ask about each in a child
of its own.

What is on the bus need not be ours to use: a container sees its host's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.controller.wire import BadMessage, decode_json
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts

DRIVER_S_MAX: Final = 180.0
"""The first question after a boot may start the driver, which takes minutes on large machines. It is unloaded
when nobody has a session any more: the first child keeps its own while others ask."""
SAY_S: Final = 15.0
LOADING: Final = "{} has not answered for {:g} s; a driver that is being loaded may take minutes"
ONE_GPU_S_MAX: Final = 10.0
"""The driver runs by then."""
GPUS_MAX: Final = 64
NO_WORD: Final = "NVML does not answer when it is asked about it: see `dmesg`"
TWIN: Final = "it has the UUID of GPU {0}, {1}: programs that name it would get that one"
KILL_WAIT_S: Final = 2.0
STUCK_MAX: Final = 4
REASON_CHARS: Final = 300

ProbeAnswer = TypeVar("ProbeAnswer", bound=msgspec.Struct)

_left_behind: list[subprocess.Popen[bytes]] = []


class NoProbeAnswer(Exception):
    """Why there is none, for a person."""


class Silence(NoProbeAnswer):
    """The time was over: something hangs."""


def driver_facts(
    timeout_s: float = DRIVER_S_MAX,
    *,
    diagnostics: bool = False,
    words: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    say_s: float = SAY_S,
) -> DriverFacts:
    """What NVML says of this host's GPUs; `words` answer like `probe`, which they are by default. `say` is
    called every `say_s` while there is no answer."""
    usual = (
        sys.executable,
        "-m",
        "cotenant.profiler.driver.probe",
        *(("--diagnostics",) if diagnostics else ()),
    )
    limit_s = min(timeout_s, ONE_GPU_S_MAX)

    def ask_one_by_one() -> DriverFacts | None:
        return None if words else one_by_one(lambda *more: ask((*usual, *more), DriverFacts, limit_s))

    try:
        found = ask(words or usual, DriverFacts, timeout_s, meanwhile=ask_one_by_one, say=say, say_s=say_s)
    except NoProbeAnswer as why:
        return DriverFacts(problem=str(why))
    return msgspec.structs.replace(found, gpus=_mark_twins(found.gpus))


def _mark_twins(gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
    """The GPUs; one with the UUID of another has a problem and no UUID, which would name the other."""
    first: dict[str, int] = {}
    return tuple(
        gpu
        if not gpu.uuid or first.setdefault(gpu.uuid, gpu.index) == gpu.index
        else GpuFacts(index=gpu.index, bus=gpu.bus, problem=TWIN.format(first[gpu.uuid], gpu.uuid))
        for gpu in gpus
    )


def one_by_one(asked: Callable[..., DriverFacts]) -> DriverFacts | None:
    """Asks for each GPU by itself; those that do not answer come with a problem. None: it is not a GPU that
    hangs.

    `asked(*words)` asks `probe` with these; raises NoProbeAnswer.
    """
    whole, gpus, nameless = DriverFacts(), list[GpuFacts](), 0
    for index in range(GPUS_MAX):
        try:
            answer = asked("--gpu", str(index))
        except NoProbeAnswer:
            uuid = _name_of(asked, index)
            gpus.append(GpuFacts(index=index, uuid=uuid, problem=NO_WORD))
            nameless = 0 if uuid else nameless + 1
        else:
            if answer.problem:
                return answer
            if not answer.gpus:  # There are no more.
                break
            whole, nameless = answer, 0
            gpus += answer.gpus
        if nameless > 1:
            return None
    return msgspec.structs.replace(whole, gpus=tuple(gpus)) if whole.gpus else None


def _name_of(asked: Callable[..., DriverFacts], index: int) -> str:
    """The UUID of a GPU that hangs at some other question; empty: at this one as well."""
    try:
        answer = asked("--gpu", str(index), "--uuid")
    except NoProbeAnswer:
        return ""
    return answer.gpus[0].uuid if answer.gpus else ""


def ask(
    words: Sequence[str],
    kind: type[ProbeAnswer],
    timeout_s: float,
    whom: str = "NVML",
    *,
    meanwhile: Callable[[], ProbeAnswer | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    say_s: float = SAY_S,
    left_behind: list[subprocess.Popen[bytes]] = _left_behind,
) -> ProbeAnswer:
    """Runs a program and returns what it prints: one `kind` as JSON. Where it does not answer in time,
    `meanwhile` may, before the program is killed. Raises NoProbeAnswer."""
    for child in [each for each in left_behind if each.poll() is not None]:
        left_behind.remove(child)
    if len(left_behind) >= STUCK_MAX:
        raise NoProbeAnswer(f"{len(left_behind)} processes that asked hang in the driver: reboot the host")
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise NoProbeAnswer(f"cannot start {words[0]}: {error.strerror}") from None
    output = _wait_for_output(child, timeout_s, lambda waited_s: say(LOADING.format(whom, waited_s)), say_s)
    if output is None:
        try:
            instead = meanwhile()
        finally:
            if not _kill_child(child):
                left_behind.append(child)
        if instead is None:
            raise Silence(f"{whom} did not answer within {timeout_s:g} s (is a GPU hung? see `dmesg`)")
        return instead
    said, complaint = output
    try:
        answer: ProbeAnswer = decode_json(said, kind)
    except BadMessage:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {child.returncode}"]
        raise NoProbeAnswer(f"asking {whom} failed: {last[0][:REASON_CHARS]}") from None
    return answer


def _wait_for_output(
    child: subprocess.Popen[bytes], timeout_s: float, say: Callable[[float], None], say_s: float
) -> tuple[bytes, bytes] | None:
    """What it printed, on standard output and error; None: it did not end in time."""
    waited_s = 0.0
    while waited_s < timeout_s:
        try:
            return child.communicate(timeout=min(say_s, timeout_s - waited_s))
        except subprocess.TimeoutExpired:
            waited_s += say_s
            say(waited_s)
    return None


def _kill_child(child: subprocess.Popen[bytes]) -> bool:
    """Whether the kill ended it."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(KILL_WAIT_S)
    return child.returncode is not None


# --- The bus ---------------------------------------------------------------------------------------


DEVICES: Final = "sys/bus/pci/devices"
VENDOR: Final = "0x10de"
CLASSES: Final = ("0x0300", "0x0302")
"""Display controllers, and 3D controllers, which have no display."""


def gpus_on_the_bus(root: Path = Path("/")) -> tuple[str, ...] | None:
    """The addresses of the GPUs on the bus, such as `0000:3b:00.0`; None: the bus cannot be read."""
    folder = root / DEVICES
    try:
        return tuple(sorted(device.name for device in folder.iterdir() if _is_gpu(device)))
    except OSError:
        return None


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return False
    return vendor == VENDOR and kind[:6] in CLASSES

"""What a process that must not hang can learn of GPUs: by asking the driver in a child, with a time limit;
and from the PCI bus, where they are seen without any driver.

Rule: we kill a child that hangs, and leave it behind where the kernel does not let go of it. With too many
such children we ask no more. One GPU that hangs does not hide the others: a further child asks about those
behind it.

What is on the bus need not be ours to use: a container sees its host's.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.controller.wire import BadMessage, decode_json
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts

DRIVER_S_MAX: Final = 180.0
"""The first answer after a boot may start the driver, which takes minutes on large machines. It is unloaded
when nobody has a session any more: the first child keeps its own while others ask."""
ONE_GPU_S_MAX: Final = 10.0
"""The driver runs by then."""
SAY_S: Final = 15.0
LOADING: Final = "NVML has not answered for {:g} s; a driver that is being loaded may take minutes"
TWIN: Final = "it has the UUID of GPU {0}, {1}: programs that name it would get that one"
KILL_WAIT_S: Final = 2.0
SOON_S: Final = 0.1
STUCK_MAX: Final = 4
REASON_CHARS: Final = 300
LINE_BYTES_MAX: Final = 8 * 1024 * 1024
READ_BYTES: Final = 256 * 1024

ProbeAnswer = TypeVar("ProbeAnswer", bound=msgspec.Struct)

_left_behind: list[subprocess.Popen[bytes]] = []


class NoProbeAnswer(Exception):
    """Why there is none, for a person."""


class Silence(NoProbeAnswer):
    """The time was over: something hangs."""

    def __init__(self, whom: str, limit_s: float) -> None:
        super().__init__(f"{whom} did not answer within {limit_s:g} s (is a GPU hung? see `dmesg`)")


# --- The child -------------------------------------------------------------------------------------


class Child:
    """A process that asks the driver and answers in lines of JSON."""

    def __init__(
        self,
        words: Sequence[str],
        whom: str = "NVML",
        *,
        keeps_complaints: bool = True,
        left_behind: list[subprocess.Popen[bytes]] = _left_behind,
    ) -> None:
        """Starts it. `keeps_complaints`: the last line on its standard error is the reason if it makes no
        sense. Raises NoProbeAnswer."""
        for child in [each for each in left_behind if each.poll() is not None]:
            left_behind.remove(child)
        if len(left_behind) >= STUCK_MAX:
            raise NoProbeAnswer(
                f"{len(left_behind)} processes that asked hang in the driver: reboot the host"
            )
        self._whom, self._left_behind, self._rest = whom, left_behind, b""
        self._complaints = tempfile.TemporaryFile() if keeps_complaints else None  # noqa: SIM115 - close().
        pipe, complaints = subprocess.PIPE, self._complaints or subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=complaints, bufsize=0)
        except OSError as error:
            if self._complaints is not None:
                self._complaints.close()
            raise NoProbeAnswer(f"cannot start {words[0]}: {error.strerror}") from None

    def ask(self) -> None:
        """Has one that answers questions answer. It may have ended; then its last word says why."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(b"\n")

    def answer(self, kind: type[ProbeAnswer], wait_s: float) -> ProbeAnswer | None:
        """The next line; None: it is not whole within `wait_s`. Raises NoProbeAnswer: there will be none."""
        assert self.process.stdout is not None
        until_s = time.monotonic() + wait_s
        while b"\n" not in self._rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return None
            more = os.read(self.process.stdout.fileno(), READ_BYTES)
            self._rest += more
            if not more or len(self._rest) > LINE_BYTES_MAX:
                raise NoProbeAnswer(f"asking {self._whom} failed: {self._last_word()}")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            answer: ProbeAnswer = decode_json(line, kind)
        except BadMessage:
            raise NoProbeAnswer(f"asking {self._whom} failed: {self._last_word()}") from None
        return answer

    def _last_word(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_WAIT_S if self._complaints is not None else SOON_S)
        said = b""
        if self._complaints is not None:
            self._complaints.seek(0)
            said = self._complaints.read(LINE_BYTES_MAX)
        last = said.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {self.process.returncode}"]
        return last[0][:REASON_CHARS]

    def close(self, wait_s: float = KILL_WAIT_S) -> None:
        """Ends it; one that hangs in the driver is left behind."""
        self.process.kill()
        for file in (self.process.stdin, self.process.stdout, self._complaints):
            if file is not None:
                file.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait_s)
        if self.process.returncode is None:
            self._left_behind.append(self.process)


def ask(
    words: Sequence[str],
    kind: type[ProbeAnswer],
    timeout_s: float,
    whom: str = "NVML",
    *,
    left_behind: list[subprocess.Popen[bytes]] = _left_behind,
) -> ProbeAnswer:
    """Runs a program and returns what it prints: one `kind` as JSON. Raises NoProbeAnswer."""
    child = Child(words, whom, left_behind=left_behind)
    try:
        answer = child.answer(kind, timeout_s)
    finally:
        child.close()
    if answer is None:
        raise Silence(whom, timeout_s)
    return answer


# --- All GPUs --------------------------------------------------------------------------------------


def driver_facts(
    timeout_s: float = DRIVER_S_MAX,
    *,
    one_gpu_s: float = ONE_GPU_S_MAX,
    diagnostics: bool = False,
    words: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    say_s: float = SAY_S,
) -> DriverFacts:
    """What NVML says of this host's GPUs. `words` answer like `probe`, which they are by default; the first
    answer may take `timeout_s`, each further one `one_gpu_s`. `say` is called every `say_s` until there is
    one."""
    module = (sys.executable, "-m", "cotenant.profiler.driver.probe")
    usual = (*(words or module), *(("--diagnostics",) if diagnostics else ()))
    facts = DriverFacts(complete=False)
    children: list[Child] = []
    try:
        while not facts.complete:
            first = len(facts.gpus)
            children.append(Child((*usual, "--first", str(first))))
            answer = _first_answer(children[-1], timeout_s, say, say_s)
            while answer is not None:
                facts = facts.add(answer)
                if facts.complete:
                    break
                answer = children[-1].answer(DriverFacts, min(timeout_s, one_gpu_s))
            # It hangs at the last GPU; where two in a row have no names, or none was begun, NVML hangs.
            nameless = [gpu for gpu in facts.gpus[-2:] if gpu.problem and not gpu.uuid]
            if not facts.complete and (len(facts.gpus) == first or len(nameless) > 1):
                raise Silence("NVML", timeout_s)
    except NoProbeAnswer as why:
        return DriverFacts(problem=str(why))
    finally:
        for child in children:
            child.close()
    return msgspec.structs.replace(facts, gpus=_mark_twins(facts.gpus))


def _first_answer(
    child: Child, timeout_s: float, say: Callable[[str], None], say_s: float
) -> DriverFacts | None:
    waited_s = 0.0
    while waited_s < timeout_s:
        answer = child.answer(DriverFacts, min(say_s, timeout_s - waited_s))
        if answer is not None:
            return answer
        waited_s += say_s
        say(LOADING.format(waited_s))
    return None


def _mark_twins(gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
    """The GPUs; one with the UUID of another has a problem and no UUID, which would name the other."""
    first: dict[str, int] = {}
    return tuple(
        gpu
        if not gpu.uuid or first.setdefault(gpu.uuid, gpu.index) == gpu.index
        else GpuFacts(index=gpu.index, bus=gpu.bus, problem=TWIN.format(first[gpu.uuid], gpu.uuid))
        for gpu in gpus
    )


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

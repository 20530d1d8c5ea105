"""A slice: units that are measured one by one within eight minutes, each kept on disk as soon as it is done.

Rule: what was measured is never measured again. `SLICE.jsonl` has a line for each unit, so a slice that is
cut off goes on at its next unit; `SLICE.json` appears whole when the slice is over. A slice that fails says
why and stops no other; only its failed units are tried again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from cotenant.controller.cli.demo.cluster import ProcessStartFailed, TooSlow
from cotenant.controller.cli.demo.measuring import NotMeasured
from cotenant.controller.client.connection import Refusal, Unreachable
from hwtests.device import Device
from hwtests.pair_table import TooFew

LIMIT_S: Final = 480.0
FAULTS: Final[tuple[type[Exception], ...]] = (
    AssertionError, NotMeasured, OSError, ProcessStartFailed, Refusal, subprocess.SubprocessError, TooFew,
    TooSlow, Unreachable, ValueError,
)  # fmt: skip
"""What a unit may end with. Anything else is a fault of the suite and ends the run."""
WHY_CHARS: Final = 600

Values = dict[str, Any]
"""What a unit measured: numbers and texts that JSON can hold."""
Unit = Callable[[], Values]
State = Literal["done", "failed", "cut off", "does not apply"]


class Run(NamedTuple):
    """What every slice is given."""

    folder: Path
    device: Device
    rehearse: bool
    say: Callable[[str], None]
    seconds: float = 3.0
    """Of each measurement."""
    words: tuple[str, ...] = ()
    """Further words of the command line of each pytest."""
    faults: tuple[type[Exception], ...] = FAULTS

    @property
    def is_on_gpu(self) -> bool:
        return self.device.kind == "cuda"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a slice."""

    name: str
    state: State
    why: str = ""
    took_s: float = 0.0
    """In the run that ended it."""
    units: dict[str, Values] = {}
    problems: dict[str, str] = {}
    """Units that failed, and why."""


def find_no_obstacle(_: Run) -> str:
    return ""


class Slice(NamedTuple):
    """One row of a table of slices, which run in the table's order."""

    name: str
    question: str
    """What it decides."""
    units: Callable[[Run], Mapping[str, Unit]]
    find_obstacle: Callable[[Run], str] = find_no_obstacle
    """Why the slice does not apply to this machine; empty if it does."""
    limit_s: float = LIMIT_S


class CutOff(BaseException):
    """The slice's time is over. No `Exception`: only `run_slice` may catch it."""


@contextmanager
def end_after(limit_s: float) -> Iterator[None]:
    """Raise CutOff in the main thread when the time is over; whatever runs then cleans up on its way out."""

    def cut(*_: object) -> None:
        raise CutOff

    before = signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def write_whole(path: Path, value: object) -> None:
    """As JSON; whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)


def read_units(folder: Path, name: str) -> dict[str, Values]:
    """The units that are kept. A last line that a crash cut in two is left out."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [json.loads(line) for line in lines if line.endswith("\n")]
    return {each["unit"]: each["values"] for each in kept}


def keep_unit(folder: Path, name: str, unit: str, values: Values) -> None:
    path = folder / f"{name}.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1] + json.dumps({"unit": unit, "values": values}) + "\n"
    partial = path.with_suffix(".lines")
    partial.write_text(whole)
    partial.replace(path)


def read_outcome(folder: Path, name: str) -> Outcome | None:
    path = folder / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Outcome) if path.exists() else None


def run_slice(chosen: Slice, run: Run, limit_s: float) -> Outcome:
    """Measure what is missing of a slice, and keep its outcome; one that is done is not made again."""
    before = read_outcome(run.folder, chosen.name)
    if before is not None and before.state == "done":
        run.say(f"{chosen.name}: done before")
        return before
    if obstacle := chosen.find_obstacle(run):
        outcome = Outcome(name=chosen.name, state="does not apply", why=obstacle)
    else:
        outcome = _measure(chosen, run, min(chosen.limit_s, limit_s))
    write_whole(run.folder / f"{chosen.name}.json", outcome)
    run.say(f"{chosen.name}: {outcome.state}{f' ({outcome.why})' if outcome.why else ''}")
    return outcome


def _measure(chosen: Slice, run: Run, limit_s: float) -> Outcome:
    began_s = time.monotonic()
    kept = read_units(run.folder, chosen.name)
    problems: dict[str, str] = {}
    state: State = "done"
    why = ""
    try:
        with end_after(limit_s):
            units = chosen.units(run)
            for number, (name, unit) in enumerate(units.items(), 1):
                if name in kept:
                    continue
                run.say(f"{chosen.name}: {name} ({number} of {len(units)})")
                try:
                    kept[name] = unit()
                except run.faults as fault:
                    problems[name] = f"{type(fault).__name__}: {fault}"[:WHY_CHARS]
                    run.say(f"{chosen.name}: {name}: {problems[name]}")
                else:
                    keep_unit(run.folder, chosen.name, name, kept[name])
    except run.faults as fault:
        state, why = "failed", f"{type(fault).__name__}: {fault}"[:WHY_CHARS]
    except CutOff:
        state, why = "cut off", f"after {limit_s:.0f} s, with {len(kept)} units; the next run goes on there"
    if problems and state == "done":
        state, why = "failed", "; ".join(f"{name}: {text}" for name, text in problems.items())[:WHY_CHARS]
    took_s = round(time.monotonic() - began_s, 1)
    return Outcome(name=chosen.name, state=state, why=why, took_s=took_s, units=kept, problems=problems)

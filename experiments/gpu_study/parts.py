"""A part of the study: units that are measured one by one, each kept on disk as soon as it is done.

Rule: what was measured is never measured again. `PART.jsonl` has a line for each unit, so a part that is cut
off or ended goes on at its next unit; `PART.json` appears whole when the part is over. A part that fails says
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
from experiments.shared.live.given import write
from experiments.shared.live.run import WentWrong
from hwtests.device import Device
from hwtests.pair_table import TooFew

LIMIT_S: Final = 480.0
FAULTS: Final = (
    AssertionError, NotMeasured, OSError, ProcessStartFailed, Refusal, subprocess.SubprocessError, TooFew,
    TooSlow, Unreachable, ValueError, WentWrong,
)  # fmt: skip
"""What a unit may end with. Anything else is a fault of the study and ends it."""
WHY_CHARS: Final = 600

Values = dict[str, Any]
"""What a unit measured: numbers and texts that JSON can hold."""
Unit = Callable[[], Values]
State = Literal["done", "failed", "cut off", "does not apply"]


class Study(NamedTuple):
    """What every part is given."""

    folder: Path
    device: Device
    rehearse: bool
    say: Callable[[str], None]

    @property
    def is_on_gpu(self) -> bool:
        return self.device.kind == "cuda"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a part."""

    part: str
    state: State
    why: str = ""
    took_s: float = 0.0
    """In the run of the study that ended it."""
    units: dict[str, Values] = {}
    problems: dict[str, str] = {}
    """Units that failed, and why."""


def find_no_obstacle(_: Study) -> str:
    return ""


class Part(NamedTuple):
    """One row of the study's table."""

    name: str
    about: str
    units: Callable[[Study], Mapping[str, Unit]]
    find_obstacle: Callable[[Study], str] = find_no_obstacle
    """Why the part does not apply to this machine; empty if it does."""
    limit_s: float = LIMIT_S


class CutOff(BaseException):
    """The part's time is over. No `Exception`: only `run_part` may catch it."""


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


def read_units(folder: Path, part: str) -> dict[str, Values]:
    """The units that are kept. A last line that a crash cut in two is left out."""
    path = folder / f"{part}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [json.loads(line) for line in lines if line.endswith("\n")]
    return {each["unit"]: each["values"] for each in kept}


def keep_unit(folder: Path, part: str, unit: str, values: Values) -> None:
    path = folder / f"{part}.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1] + json.dumps({"unit": unit, "values": values}) + "\n"
    partial = path.with_suffix(".lines")
    partial.write_text(whole)
    partial.replace(path)


def read_outcome(folder: Path, part: str) -> Outcome | None:
    path = folder / f"{part}.json"
    return msgspec.json.decode(path.read_bytes(), type=Outcome) if path.exists() else None


def run_part(part: Part, study: Study, limit_s: float) -> Outcome:
    """Measure what is missing of a part, and keep its outcome; one that is over is not made again."""
    before = read_outcome(study.folder, part.name)
    if before is not None and before.state in ("done", "does not apply"):
        study.say(f"{part.name}: {before.state} before")
        return before
    if obstacle := part.find_obstacle(study):
        outcome = Outcome(part=part.name, state="does not apply", why=obstacle)
    else:
        outcome = _measure(part, study, min(part.limit_s, limit_s))
    if outcome.state == "cut off":
        (study.folder / f"{part.name}.json").unlink(missing_ok=True)
    else:
        write(study.folder / f"{part.name}.json", outcome)
    study.say(f"{part.name}: {outcome.state}{f' ({outcome.why})' if outcome.why else ''}")
    return outcome


def _measure(part: Part, study: Study, limit_s: float) -> Outcome:
    began_s = time.monotonic()
    kept = read_units(study.folder, part.name)
    problems: dict[str, str] = {}
    state, why = "done", ""
    try:
        with end_after(limit_s):
            units = part.units(study)
            for number, (name, unit) in enumerate(units.items(), 1):
                if name in kept:
                    continue
                study.say(f"{part.name}: {name} ({number} of {len(units)})")
                try:
                    kept[name] = unit()
                except FAULTS as fault:
                    problems[name] = f"{type(fault).__name__}: {fault}"[:WHY_CHARS]
                    study.say(f"{part.name}: {name}: {problems[name]}")
                else:
                    keep_unit(study.folder, part.name, name, kept[name])
    except FAULTS as fault:
        state, why = "failed", f"{type(fault).__name__}: {fault}"[:WHY_CHARS]
    except CutOff:
        state, why = "cut off", f"after {limit_s:.0f} s, with {len(kept)} units; the next run goes on there"
    if problems and state == "done":
        state, why = "failed", "; ".join(f"{name}: {text}" for name, text in problems.items())[:WHY_CHARS]
    took_s = round(time.monotonic() - began_s, 1)
    return Outcome(
        part=part.name,
        state=msgspec.convert(state, State),
        why=why,
        took_s=took_s,
        units=kept,
        problems=problems,
    )

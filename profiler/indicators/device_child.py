"""The process that reads GPU counters: `python -m` this module, `[--source=...] UUID...`.

Rule: a process of its own. A driver or a host engine that hangs takes whoever asks it with it, and that must
be neither a supervisor nor an agent. It samples on its own clock and keeps a bounded backlog. Each line on
standard input asks for all since the line before; each answer is one line of JSON.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, TextIO

import msgspec

from cotenant.profiler.driver import facts, library, probe_client
from cotenant.profiler.indicators.counters import Counters, Unsupported
from cotenant.profiler.indicators.device_process import MIG_HAS_NONE, ORDER, DeviceAnswer
from cotenant.profiler.indicators.sources import IndicatorValues, Taken, Wanted, Wish

BACKLOG_MAX: Final = 200
"""Samples that nobody asked for; older ones are lost, and said to be."""
FAILURES_MAX: Final = 5
"""Reads in a row that failed, before the source is given up."""


# --- Choosing --------------------------------------------------------------------------------------


def open_source(source: Wish, wanted: Wanted, uuids: Sequence[str]) -> Counters:
    """A source that has shown a value; only those that are tried are loaded. Raises Unsupported."""
    module = import_module(f"cotenant.profiler.indicators.{source}")
    kind: type[Counters] = getattr(module, source.capitalize())
    counters = kind.open(wanted, uuids)
    try:
        counters.wait_for_value()
    except Unsupported:
        counters.close()
        raise
    counters.period_s = max(counters.period_s, wanted.every_s)
    return counters


def choose(wanted: Wanted, uuids: Sequence[str]) -> tuple[Counters | None, str]:
    """The first that works for all devices, else the first that works for most; and how each one did."""
    if all(map(facts.is_mig_instance, uuids)):
        return None, MIG_HAS_NONE
    best: Counters | None = None
    about, passed_over = "", []
    for source in ORDER if wanted.source == "auto" else (wanted.source,):
        try:
            counters = open_source(source, wanted, uuids)
        except Unsupported as why:
            passed_over.append(f"not {source}: {why}"[: probe_client.REASON_CHARS])
            continue
        lacking = list(filter(None, counters.problems()))
        if best is not None and len(lacking) >= sum(map(bool, best.problems())):
            passed_over.append(f"not {source}: not of more devices")
            counters.close()
            continue
        if best is not None:
            passed_over.append(f"not {best.name}: not of all devices ({about})"[: probe_client.REASON_CHARS])
            best.close()
        some = f"; {len(lacking)} of {len(uuids)} without: {lacking[0]}" if lacking else ""
        best, about = counters, counters.about.format(period=counters.period_s) + some
        if not lacking:
            break
    others = "; ".join(passed_over)
    if best is None:
        return None, others
    return best, f"{best.name}: {about}"[: probe_client.REASON_CHARS] + (f" ({others})" if others else "")


# --- Serving ---------------------------------------------------------------------------------------


class Reader:
    """Samples on time, and remembers for whoever asks."""

    def __init__(self, counters: Counters, why: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._why = why
        self._clock = clock
        self._backlog: deque[Taken] = deque(maxlen=BACKLOG_MAX)
        self._due_s = clock()
        self._lost = 0
        self._failures = 0

    @property
    def wait_s(self) -> float:
        return max(0.0, self._due_s - self._clock())

    def tick(self) -> None:
        """Take the sample that is due. Raises Unsupported: the source has failed too often."""
        now_s = self._clock()
        if now_s < self._due_s:
            return
        # A missed sample is not taken later: the next one says how long it took.
        self._due_s = max(self._due_s + self._counters.period_s, now_s + 0.95 * self._counters.period_s)
        try:
            taken = self._counters.read()
        except Unsupported:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                raise
            return
        self._failures = 0
        if taken is not None:
            self._lost += len(self._backlog) == BACKLOG_MAX
            self._backlog.append(taken)

    def answer(self) -> DeviceAnswer:
        """All samples since the last one."""
        counters, lost = self._counters, self._lost
        samples = tuple(each._replace(devices=list(map(_finite, each.devices))) for each in self._backlog)
        self._backlog.clear()
        self._lost = 0
        return DeviceAnswer(
            source=counters.name, why=self._why, lacks=counters.lacks, offers=frozenset(counters.offers),
            gauges=counters.gauges, samples=samples, problems=tuple(counters.problems()), lost=lost,
        )  # fmt: skip


def _finite(values: IndicatorValues) -> IndicatorValues:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def serve(reader: Reader, answers: TextIO) -> None:
    """Until standard input ends. Raises Unsupported."""
    asked = sys.stdin.fileno()
    while True:
        if select.select([asked], [], [], reader.wait_s)[0]:
            lines = os.read(asked, 4096)
            if not lines:
                return
            for _ in range(lines.count(b"\n")):
                library.say(reader.answer(), answers)
        reader.tick()


def main(words: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(prog="device_child", description=(__doc__ or "").splitlines()[0])
    for name, default in msgspec.structs.asdict(Wanted()).items():
        known.add_argument(f"--{name.replace('_', '-')}", default=default, type=type(default))
    known.add_argument("uuids", nargs="+")
    flags = known.parse_args(words)
    wanted = msgspec.convert({name: getattr(flags, name) for name in Wanted.__struct_fields__}, Wanted)
    answers = library.own_output()
    counters, why = choose(wanted, flags.uuids)
    try:
        if counters is None:
            raise Unsupported(why)
        serve(Reader(counters, why), answers)
        counters.close()
    except Unsupported as problem:
        library.say(DeviceAnswer(problem=str(problem)), answers)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

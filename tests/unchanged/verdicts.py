"""What became of one script: run by itself and as a job, and once more by itself where the two differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

from tests.unchanged.collection import Script
from tests.unchanged.compare import Difference, differences, stable, traces
from tests.unchanged.runs import Command, Ended, TooLong

AGAIN: Final = 8
"""Runs of a script by itself at most, where its job differs: what goes one of two ways (the order of a
set) goes the same way in all of these once in 500 times."""


class Runs(Protocol):
    """What runs scripts: a `Runner`, or a cluster (`live.Jobs`)."""

    def bare(self, command: Command) -> Ended: ...

    def job(self, command: Command, **settings: Any) -> Ended: ...

    def write(self, text: str, name: str) -> Path: ...

    def forget(self) -> None: ...


class Kind(Enum):
    SAME = "same"
    DIFFERS = "differs"
    KNOWN = "differs, as is known"
    UNLIKE = "is not alike twice by itself: it needs a rule"
    BROKEN = "fails by itself"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    script: Script
    kind: Kind
    found: tuple[Difference, ...] = ()
    said: str = ""
    traces: frozenset[str] = field(default_factory=frozenset)
    """Where the script could find us, though nothing became another thing by it."""

    def line(self) -> str:
        told = "; ".join(map(str, self.found)) or self.said
        return f"{self.script.name}: {self.kind.value}{': ' if told else ''}{told}"


def judge(runner: Runs, script: Script, **settings: Any) -> Verdict:
    """Runs the script; `settings` are those of its job."""
    if script.skipped:
        return Verdict(script=script, kind=Kind.SKIPPED, said=script.skipped)
    if script.text:
        path = runner.write(script.text, script.command.script.name)
        script = replace(script, command=replace(script.command, script=path))
    try:
        return _run(runner, script, settings)
    finally:
        runner.forget()


def _run(runner: Runs, script: Script, settings: Mapping[str, Any]) -> Verdict:
    try:
        bare = runner.bare(script.command)
    except TooLong as late:
        return Verdict(script=script, kind=Kind.BROKEN, said=f"it does not end: {late}")
    if script.generated and bare.code != 0:
        last = (bare.err.splitlines() or ["nothing"])[-1]
        return Verdict(script=script, kind=Kind.BROKEN, said=last)
    try:
        job = runner.job(script.command, **{**script.settings, **settings})
    except TooLong as late:
        hangs = Difference(kind="exit", where="code", bare=str(bare.code), job=f"does not end: {late}")
        return Verdict(script=script, kind=Kind.DIFFERS, found=(hangs,))
    found = differences(bare, job, script.rules)
    if found:
        return _judge_again(runner, script, bare, job)
    return Verdict(script=script, kind=Kind.SAME, traces=frozenset(traces(bare, job)))


def _judge_again(runner: Runs, script: Script, bare: Ended, job: Ended) -> Verdict:
    """Judges the job by what several runs of the script by itself have in common."""
    states = [dict(bare.state), dict(job.state)]
    found = differences(bare, job, script.rules)
    for _ in range(AGAIN):
        if not found:
            break
        again = runner.bare(script.command)
        unlike = differences(bare, replace(again, state=bare.state), script.rules)
        if unlike:
            return Verdict(script=script, kind=Kind.UNLIKE, found=tuple(unlike))
        states = stable(bare.state, again.state, *states)
        found = differences(replace(bare, state=states[0]), replace(job, state=states[1]), script.rules)
    kind = Kind.SAME if not found else Kind.KNOWN if script.known else Kind.DIFFERS
    return Verdict(script=script, kind=kind, found=tuple(found), traces=frozenset(traces(bare, job)))

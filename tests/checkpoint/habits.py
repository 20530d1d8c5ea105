"""Scripts in the habits of many authors: each is run whole, then asked to leave three times and resumed.

Rule: a script is resumed bit for bit or refused with the line that is in the way. An outcome is told as it
is; whether it was expected is the business of `test_habits.py`. The scripts know nothing of us.

`python -m tests.checkpoint.habits` prints what became of each as Markdown; `--public` of those in the manner
of public loops.
"""

from __future__ import annotations

import argparse
import math
import random
import select
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tests.checkpoint.ranks import DEADLINE_S, Gang, Supervisor, Warm, launch

HERE: Final = Path(__file__).resolve().parent
INTERPRETER: Final = HERE / "interpreter.py"
SCRIPTS: Final = HERE / "scripts" / "habits"
PUBLIC: Final = HERE / "scripts" / "public"
"""Loops in the manner of public ones: examples of libraries, tutorials, trainers that many start from."""


def names_in(scripts: Path) -> list[str]:
    """A folder is a project of several files, of which `train.py` is started."""
    paths = (*scripts.glob("*.py"), *scripts.glob("*/train.py"))
    return sorted(str(path.relative_to(scripts).with_suffix("")) for path in paths)


NAMES: Final = names_in(SCRIPTS)
PUBLIC_NAMES: Final = names_in(PUBLIC)
MODULES: Final = (
    "torch._dynamo",
    "torch.optim.swa_utils",
    "cotenant.gradaccum.launch",
    "cotenant.gradaccum.zerocode",
    "cotenant.checkpoint.zerocode",
    "cotenant.checkpoint.progress",
)
"""What all interpreters need and each would import by itself."""
STOPS: Final = 3
SEED_OF_JOB: Final = zlib.crc32(b"j1/0")
"""What its attempts begin with (`sitecustomize`), whatever their interpreters drew."""
REFUSED: Final = -1
"""In the place of an agreed step: none, because the script cannot be saved."""
SAVED: Final = "saved.pt"


class Kind(Enum):
    EXACT = "resumed bit for bit"
    REFUSED = "refused"
    UNHEARD = "not heard of"
    DIFFERENT = "silently different"
    INEXACT = "said not to be exact"
    NOT_STOPPED = "called resumable, and does not stop"
    BROKEN = "ended by an error of the hook"
    LOST = "not resumed after a stop"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    kind: Kind
    said: str = ""
    """The reason of a refusal; or what went wrong, with the first difference."""
    stops: tuple[int, ...] = ()
    """After which steps it stopped."""
    proven: tuple[int, ...] = ()
    """Over how many steps each resume has shown that it is one."""


def outcome_of(warm: Warm, folder: Path, name: str, seed: int = 0, scripts: Path | None = None) -> Outcome:
    """The seed decides, together with the name, after which steps it is to stop."""
    draw = random.Random(f"{name} {seed}")
    return StoppedScript(warm, folder, (scripts or SCRIPTS) / f"{name}.py", draw).outcome()


def unexpected(
    warm: Warm, folder: Path, name: str, seed: int = 0, *, scripts: Path, refused: Mapping[str, str]
) -> str:
    """What is otherwise than expected: each script is exact with every resume, or is in `refused` with a
    piece of its refusal. Empty: nothing."""
    outcome = outcome_of(warm, folder, name, seed, scripts)
    if name in refused:
        is_fine = outcome.kind in (Kind.REFUSED, Kind.UNHEARD) and refused[name] in outcome.said
    else:
        is_fine = outcome.kind is Kind.EXACT and len(outcome.stops) == STOPS
    return "" if is_fine else f"{name} with seed {seed}: {outcome}"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """How one ended."""

    number: int

    hello: Mapping[str, Any] | None
    """The last: it is complete."""
    note: str
    """What it said is not exact; empty: it said nothing of the kind."""
    stopped_at: int | None
    complaint: str
    """Why it did not stop although that was agreed; empty: it did, or nobody asked."""
    failure: str
    proven: int
    """Over so many steps it has shown that its resume is one."""

    @property
    def is_resumable(self) -> bool:
        return self.hello is not None and self.hello["resumable"] is True


class StoppedScript:
    """One script in a folder of its own, in which all of its attempts run."""

    def __init__(self, warm: Warm, folder: Path, path: Path, draw: random.Random) -> None:
        """`draw`: of the steps after which it is to stop."""
        self._draw = draw
        self._warm = warm
        self._folder = folder
        self._path = path
        self.steps = 0

    def outcome(self) -> Outcome:
        whole = self._start("whole", "logs-whole", seed=SEED_OF_JOB, env={})
        whole.wait()
        self.steps = int(whole.result(0)["steps"])
        wanted = sorted(self._draw.sample(range(1, max(self.steps, STOPS + 1)), STOPS))
        stops: list[int] = []
        proven: list[int] = []
        for number in range(1, STOPS + 2):
            attempt = self._attempt(number, wanted[number - 1] if number <= STOPS else None)
            proven += [attempt.proven] if number > 1 else []
            outcome = self._judge(attempt, tuple(stops))
            if outcome is not None:
                return replace(outcome, proven=tuple(proven))
            assert attempt.stopped_at is not None
            stops.append(attempt.stopped_at)
        raise AssertionError("the last attempt was asked to stop by nobody")

    def _judge(self, attempt: _Attempt, stops: tuple[int, ...]) -> Outcome | None:
        """None: it has stopped as it was asked, and goes on."""
        if attempt.failure:
            kind = Kind.LOST if stops else Kind.BROKEN
            return Outcome(kind=kind, said=attempt.failure, stops=stops)
        if attempt.note:
            return Outcome(kind=Kind.INEXACT, said=attempt.note, stops=stops)
        if attempt.stopped_at is not None:
            return None
        if not (self._folder / "job" / SAVED).exists():
            return Outcome(kind=Kind.NOT_STOPPED, said=attempt.complaint, stops=stops)
        difference = self.difference(attempt.number)
        if difference:
            return Outcome(kind=Kind.DIFFERENT, said=difference, stops=stops)
        if attempt.complaint and attempt.is_resumable:
            return Outcome(kind=Kind.NOT_STOPPED, said=attempt.complaint, stops=stops)
        if attempt.hello is None:
            return Outcome(kind=Kind.UNHEARD, said="no optimizer has made a step", stops=stops)
        if not attempt.is_resumable:
            return Outcome(kind=Kind.REFUSED, said=str(attempt.hello.get("resumable_note", "")), stops=stops)
        return Outcome(kind=Kind.EXACT, stops=stops)

    def difference(self, last: int) -> str:
        """What differs in what the run without a stop and the last attempt have left; empty: nothing."""
        return first_difference(*(self._saved(cwd) for cwd in ("whole", "job")))

    def _saved(self, cwd: str) -> Any:
        return torch.load(self._folder / cwd / SAVED, weights_only=False)

    def _start(self, cwd: str, logs: str, *, seed: int, env: Mapping[str, str]) -> Gang:
        (self._folder / cwd).mkdir(parents=True, exist_ok=True)
        words = (str(self._folder / cwd), str(seed), str(self._path), SAVED)
        return launch(self._warm, INTERPRETER, self._folder / logs, *words, env=env)

    def _attempt(self, number: int, stop: int | None) -> _Attempt:
        words = {"COTENANT_ZERO_CODE": "checkpoint,progress", "HABITS_HOLD": "1" if stop is not None else ""}
        complaint, agreed, killed = "", None, False
        with Supervisor(self._folder / f"s{number}", 1) as supervisor:
            env = supervisor.env(self._folder / "root", number, **words)
            gang = self._start("job", f"logs-{number}", seed=number, env=env)
            if stop is not None:
                _listen(supervisor, gang, until=_waits)
                if (_last(supervisor, "hello") or {}).get("resumable") is True:
                    complaint = "it made no step that a stop could be agreed for"
                    if _waits(supervisor):
                        agreed = _agree(supervisor, gang, stop, self.steps)
                        killed = agreed is None
                        complaint = "no step was accepted for a stop" if killed else ""
                        agreed = None if agreed == REFUSED else agreed
            _listen(supervisor, gang)
            stopped, failed = _last(supervisor, "stopped"), _last(supervisor, "failed")
            if agreed and stopped is None:
                complaint = failed["error"] if failed else f"it did not stop after step {agreed}, as agreed"
            code = self._warm.wait(gang.pids[0])
            return _Attempt(
                number=number,
                hello=_last(supervisor, "hello"),
                note=next((word["note"] for word in supervisor.heard if word.get("exact") is False), ""),
                stopped_at=stopped["step"] if stopped else None,
                complaint=complaint,
                failure=_last_line(gang.output()) if code and not killed else "",
                proven=max((int(word.get("proven", 0)) for word in supervisor.heard), default=0),
            )


def _last(supervisor: Supervisor, name: str) -> dict[str, Any] | None:
    return next((word for word in reversed(supervisor.heard) if word["m"] == name), None)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line and not line.startswith('{"result"')]
    return lines[-1] if lines else "it printed nothing"


def _waits(supervisor: Supervisor) -> bool:
    """Whether the rank has called itself resumable, and so waits at its next step to be stopped."""
    return any(word.get("resumable") is True for word in supervisor.heard)


def _has_ended(_: Supervisor) -> bool:
    """Nothing that it says is its last word."""
    return False


def _listen(supervisor: Supervisor, gang: Gang, until: Callable[[Supervisor], bool] = _has_ended) -> None:
    """Until the rank waits, or has ended and everything that it said was heard."""
    give_up_at_s = time.monotonic() + DEADLINE_S
    while not until(supervisor):
        ended = gang.warm.ended(gang.pids[0])
        left_s = 0.0 if ended else max(0.0, give_up_at_s - time.monotonic())
        sources: list[Supervisor | Warm] = [supervisor] if ended else [supervisor, gang.warm]
        ready, _, _ = select.select(sources, [], [], left_s)
        if supervisor in ready:
            supervisor.hear()
        elif ended:
            return
        elif not ready:
            gang.kill()
            raise AssertionError(f"it does not end\n{gang.output()}")


def _agree(supervisor: Supervisor, gang: Gang, wanted: int, steps: int) -> int | None:
    """The nearest later step that the rank accepts, else the nearest earlier one; it waits meanwhile."""
    candidates: list[int] = [*range(wanted, steps), *range(wanted - 1, 0, -1)]
    for proposal, step in enumerate(candidates, 1):
        supervisor.tell("stop_at", proposal=proposal, step=step, phase="propose")
        (answer,) = supervisor.wait_for("confirm", proposal=proposal, gang=gang)
        if answer["ok"]:
            supervisor.tell("stop_at", proposal=proposal, step=step, phase="commit")
            return step
        if not (_last(supervisor, "hello") or {}).get("resumable"):
            return REFUSED  # It was found meanwhile that it cannot be saved.
    gang.kill()
    return None


def first_difference(left: Any, right: Any, path: str = "") -> str:
    """Where two trees of what torch.save keeps differ in a bit; empty: nowhere. A number is compared by its
    value, since a checkpoint makes Python's numbers of numpy's."""
    return next(_differences(left, right, path), "")


def _differences(left: Any, right: Any, path: str) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if left.keys() != right.keys():
            yield f"{path}: the keys are {list(left)} and {list(right)}"
            return
        for key in left:
            yield from _differences(left[key], right[key], f"{path}.{key}" if path else str(key))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if len(left) != len(right):
            yield f"{path}: {len(left)} and {len(right)} entries"
        for i, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from _differences(a, b, f"{path}[{i}]")
    elif not _is_same(left, right):
        yield f"{path}: {_shown(left)} and {_shown(right)}"


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    left, right = (value.item() if isinstance(value, np.generic) else value for value in (left, right))
    return type(left) is type(right) and bool(left == right)


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _table(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    counts = Counter(outcome.kind for outcome in outcomes.values())
    yield f"{len(outcomes)} scripts: " + ", ".join(f"{counts[k]} {k.value}" for k in Kind if counts[k]) + "."
    for kind in Kind:
        if not counts[kind]:
            continue
        yield f"\n### {kind.value.capitalize()}\n"
        chosen = {name: each.said for name, each in outcomes.items() if each.kind is kind}
        if kind is Kind.EXACT:
            yield ", ".join(chosen)
            continue
        yield "| script | reason |\n| --- | --- |"
        for name, said in chosen.items():
            text = said.replace("|", "\\|")
            yield f"| {name} | {text} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what became of each script, as Markdown.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--public", action="store_true", help="those in the manner of public loops")
    parser.add_argument("--seed", type=int, default=0, help="of the steps after which they are stopped")
    options = parser.parse_args()
    scripts = PUBLIC if options.public else SCRIPTS
    names = options.names or names_in(scripts)
    warm = Warm(MODULES)
    try:
        with tempfile.TemporaryDirectory(prefix="h") as folder:
            outcomes = {
                name: outcome_of(warm, Path(folder) / name, name, options.seed, scripts) for name in names
            }
    finally:
        warm.close()
    print("\n".join(_table(outcomes)))


if __name__ == "__main__":
    main()

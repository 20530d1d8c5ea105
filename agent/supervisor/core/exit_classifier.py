"""How an attempt ended, from a table: what is matched, whose failure it is, what a person reads.

Rule: a verdict says it twice. `detail` is for the job's owner; `ours` is for everybody, and has no word of
the job's: nothing that it printed or told, no path and no argument.

Rule: facts come before any guess: a start that failed, a job that said it has stopped, processes that we
ended and why. Only for a process that ended by itself do we ask `exit_rules`, with its exit status and the
last error in its log. Where a gang fails, a rank that only lost
the connection to another one is a symptom, and never the explanation if there is a better one.
"""

from __future__ import annotations

import errno
import re
import signal
from typing import Any, Final

import msgspec

from cotenant.agent.ipc.records import Order, Status
from cotenant.agent.supervisor.core import edge, exit_rules, stopping
from cotenant.agent.supervisor.core.exits import Exit, ExitCause, StartProblem
from cotenant.agent.supervisor.core.launch_hint import launch_hint
from cotenant.controller.domain import ExitVerdict, Outcome, program_name, texts

TAIL_BYTES: Final = 16 * 1024
LAST_WORDS_CHARS: Final = 4096
"""Without a traceback only so much of the end of a log can explain an end."""
DETAIL_CHARS: Final = 400


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known once no process is left."""

    order: Order
    status: Status
    """The last one."""
    gone: edge.AllGone
    exits: tuple[Exit, ...]
    problem: StartProblem | None = None
    cause: ExitCause = ""
    stop: stopping.StopWish | None = None
    has_stopped: bool = False
    """The job itself says that it stopped where it was asked to."""
    outside: int | None = None
    """The signal that the supervisor got from outside of the job at about the time of the end."""
    silent_s: float = 0.0
    """Without an optimizer step, before it was taken to hang."""
    over_mib: float | None = None
    """Host memory in use, where that was too much."""

    @property
    def command(self) -> str:
        """The program that was to be started; empty: none was named."""
        argv = self.order.launch.argv
        return argv[0] if argv else ""

    @property
    def on_cuda(self) -> bool:
        """False on CPU slots, whose memory is the host's."""
        return any(rank.cuda_uuids for rank in self.order.ranks)

    @property
    def deadline_s(self) -> float:
        """How long it was waited: for a first step, or for it to save and stop."""
        waited_for_start = self.cause == "start-deadline" or self.stop is None
        return self.order.start_deadline_s if waited_for_start or self.stop is None else self.stop.allowed_s


def decide(ending: Ending) -> ExitVerdict:
    """The verdict on a whole attempt, as far as this host knows."""
    verdict = _certain(ending) or _looked_up(ending)
    hint = _launch_hint(ending) if verdict.outcome == "user-failed" else ""
    room = DETAIL_CHARS - len(hint)
    detail = texts.one_line(" ".join(verdict.detail.split()))[:room] + hint
    ours = texts.one_line(verdict.ours)[:DETAIL_CHARS]
    return msgspec.structs.replace(verdict, detail=detail, ours=ours)


def _launch_hint(ending: Ending) -> str:
    errors = (last_error(tail) for tail in ending.gone.tails.values())
    hints = (launch_hint(error, ending.order) for error in errors)
    return next((f" ({hint})" for hint in hints if hint), "")


# --- What is certain -------------------------------------------------------------------------------


def _certain(ending: Ending) -> ExitVerdict | None:
    if ending.problem is not None:
        return _never_ran(ending, ending.problem)
    if ending.has_stopped:
        step = f" at step {ending.status.stop_step}" if ending.status.stop_step is not None else ""
        return _same(outcome="stopped", detail=f"saved and stopped{step}")
    if ending.status.went_otherwise and ending.outside is None:
        return ExitVerdict(
            outcome="user-failed",
            exit_code=next((each.shell_code for each in ending.exits if not each.is_good), None),
            detail=ending.status.went_otherwise,
            ours="after its resume it was not the run that was left",
            went_otherwise=True,
        )
    if ending.stop is not None and ending.stop.is_interrupted and not ending.cause:
        status = next((each.shell_code for each in ending.exits if not each.is_good), 0)
        detail = f"ended after SIGINT with exit code {status}{_words(ending)['reason']}"
        return _same(outcome="stopped", exit_code=status, detail=detail)
    text = _TOLD_TO_END.get(ending.cause)
    if text is None:
        return None
    outcome, words = _OUTCOMES.get(ending.cause, "stopped"), _words(ending)
    return ExitVerdict(
        outcome=outcome,
        exit_code=ending.exits[0].shell_code if ending.exits and outcome == "user-failed" else None,
        detail=text.format(**words),
        ours=text.format(**words | {"failed": ""}),
        rule=ending.cause,
    )


def _same(detail: str, **more: Any) -> ExitVerdict:
    """A verdict in which nothing is the job's."""
    return ExitVerdict(detail=detail, ours=detail, **more)


_TOLD_TO_END: Final[dict[ExitCause, str]] = {
    "stop": "ended on request{reason}",
    "no-agreement": "its ranks could not agree on a step to stop at; {back}{failed}",
    "deadline": "did not save and stop within {deadline_s:.0f} s after the request; {back}{failed}",
    "lease": "ended because the controller was out of reach for too long; {back}",
    "start-deadline": "no first step within {deadline_s:.0f} s after the start: it hangs "
    "(the limit is agent.start_deadline_s)",
    "hang": "no step for {silent_s:.0f} s{usual} and no training thread moved: it hangs; all stacks are in "
    "its log; {back}",
    "memory": "used {memory_mib:.0f} MiB of host memory; it may use {host_memory_mib} MiB (see --host-mem)",
}


_OUTCOMES: Final[dict[ExitCause, Outcome]] = {
    "start-deadline": "user-failed",
    "memory": "user-failed",
    "hang": "infra-failed",  # A lost link, a peer that died unseen: another start may well go on.
}


def _words(ending: Ending) -> dict[str, object]:
    newest = max((each.step for each in ending.status.durable), default=None)
    return {
        "reason": f" ({ending.stop.reason})" if ending.stop is not None and ending.stop.reason else "",
        "back": _back(newest, ending.order.is_first_host),
        "failed": f" ({ending.status.failed[-1]})" if ending.status.failed else "",
        "deadline_s": ending.deadline_s,
        "silent_s": ending.silent_s,
        "usual": f" (usually {ending.status.step_s:.3g} s)" if ending.status.step_s is not None else "",
        "memory_mib": ending.over_mib or 0.0,
        "host_memory_mib": ending.order.start.host_memory_mib,
    }


def _back(newest: int | None, knows_saves: bool) -> str:
    if not knows_saves:  # Rank 0 alone says what is durable.
        return "goes back to its newest checkpoint, if there is one"
    return "no checkpoint was made" if newest is None else f"goes back to step {newest}"


def _never_ran(ending: Ending, problem: StartProblem) -> ExitVerdict:
    where, program = f"on {ending.order.host_id}", program_name(ending.command)
    if problem.stage == "workdir":
        detail = f"working directory {ending.order.launch.workdir} cannot be used {where}: {problem.text}"
        ours = f"its working directory cannot be used {where}"
        return ExitVerdict(outcome="infra-failed", detail=detail, ours=ours, workdir_missing=True)
    if problem.stage == "command" and not ending.command:
        return _same(outcome="user-failed", exit_code=126, detail="no command was given")
    if problem.stage == "command" and problem.code in (2, 20):
        detail = f"command not found {where}: {ending.command}"
        if "/" in ending.command:  # The kernel says the same of a script's interpreter.
            detail += " (or the program that its first line names)"
        ours = f"command not found {where}: {program}"
        return ExitVerdict(outcome="user-failed", exit_code=127, detail=detail, ours=ours)
    if problem.stage == "command":
        detail = f"cannot execute {ending.command} {where}: {problem.text}"
        ours = f"cannot execute {program} {where}"
        return ExitVerdict(outcome="user-failed", exit_code=126, detail=detail, ours=ours)
    ours = f"could not start a process {where} ({problem.stage})"
    host_fault = problem.code not in _OF_WHAT_JOBS_TAKE
    detail = f"{ours}: {problem.text}"
    return ExitVerdict(outcome="infra-failed", detail=detail, ours=ours, host_fault=host_fault)


_OF_WHAT_JOBS_TAKE: Final = frozenset((0, errno.EAGAIN, errno.ENOMEM))
"""No more processes or memory, which one user's jobs may have taken; or it was ended before it began."""


# --- What has to be looked up ----------------------------------------------------------------------


def _looked_up(ending: Ending) -> ExitVerdict:
    failures = [each for each in ending.exits if not each.is_good and not each.was_told]
    if not failures:
        bad = next((each for each in ending.exits if not each.is_good), None)
        if bad is None and ending.exits:
            return ExitVerdict(outcome="finished", exit_code=0, detail=ending.status.words.lost)
        failures = [bad] if bad is not None else []
    if not failures:
        return _same(outcome="infra-failed", detail=f"never ran on {ending.order.host_id}")
    found = [(each, _row_for(each, ending)) for each in failures]
    exit_, row = min(found, key=lambda pair: pair[1].is_symptom)  # Stable: else the first to end.
    who = f"rank {exit_.rank}: " if len(ending.exits) > 1 else ""
    words = _row_words(exit_, ending)
    ours = row.text.format(**words | {"error": ""}).removesuffix(": ")
    return ExitVerdict(
        outcome="user-failed" if ending.order.launch.terminal else row.outcome,
        exit_code=exit_.shell_code,
        detail=who + row.text.format(**words).removesuffix(": "),
        ours=who + ours if ours else "",
        out_of_memory=row.memory == "device" or (row.memory == "host" and not ending.on_cuda),
        cuda_fault=row.is_cuda_fault and ending.on_cuda,
        rule="" if row.need == "outside" else row.name,
    )


def _row_for(exit_: Exit, ending: Ending) -> exit_rules.ExitRule:
    """What was on a terminal before its end says nothing about that, and who typed there ended it."""
    tail = ending.gone.tails.get(exit_.rank, "")
    error, chain = last_error(tail), chained_errors(tail)
    by_host, in_container = ending.gone.host_oom_kills > 0, ending.order.runtime is not None
    needs = {
        "": True,
        "own-oom": ending.gone.oom_kills > 0,
        "host-oom": by_host,
        "oom-here": by_host and ending.gone.counts_oom,
        "container": in_container,
        "cuda": ending.on_cuda and not in_container,
        "cuda-image": ending.on_cuda and in_container,
        "mps-limit": any(each.memory_limit_mib for each in ending.order.mps),
        "outside": ending.outside is not None,
    }
    for row in exit_rules.ROWS:
        if not needs[row.need]:
            continue
        if row.signals and exit_.by_signal not in row.signals:
            continue
        if row.codes and exit_.exit_code not in row.codes:
            continue
        if row.pattern and ending.order.launch.terminal:
            continue
        if row.pattern and not re.search(row.pattern, chain if row.chained else error):
            continue
        return row
    raise AssertionError("the last row of ROWS matches everything")


def _row_words(exit_: Exit, ending: Ending) -> dict[str, object]:
    cap = (
        f" (its part of the device is {ending.order.start.memory_cap_mib} MiB)"
        if ending.order.start.memory_cap_mib
        else ""
    )
    return {
        "error": "" if ending.order.launch.terminal else error_line(ending.gone.tails.get(exit_.rank, "")),
        "signal": _signal_name(exit_.by_signal),
        "outside": _signal_name(ending.outside),
        "status": _signal_name(exit_.signal) if exit_.signal else f"exit code {exit_.exit_code}",
        "host": ending.order.host_id,
        "code": exit_.shell_code,
        "port": ending.order.start.master_port,
        "host_memory_mib": ending.order.start.host_memory_mib,
        "cap": cap,
    }


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


# --- The last error in a log -----------------------------------------------------------------------

_TRACEBACK: Final = "Traceback (most recent call last):"
_REFUSED: Final = re.compile(r"^(?:\[\w+\]: ?)?(cotenant\.gradaccum\.Refused: .*)$", re.MULTILINE)
"""What `cotenant.gradaccum` writes before it ends an attempt."""
_LAUNCHERS: Final = ("ChildFailedError", "SignalException", "CalledProcessError")
"""Errors of torchrun and accelerate that only say that a worker failed."""


def last_error(tail: str) -> str:
    """The part of a log that explains its end: the refusal to split a batch, wherever it stands, else the
    last traceback that is no launcher's, else all of it."""
    refused = _REFUSED.findall(tail)
    if refused:
        return str(refused[-1])
    starts = [match.start() for match in re.finditer(re.escape(_TRACEBACK), tail)]
    ends = [*starts[1:], len(tail)] if starts else []
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        part = tail[start:end]
        if not any(name in part for name in _LAUNCHERS):
            return part
    return (tail[: starts[0]] if starts and starts[0] > 0 else tail)[-LAST_WORDS_CHARS:]


_FROM_ANOTHER: Final = re.compile(
    r"(direct cause of the following exception|another exception occurred):(\s|\[\w+\]:)*$"
)
"""Before a traceback: it came from the one above. torch prefixes lines with "[rank0]: "."""


def chained_errors(tail: str) -> str:
    """The last error, with those that it came from before it, and what launchers say of it after it."""
    start = tail.rfind(last_error(tail))
    while _FROM_ANOTHER.search(tail[:start]):
        start = max(0, tail.rfind(_TRACEBACK, 0, start))  # 0: its beginning is no longer in the tail.
    return tail[start:]


def error_line(tail: str) -> str:
    """Returns one line for a person: the exception of the last traceback, else the last line."""
    part = last_error(tail)
    lines = [line.rstrip() for line in part.splitlines() if line.strip()]
    fatal = next((line for line in lines if line.startswith("Fatal Python error: ")), None)
    if fatal is not None:  # faulthandler's; the stacks come after it.
        return fatal
    if part.startswith(_TRACEBACK):
        # The exception stands after the frames, which are indented; torch prefixes lines with "[rank0]: ".
        plain = [re.sub(r"^\[\w+\]:\s?", "", line) for line in lines[1:]]
        named = [line for line in plain if re.match(r"[A-Za-z_][\w.]*(:|$)", line)]
        return named[0] if named else (plain[-1] if plain else "")
    return lines[-1].strip() if lines else ""

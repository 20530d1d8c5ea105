"""`cotenant run`: submit, wait, show the output, return the job's own exit code; with a controller and an
agent of one's own where none answers.

Rule: the first Ctrl-C goes to the job's processes, as on a terminal; the second cancels the job, and the
third leaves it to itself. SIGTERM begins with the second. What is started is started under a lock, as one
detached `cotenant up` that ends by itself after ten idle minutes, and only on the user's own socket: where
another endpoint is configured, nothing is started behind it.

The job's process opens our standard input itself, by its place in /proc: no byte goes through us, and the
pipe's own limit is its flow control. Where standard output and standard error go to one place, the job has
one stream for both, in the order of its writes; else it has two.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cotenant.checkpoint.talk.protocol import ENV_JOB
from cotenant.controller import domain
from cotenant.controller.cli.frame import daemons
from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.jobs.forwarding import PortPair
from cotenant.controller.cli.jobs.submit import JobFlags, prepare_request
from cotenant.controller.cli.jobs.terminal_session import TerminalSession, window_size
from cotenant.controller.client.asking import PATIENCE_S, asking, loaded_settings
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.client.output import ROUND_S, ErrorOutput, Follower, Missing, OutputPiece
from cotenant.controller.domain import texts
from cotenant.controller.present.etas import describe_eta
from cotenant.controller.present.interruption import ended_by
from cotenant.controller.present.jobs import devices
from cotenant.controller.present.problem import FAILED, INTERRUPTED, NEVER_STARTED, OK, Problem
from cotenant.controller.present.screen import is_terminal, tell
from cotenant.controller.present.sharing import closing_lines
from cotenant.controller.present.terminal import JobOutput, WaitingLine
from cotenant.controller.submission.options import Given, Options
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import is_system_socket, socket_path
from cotenant.controller.system.locks import Lock, LockTaken
from cotenant.controller.wire import SIZE_VARIABLE
from cotenant.controller.wire import clients as wire

TERMINAL_WORDS: Final = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "CONDA_DEFAULT_ENV")
"""What programs on a terminal go by: those of ours."""


def run(
    command: Annotated[
        list[str] | None,
        argument(metavar="[--] CMD...", help="What to run, with its own arguments."),
    ] = None,
    quiet: Annotated[bool, option("-q", "--quiet", help="Only the job's own output.")] = False,
    on_terminal: Annotated[
        bool, option("--pty", help="It runs on a terminal, connected to this one.")
    ] = False,
    endpoint: EndpointFlag = None,
    *,
    flags: JobFlags,
) -> int:
    """Run a command as a job: wait for its turn, show its output, return its exit code.

    Where no controller answers, one is started here together with an agent; it ends after ten idle
    minutes. Ctrl-C goes to the job, which then has 30 seconds to end (a job that waits is cancelled); a
    second Ctrl-C cancels it at once, a third returns and leaves it to itself.

    Standard input from a pipe or a file goes to a job of one rank on this machine; what the job writes to
    standard error comes out there. On a terminal one line says what the job waits for; into a pipe, each
    change is a line. With --pty, as with `cotenant shell`, every key goes to the job.

    Exit code: the job's own, also after Ctrl-C; 128 + n after signal n, and for a job that was cancelled
    before it ended; 125 if it never started; 126 or 127 if its command could not be executed or was not
    found.

    For example:

      cotenant run -- python train.py --epochs 3
      cotenant run -g 2 --mem 4G -- python train.py
      cotenant run --pty -- python -i explore.py
    """
    for key in {"array", "grid"} & flags.keys():
        raise Problem(
            "usage", f"run waits for one job: --{key} is for submit", f"cotenant submit --{key} ..."
        )
    if on_terminal:
        flags = terminal_launch(command or [], flags) | flags
    request = prepare_request(command or [], flags, endpoint, command_only=True)
    if on_terminal:
        return watch_terminal(request_with_terminal(request), quiet, endpoint)
    request = request_with_streams(request, endpoint)
    ensure_controller(endpoint)
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        reply = client.ask(request)
        return RunWatch(client, reply.job_ids[0], quiet, add_outer_job(reply.notes)).to_the_end()


def terminal_launch(command: Sequence[str], flags: Options) -> Options:
    """The option by which a command on a terminal is one process on all its GPUs, whatever its script does; a
    launcher is one by itself."""
    if (
        "gpus" not in flags
        or flags["gpus"].value.most == 1
        or domain.launcher_of(domain.own_command(command))
    ):
        return {}
    return {"launch": Given(value="process", where="a terminal")}


def request_with_terminal(request: wire.Submit) -> wire.Submit:
    """The request for a job whose one rank has a terminal like ours."""
    (spec,) = request.specs
    several = spec.launch.mode == "worker" and spec.gpus_max > 1
    if several or spec.is_elastic or spec.nodes > 1:
        raise Problem(
            "usage", "a job with a terminal is one process on one host, with a fixed number of GPUs"
        )
    rows, columns = window_size()
    words = {name: os.environ[name] for name in TERMINAL_WORDS if os.environ.get(name)}
    words |= {SIZE_VARIABLE: f"{rows}x{columns}"} if rows else {}
    launch = msgspec.structs.replace(
        spec.launch,
        terminal=True,
        env={"TERM": "dumb", **words, **spec.launch.env},
        warm=False,
    )
    spec = msgspec.structs.replace(spec, nodes=1 if spec.gpus_max > 1 else spec.nodes, launch=launch)
    return msgspec.structs.replace(request, specs=(spec,))


def watch_terminal(
    request: wire.Submit, quiet: bool, endpoint: str | None, ports: Sequence[PortPair] = ()
) -> int:
    """Submits a job with a terminal and connects to it, and to these of its ports."""
    ensure_controller(endpoint)
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        reply = client.ask(request)
        (job_id,) = reply.job_ids
        terminal = TerminalSession(client, job_id, ports)
        notes = add_outer_job(reply.notes)
        return RunWatch(client, job_id, quiet, notes, terminal=terminal).to_the_end()


def add_outer_job(notes: Sequence[str]) -> tuple[str, ...]:
    """The notes on a job that is waited for, with that on the job in which this runs, if it does."""
    job = os.environ.get(ENV_JOB)
    return (*notes, *([f"job {job}, in which this runs, keeps its devices while it waits"] if job else ()))


def request_with_streams(request: wire.Submit, endpoint: str | None) -> wire.Submit:
    """The request for a job that has our standard input, and errors apart where we have them apart."""
    (spec,) = request.specs
    source, problem = standard_input(0, spec, endpoint)
    if problem:
        tell(f"note: standard input is not passed on: {problem}")
    errors_apart = not os.path.sameopenfile(1, 2)
    launch = msgspec.structs.replace(spec.launch, input=source, errors_apart=errors_apart)
    return msgspec.structs.replace(request, specs=(msgspec.structs.replace(spec, launch=launch),))


def standard_input(
    stream: int, spec: domain.JobSpec, endpoint: str | None
) -> tuple[domain.InputFile | None, str]:
    """What the job is to read, or why it cannot have what we have. Of a terminal or of /dev/null nobody
    expects it. A stream is a descriptor."""
    found = os.fstat(stream)
    if stat.S_ISSOCK(found.st_mode):
        return None, "it is a socket, which another process cannot open (`cat | cotenant run ...`)"
    if not stat.S_ISFIFO(found.st_mode) and not stat.S_ISREG(found.st_mode):
        return None, ""
    mode = spec.launch.mode
    if mode == "host" or (mode == "worker" and spec.gpus_max > 1):
        return None, "only a job of one process, without a launcher such as torchrun, has one"
    if socket_path(paths.client_endpoint(loaded_settings(endpoint).settings)) is None:
        return None, "the controller is on another machine (a file there: `-- sh -c 'CMD < FILE'`)"
    offset = os.lseek(stream, 0, os.SEEK_CUR) if stat.S_ISREG(found.st_mode) else 0
    path = f"/proc/{os.getpid()}/fd/{stream}"
    return domain.InputFile(path=path, device=found.st_dev, inode=found.st_ino, offset=offset), ""


class RunWatch:
    """A watch on one job from submission to its end."""

    def __init__(
        self,
        client: Client,
        job_id: domain.JobId,
        quiet: bool,
        notes: Sequence[str],
        *,
        terminal: TerminalSession | None = None,
        first_attempt: int = 1,
        cancels: bool = True,
    ) -> None:
        """Creates the watch on a job. `notes`: of its submission; one that its first line says as well is not
        told twice. `terminal`: what connects to the job's own. `cancels`: Ctrl-C is for the job."""
        self._notes = notes
        self._terminal = terminal
        self._follower = Follower(
            client,
            job_id,
            rank=0,
            is_over=is_over,
            round_s=ROUND_S if terminal is None else TERMINAL_ROUND_S,
            errors_apart=terminal is None,
        )
        self._follower.begin_at(first_attempt)
        self._client = client
        self._job_id = job_id
        self._quiet = quiet
        self._output = JobOutput(raw=terminal is not None)
        self._errors = JobOutput(sys.stderr)
        self._line = WaitingLine()
        self._cancels = cancels
        self._pressed = self._passed_on = 0
        """How often Ctrl-C was, and how often the controller was told so. SIGTERM counts as two."""
        self._told = ("", False)
        """The state that was told last, without numbers that change all the time; and whether with an ETA."""
        self._last: wire.JobView | None = None
        client.on_silence = self._tell

    def to_the_end(self) -> int:
        while True:
            try:
                self._pass_on()
                for piece in self._follower.pieces():
                    self._take(piece)
                break
            except TerminalLeft as left:
                tell(str(left))
                return OK
            except KeyboardInterrupt:
                self._pressed += 2 if not self._pressed and ended_by() != INTERRUPTED else 1
                if self._pressed > 2 or not self._cancels:
                    tell(f"\njob {self._job_id} is left to itself: `cotenant logs -f {self._job_id}`")
                    return ended_by()
        self._line.clear()
        self._output.close()
        self._errors.close()
        assert self._last is not None  # follow tells the job before it ends
        code = exit_code(self._last, self._pressed > 0)
        for line in closing_lines(self._last) if not self._quiet else ():
            tell(f"job {self._job_id} {line}")
        if code or self._pressed:
            tell(f"job {self._job_id} {why(self._last)}")
        if self._last.is_given_up:
            tell(
                f"`cotenant release {self._job_id}` tries it again, `cotenant cancel {self._job_id}` ends it"
            )
        return code

    def _pass_on(self) -> None:
        """Tells the controller of a Ctrl-C of which it does not know."""
        if self._passed_on == self._pressed:
            return
        self._passed_on = self._pressed
        request = wire.ChangeJobs(verb="cancel", job_ids=(self._job_id,), interrupt=self._pressed == 1)
        try:
            (said,) = self._client.ask(request).lines
        except Refusal as refusal:
            if refusal.failure.code != "refused":
                raise
            return  # It has ended by itself; how comes next.
        tell(f"\n{said}{'' if request.interrupt else ' (Ctrl-C again leaves it to itself)'}")

    def _take(self, piece: OutputPiece) -> None:
        if isinstance(piece, bytes | ErrorOutput):
            data, output = (piece, self._output) if isinstance(piece, bytes) else (piece.data, self._errors)
            if data:
                self._line.clear()
                output.write(data)
        elif isinstance(piece, Missing):
            self._tell(f"--- output is missing: {texts.one_line(piece.why)} ---")
        elif isinstance(piece, wire.JobView):
            self._last = piece
            for note in self._notes:
                if note != piece.reason or self._quiet:
                    self._tell(f"note: {note}")
            self._notes = ()
            self._tell_change(piece)
        else:
            if piece.number > 1:
                self._tell(f"--- attempt {piece.number} ---")
            if self._terminal is not None:
                self._hold(self._terminal, piece.number)

    def _hold(self, terminal: TerminalSession, attempt: int) -> None:
        """Connects to the job's terminal. What it has not shown of the output is read from the log. Raises
        TerminalLeft: the job goes on without us."""
        again = f"`cotenant attach {self._job_id}` connects to it again"
        if terminal.is_typed and not self._quiet:
            self._tell(f"job {self._job_id}: Enter ~. leaves it running, {again}")
        self._line.clear()
        self._cancels &= not terminal.is_typed  # Ctrl-C is the job's now; SIGTERM is for us alone.
        try:
            how = terminal.hold(attempt)
        finally:
            self._follower.skip_to(terminal.seen)
        if how != "ended":
            why = "" if how == "detached" else " has another client now and"
            raise TerminalLeft(f"\njob {self._job_id}{why} goes on: {again}")

    def _tell(self, text: str) -> None:
        """Tells the text on a line of its own."""
        self._line.clear()
        self._end_line()
        tell(text)

    def _end_line(self) -> None:
        """Where the job's output, on a terminal, stopped within one."""
        if not (self._output.ends_line and self._errors.ends_line):
            tell("")
        self._output.ends_line = self._errors.ends_line = True

    def _tell_change(self, job: wire.JobView) -> None:
        if self._quiet or job.phase in domain.ENDED:
            return
        state = state_in_words(job)
        has_eta = job.phase is domain.Phase.QUEUED and job.eta is not None and job.eta.finish is not None
        text = f"job {job.job_id} ({job.name}) {state}{f'; {describe_eta(job.eta)}' if has_eta else ''}"
        told = _CHANGING.sub("", state), has_eta
        if is_terminal(sys.stderr) and job.phase not in AT_WORK:
            self._end_line()
            self._line.rewrite(text)
        elif told[0] != self._told[0] or (has_eta and not self._told[1]):
            self._tell(text)
        self._told = told


class TerminalLeft(Exception):
    """The terminal of a job that goes on was left; the text says so."""


TERMINAL_ROUND_S: Final = 0.5
"""How soon a person learns that a terminal is there."""
AT_WORK: Final = (domain.Phase.LOADING, domain.Phase.RUNNING)
_CHANGING: Final = re.compile(r"\d+(?:\.\d+|[dhm]\d\d[hms]|s\b| (?:s|min|h|days)\b)")
"""Times and ratios of a reason, which are others at each look."""


def state_in_words(job: wire.JobView) -> str:
    if job.phase not in AT_WORK:
        return why(job) if job.reason else job.phase.value
    beside = f", beside job {', '.join(job.co_tenants)}" if job.co_tenants else ""
    return f"{job.phase.value} on {devices(job.devices)}{beside}"


def is_over(job: wire.JobView) -> bool:
    return job.phase in domain.ENDED or job.is_given_up


def why(job: wire.JobView) -> str:
    """The state of a job and the reason, `queued: behind job 3`; the state is left out where the reason
    starts with it."""
    state = job.phase.value
    return job.reason if job.reason.startswith(state) else f"{state}: {job.reason}"


def exit_code(job: wire.JobView, cancelled_here: bool) -> int:
    """The exit code of a run: the job's own, or what a shell says of a command that was cut short; 125 if it
    never started."""
    if job.phase is domain.Phase.DONE or (cancelled_here and job.exit_code == OK):
        return job.exit_code or OK
    if cancelled_here and job.exit_code is None:
        return ended_by()
    if job.exit_code:
        return 128 - job.exit_code if job.exit_code < 0 else min(job.exit_code, 255)
    never = job.started_at is None or job.reason_code == "workdir-missing"
    return NEVER_STARTED if never else FAILED


IDLE_EXIT_S: Final = 600.0
START_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.1
LOG_NAME: Final = "up.log"


def ensure_controller(endpoint: str | None) -> None:
    """Returns once a controller answers; where none does, one is started with an agent.

    Raises:
        Problem: it cannot be started, or is somewhere else and does not answer, or this runs in a job.
    """
    path = socket_path(paths.client_endpoints(loaded_settings(endpoint).settings)[0])
    is_own = path is not None and not is_system_socket(path)
    try:
        ask_status(endpoint, patience_s=0.0 if is_own else PATIENCE_S)
        return
    except Problem as problem:
        if problem.code != "unreachable" or not is_own:
            raise
        if job := os.environ.get(ENV_JOB):
            raise Problem(
                "unreachable",
                f"{problem.message}, and none is started in a job, which holds the devices (job {job})",
                "its controller may be back soon; --endpoint names another",
            ) from None
    folder = paths.runtime_dir()
    with one_at_a_time(folder / "start.lock"):
        try:
            ask_status(endpoint)
            return
        except Problem as problem:
            if problem.code != "unreachable":
                raise
        start(folder, endpoint)


def ask_status(endpoint: str | None, *, patience_s: float = 0.0) -> None:
    with asking(endpoint, timeout_s=5.0, patience_s=patience_s) as client:
        client.ask(wire.GetStatus())


def start(folder: Path, endpoint: str | None) -> None:
    tell(
        "no controller answers: starting one here, with an agent (they end after 10 idle minutes, or with "
        "`cotenant down`; `cotenant up` keeps them)"
    )
    log = folder / LOG_NAME
    words = [sys.executable, "-m", "cotenant.controller.cli.main", "up", "--of-run"]
    words += ["--idle-exit", f"{IDLE_EXIT_S:g}s"]
    words += ["--endpoint", endpoint] if endpoint else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    wait_until_ready(process, log, endpoint)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, endpoint: str | None) -> None:
    def has_joined() -> bool:
        if process.poll() is not None:
            raise Problem(
                "failed", f"could not start: {last_line(log)}", "try `cotenant up` or `cotenant doctor`"
            )
        return bool(daemons.joined_hosts(endpoint))

    if not daemons.wait_until(has_joined, START_WITHIN_S, LOOK_EVERY_S):
        said = f"no agent within {START_WITHIN_S:.0f} s: {last_line(log)}"
        raise Problem("failed", said, "try `cotenant doctor`")


def last_line(log: Path) -> str:
    """The log's last line; if that only points at "its message above", the message itself."""
    lines = log.read_text(errors="replace")[-4096:].strip().splitlines() or ["it said nothing"]
    if "see its message above" in lines[-1] and len(lines) > 1:
        lines.pop()
    return re.sub(r"^error\[[\w-]+\]: ", "", lines[-1])


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Two `run`s that start together start one controller."""
    lock = daemons.wait_until(lambda: _take_lock(path), START_WITHIN_S, LOOK_EVERY_S)
    if lock is None:
        raise Problem("failed", f"someone else holds {path}", "is another `cotenant run` stuck?")
    try:
        yield
    finally:
        lock.release()


def _take_lock(path: Path) -> Lock | None:
    try:
        return Lock(path)
    except LockTaken:
        return None

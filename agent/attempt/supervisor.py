"""The supervisor of one attempt: `python -m cotenant.agent.attempt.supervisor ATTEMPT_FOLDER`.

Rule: it outlives its agent, needs nobody, and leaves a result. It takes no decision (`supervision.py`
does); this loop only waits for something to happen and carries out what follows. One thread, one
`select`: nothing here may block for long, and every process is started from here.

SIGTERM, SIGINT and SIGHUP are ignored. A session that ends, a Ctrl-C in a terminal that started the
agent, or systemd stopping it must not take jobs along; whoever wants the job to end says so through the
agent (`cotenant cancel`), which also saves its state. SIGKILL works, and takes the ranks along.

It is started at most once per attempt: if `supervisor.json` is there, an earlier one has run.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.attempt.control import Connection, Control
from cotenant.agent.attempt.ends import StartProblem
from cotenant.agent.attempt.environment import command_of, environment_of, needs_cuda_indices
from cotenant.agent.attempt.heir import leave_to_heir
from cotenant.agent.attempt.launchers import NotLaunchable
from cotenant.agent.attempt.logs import LogWriter
from cotenant.agent.attempt.output import Output, output_path
from cotenant.agent.attempt.premises import give_socket, make_job_folder, open_output, owner_of
from cotenant.agent.attempt.ranks import (
    StartFailed,
    account_of,
    become_subreaper,
    cuda_indices,
    end_groups,
    has_children,
    keep_files_to_ourselves,
    kill_children,
    reap,
    start,
)
from cotenant.agent.attempt.sampling import Sampler, host_oom_kills, tree_of
from cotenant.agent.attempt.stacks import abort_others, dump
from cotenant.agent.attempt.supervision import Supervision
from cotenant.agent.attempt.supervision_edge import (
    AllGone,
    AnyEffect,
    AnyHappening,
    ClearLeftovers,
    ClientsTerminated,
    CouldNotStart,
    DumpStacks,
    EndRanks,
    Finish,
    Heard,
    Noted,
    OverMemory,
    Publish,
    RankExited,
    Sampled,
    Started,
    TakeSample,
    TellRank,
    TerminateClients,
    Ticked,
)
from cotenant.agent.attempt.termination import Termination, by_pipe
from cotenant.agent.attempt.words import parse
from cotenant.agent.cgroups import RANKS, SUPERVISOR, AttemptCgroup
from cotenant.agent.channel import EndedNow, GangOut, StatusNow
from cotenant.agent.files import BadRecord, read_record, write_record
from cotenant.agent.folder import CONTROL, JOB_SOCKET, LOGS, ORDER, RESULT, STATUS
from cotenant.agent.folder import SUPERVISOR as SUPERVISOR_FILE
from cotenant.agent.identity import own_identity
from cotenant.agent.leftovers import remove_short_folder
from cotenant.agent.records import Order, RankOrder, Result
from cotenant.controller.wire.job import DATAGRAM_BYTES_MAX
from cotenant.profiler.inplace import SAMPLE_PERIOD_S as INDICATOR_PERIOD_S
from cotenant.profiler.sources import MetricsSource, Timed

SAMPLE_PERIOD_S: Final = 1.0
PROFILE_SAMPLE_PERIOD_S: Final = INDICATOR_PERIOD_S
CLEAR_PERIOD_S: Final = 0.1
TERMINATION_PERIOD_S: Final = 0.05
STUBBORN_S: Final = 10.0
RETRY_S: Final = 5.0
FAREWELL_S: Final = 2.0
LONGEST_WAIT_S: Final = 3600.0
DATAGRAMS_MAX: Final = 64
"""Taken in one go, before others get their turn."""
EXIT_USAGE: Final = 2
EXIT_HAS_RUN: Final = 3


class Supervisor:
    """The loop around one `Supervision`."""

    def __init__(self, folder: Path, order: Order, *, has_heir: bool = False) -> None:
        """`has_heir`: it sees to the processes if we are killed; else they die with us."""
        self._has_heir = has_heir
        self._folder = folder
        self._order = order
        self._cgroup = AttemptCgroup(order, folder)
        self._selector = selectors.DefaultSelector()
        self._supervision = Supervision(order, time.monotonic())
        self._pids: dict[int, int] = {}
        """Of processes that we started and that have not ended, by rank."""
        self._outputs: dict[int, Output] = {}
        self._sampler: Sampler | None = None
        self._indicators: MetricsSource | None = None
        self._collected: list[Timed] = []
        """Indicators that were read between two samples."""
        self._collect_s = inf
        self._sample_s = inf
        self._clear_s = inf
        self._clearing_since_s = inf
        self._termination: Termination | None = None
        self._terminate_again_s: float | None = None
        """Asked for anew while a round was under way: with this time limit."""
        self._result: Result | None = None
        self._result_s = inf
        self._is_over = False
        self._oom_kills_before = host_oom_kills()
        self._job_folder = make_job_folder(folder, order)
        self._job_socket = self._open_job_socket()
        self._control = Control(folder / CONTROL)
        self._wakeup = self._open_wakeup()

    # --- Setting up ---------------------------------------------------------------------------------

    def _open_job_socket(self) -> socket.socket:
        path = self._job_folder / JOB_SOCKET
        path.unlink(missing_ok=True)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        opened.bind(str(path))
        give_socket(self._job_folder, self._order)
        self._selector.register(opened, selectors.EVENT_READ, self._read_datagrams)
        return opened

    def _open_wakeup(self) -> socket.socket:
        """Becomes readable when a child has ended, whichever it was."""
        ours, for_signals = socket.socketpair()
        for end in (ours, for_signals):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(for_signals.fileno(), warn_on_full_buffer=False)
        self._selector.register(ours, selectors.EVENT_READ, self._children_ended)
        self._selector.register(self._control.listener, selectors.EVENT_READ, self._accept)
        self._for_signals = for_signals
        return ours

    def run(self) -> None:
        """Start the processes, stay with them to the end, write the result."""
        self._enter_cgroup()
        self._start_all()
        while not self._is_over:
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            self._work_through_timers()
        self._say_farewell()

    def _enter_cgroup(self) -> None:
        if not self._cgroup:
            return
        try:
            self._cgroup.make()
            self._cgroup.enter(SUPERVISOR)
        except OSError as error:
            self._cgroup = AttemptCgroup.none(self._order, self._folder)
            self._handle(Noted(text=f"no cgroup: {error.strerror}: {error.filename or ''}"))
        if self._cgroup.problem:
            self._handle(Noted(text=f"device memory is not limited by the kernel: {self._cgroup.problem}"))
        self._order = self._cgroup.order_within(self._order)

    # --- Starting -----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        order = self._order
        (self._folder / LOGS).mkdir(mode=0o700, exist_ok=True)
        try:
            argv = command_of(order)
            for rank in order.ranks:
                self._start_one(rank, argv)
        except StartFailed as failure:
            self._handle(CouldNotStart(problem=failure.problem))
            return
        except NotLaunchable as refusal:
            problem = StartProblem(rank=order.ranks[0].rank, stage="command", code=22, text=str(refusal))
            self._handle(CouldNotStart(problem=problem))
            return
        cores = {core for rank in order.ranks for core in rank.cores}
        self._sampler = Sampler(self._pids, cores=len(cores), splits_launcher=order.launch.mode == "host")
        self._sample_s = time.monotonic() + SAMPLE_PERIOD_S
        self._handle(Started())

    def _start_one(self, rank: RankOrder, argv: tuple[str, ...]) -> None:
        order = self._order
        output = self._open_output(rank)
        self._outputs[rank.rank] = output
        socket_path = self._job_folder / JOB_SOCKET
        indices = cuda_indices(rank.cuda_uuids) if needs_cuda_indices(order) else ()
        env = environment_of(order, rank, socket_path, account_of(order.launch.uid), indices)
        try:
            dies = not self._has_heir
            pid = start(order, rank, argv, env, output.rank_end, self._cgroup, dies_with_us=dies)
            self._pids[rank.rank] = pid
        finally:
            output.hand_over()
        self._selector.register(output.fd, selectors.EVENT_READ, lambda: self._drain(rank.rank))

    def _open_output(self, rank: RankOrder) -> Output:
        order = self._order
        extra = None
        if order.launch.output:
            path = output_path(
                order.launch.output, order.launch.workdir, order.job_id, order.attempt, rank.rank
            )
            try:
                extra = open_output(path, order)
            except OSError as error:
                self._handle(Noted(text=f"output: cannot write {path}: {error.strerror}"))
        log = LogWriter(self._folder / LOGS, rank.rank, order.log_bytes_max, owner_of(order))
        return Output(log, extra)

    # --- What happens -------------------------------------------------------------------------------

    def _read_datagrams(self) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data = self._job_socket.recv(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return
            word = parse(data)
            if word is not None:
                self._handle(Heard(word=word))

    def _accept(self) -> None:
        connection = self._control.accept(self._supervision.status)
        if connection is not None and connection.is_open:
            events = selectors.EVENT_READ
            self._selector.register(connection.socket, events, lambda: self._talk(connection))
            self._mind(connection)

    def _talk(self, connection: Connection) -> None:
        connection.flush()
        for word in connection.receive() if connection.is_open else []:
            self._handle(word)
        self._mind(connection)

    def _mind(self, connection: Connection) -> None:
        """Wait for room where something is unsent; forget it when it is closed."""
        fd = next(
            (fd for fd, key in self._selector.get_map().items() if key.fileobj is connection.socket), None
        )
        if fd is None:
            return
        if not connection.is_open:
            self._selector.unregister(connection.socket)
            self._control.forget_closed()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        self._selector.modify(connection.socket, events, self._selector.get_map()[fd].data)

    def _children_ended(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            pass
        ranks = {pid: rank for rank, pid in self._pids.items()}
        for pid, code in reap():
            if pid in ranks:
                rank = ranks[pid]
                del self._pids[rank]
                self._drain(rank)  # Its last words are in the pipe: they say why.
                self._handle(
                    RankExited(rank=rank, exit_code=code)
                    if code >= 0
                    else RankExited(rank=rank, signal=-code)
                )

    def _drain(self, rank: int) -> None:
        """Read, and let the pipe fill for a moment before the next time."""
        output = self._outputs[rank]
        if not output.is_open:
            return
        fd = output.fd
        output.drain(time.monotonic())
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # --- Time ---------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        paused = [each.resume_s for each in self._outputs.values() if self._is_paused(each)]
        own = [self._sample_s, self._collect_s, self._clear_s, self._result_s]
        alarms = [self._supervision.next_alarm_s, *own, *paused]
        if self._termination is not None:
            alarms.append(time.monotonic() + TERMINATION_PERIOD_S)
        return max(0.0, min(LONGEST_WAIT_S, min(alarms) - time.monotonic()))

    def _is_paused(self, output: Output) -> bool:
        return output.is_open and output.fd not in self._selector.get_map()

    def _work_through_timers(self) -> None:
        now_s = time.monotonic()
        for rank, output in self._outputs.items():
            if self._is_paused(output) and now_s >= output.resume_s:
                self._selector.register(output.fd, selectors.EVENT_READ, lambda rank=rank: self._drain(rank))
        if now_s >= self._sample_s:
            self._sample(now_s)
        if self._termination is not None:
            self._look_at_termination(self._termination, now_s)
        if now_s >= self._collect_s:
            self._collect(now_s)
        if now_s >= self._clear_s:
            self._clear(now_s)
        if now_s >= self._result_s:
            self._write_result()
        if now_s >= self._supervision.next_alarm_s:
            self._handle(Ticked())

    def _sample(self, now_s: float) -> None:
        sampler = self._sampler
        if sampler is None or not self._pids:
            self._sample_s = inf
            return
        is_profiling = self._supervision.is_profiling
        if self._indicators is not None and not is_profiling:
            self._indicators.close()
            self._indicators, self._collect_s = None, inf
        self._sample_s = now_s + (PROFILE_SAMPLE_PERIOD_S if is_profiling else SAMPLE_PERIOD_S)
        sampler.sample(now_s)
        if is_profiling:
            self._collect(now_s)
        samples, self._collected = tuple(self._collected), []
        on_cpu = not any(rank.cuda_uuids for rank in self._order.ranks)
        self._handle(
            Sampled(
                memory_mib=sampler.memory_mib if on_cpu else None,
                duty_cycle=sampler.duty_cycle if on_cpu else None,
                cpu_s=sampler.cpu_s,
                output_bytes=sum(each.bytes_seen for each in self._outputs.values()),
                samples=samples,
                is_stopped=sampler.is_stopped,
                others_mib=sampler.others_mib,
            )
        )
        limit_mib = self._order.host_memory_mib
        if limit_mib and not self._cgroup.limits_memory and sampler.resident_mib > limit_mib:
            used_mib = sampler.proportional_mib()
            if used_mib > limit_mib:
                self._handle(OverMemory(used_mib=used_mib))

    def _collect(self, now_s: float) -> None:
        """Read the indicators, as often as their source wants; they are handed over with the next sample."""
        if not self._pids:
            self._collect_s = inf
            return
        source = self._indicators = self._indicators or self._open_indicators()
        self._collected += source.samples()
        self._collect_s = now_s + source.period_s if source.period_s < PROFILE_SAMPLE_PERIOD_S else inf

    def _open_indicators(self) -> MetricsSource:
        """Of the processes of this host; only loaded for a job that is profiled."""
        from cotenant.profiler.cpu import CpuSource
        from cotenant.profiler.gpu import GpuSource

        cores = {core for rank in self._order.ranks for core in rank.cores}
        pids = list(self._pids.values())
        host = CpuSource(pids, max(1, len(cores)), cpu_stat=self._cgroup.cpu_stat)
        uuids = tuple(dict.fromkeys(uuid for rank in self._order.ranks for uuid in rank.cuda_uuids))
        return GpuSource(uuids, host, wanted=self._order.indicators) if uuids else host

    # --- What follows -------------------------------------------------------------------------------

    def _handle(self, event: AnyHappening) -> None:
        for effect in self._supervision.handle(event, time.monotonic()):
            self._do(effect)

    def _do(self, effect: AnyEffect) -> None:
        match effect:
            case TellRank(rank=rank, data=data):
                self._tell_rank(rank, data)
            case EndRanks(force=False):
                end_groups(list(self._pids.values()), signal.SIGTERM)
            case EndRanks():
                end_groups(list(self._pids.values()), signal.SIGKILL)
                self._cgroup.kill(RANKS)
                kill_children()
            case TerminateClients(timeout_s=timeout_s):
                self._terminate(timeout_s)
            case DumpStacks(abort=abort):
                pids = self._sampler.tree_pids() if self._sampler is not None else []
                (abort_others if abort else dump)(pids)
            case Publish(status=status, keep=keep):
                if keep:
                    self._keep(STATUS, status)
                self._say(StatusNow(status=status))
            case GangOut():
                self._say(effect)
            case TakeSample():
                self._sample(time.monotonic())
            case ClearLeftovers():
                self._clearing_since_s = self._clear_s = time.monotonic()
            case Finish(result=result):
                self._result = result
                self._write_result()

    def _terminate(self, timeout_s: float) -> None:
        """Ask the MPS daemons about every process of the attempt; `_look_at_termination` answers."""
        if self._termination is not None:
            self._terminate_again_s = timeout_s
            return
        trees = {rank: tree_of(pid) for rank, pid in self._pids.items()}
        asked = by_pipe(self._order, trees, tree_of(os.getpid())[1:])
        self._termination = Termination(asked, timeout_s, time.monotonic())
        self._look_at_termination(self._termination, time.monotonic())

    def _look_at_termination(self, termination: Termination, now_s: float) -> None:
        outcomes = termination.poll(now_s)
        if outcomes is None:
            return
        self._termination = None
        if self._terminate_again_s is not None:
            again_s, self._terminate_again_s = self._terminate_again_s, None
            self._terminate(again_s)
            return
        self._handle(ClientsTerminated(outcomes=outcomes, problem=termination.problem))

    def _tell_rank(self, rank: int, data: bytes) -> None:
        try:
            self._job_socket.sendto(data, str(self._job_folder / f"rank-{rank}.sock"))
        except OSError:
            return  # Gone, or its queue is full: the agreement says it again.

    def _say(self, message: StatusNow | EndedNow | GangOut) -> None:
        self._control.say(message)
        for connection in list(self._control.connections):
            self._mind(connection)

    def _keep(self, name: str, record: msgspec.Struct) -> bool:
        """Whether it is on disk. A full disk does not end a job."""
        try:
            write_record(self._folder / name, record)
        except OSError as error:
            print(f"cannot write {self._folder / name}: {error.strerror}", file=sys.stderr, flush=True)
            return False
        return True

    def _clear(self, now_s: float) -> None:
        """End what the processes left behind. Orphans become our children, so none is missed."""
        self._cgroup.kill(RANKS)
        kill_children()
        self._children_ended()
        if has_children() or self._cgroup.pids(RANKS):
            self._clear_s = now_s + CLEAR_PERIOD_S
            if now_s >= self._clearing_since_s + STUBBORN_S:
                self._clear_s = now_s + STUBBORN_S
                self._handle(Noted(text="processes do not end although they were killed (state D?)"))
            return
        self._clear_s = inf
        for rank in self._outputs:
            self._drain(rank)
        self._handle(
            AllGone(
                tails={rank: output.tail for rank, output in self._outputs.items()},
                oom_kills=self._cgroup.oom_kills(),
                host_oom_kills=host_oom_kills() - self._oom_kills_before,
            )
        )

    def _write_result(self) -> None:
        assert self._result is not None
        if not self._keep(RESULT, self._result):
            self._result_s = time.monotonic() + RETRY_S
            return
        self._result_s = inf
        self._say(EndedNow(result=self._result))
        self._is_over = True

    def _say_farewell(self) -> None:
        """Give a connected agent a moment to take the last words; the file says the same."""
        for output in self._outputs.values():
            output.close()
        until_s = time.monotonic() + FAREWELL_S
        while any(each.has_unsent for each in self._control.connections) and time.monotonic() < until_s:
            for key, _ in self._selector.select(0.1):
                key.data()
        self._control.close()
        self._job_socket.close()
        (self._job_folder / JOB_SOCKET).unlink(missing_ok=True)
        self._cgroup.leave()
        self._cgroup.remove()
        remove_short_folder(self._folder)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m cotenant.agent.attempt.supervisor ATTEMPT_FOLDER", file=sys.stderr)
        return EXIT_USAGE
    folder = Path(arguments[0]).resolve()
    try:
        order = read_record(folder / ORDER, Order)
    except BadRecord as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    if order is None:
        print(f"no {ORDER} in {folder}", file=sys.stderr)
        return EXIT_USAGE
    if (folder / SUPERVISOR_FILE).exists():
        print(f"attempt {order.attempt} of job {order.job_id} was started before", file=sys.stderr)
        return EXIT_HAS_RUN
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep_files_to_ourselves()
    if os.getsid(0) != os.getpid():
        os.setsid()
    write_record(folder / SUPERVISOR_FILE, own_identity())
    heir = _heir(folder) if order.mps else None
    become_subreaper()
    Supervisor(folder, order, has_heir=heir is not None).run()
    return 0


def _heir(folder: Path) -> int | None:
    """What keeps it waiting as long as it is open. Without one the processes die with us."""
    try:
        return leave_to_heir(folder)
    except OSError as error:
        print(f"no heir: {error}", file=sys.stderr, flush=True)
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

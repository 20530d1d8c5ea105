"""The supervisor of one attempt: `python -m cotenant.agent.supervisor.runtime ATTEMPT_FOLDER [SECRETS]`.

`SECRETS` is the number of an open file with them (`ipc/files.py`). With `--wait SOCKET` instead it waits
until its agent hands it both (`sockets.py`).

Rule: it outlives its agent, needs nobody, and leaves a result. It takes no decision (`core/supervision.py`
does); this loop only waits for something to happen and carries out what follows. One thread, one
`select`: nothing here may block for long, and every process is started from here.

SIGTERM, SIGINT, SIGHUP and SIGQUIT end nothing here. A session that ends, a Ctrl-C in a terminal that
started the agent, or systemd stopping it must not take jobs along; whoever wants the job to end says so
through the agent (`cotenant cancel`), which also saves its state. SIGKILL works, and takes the ranks along.
A signal that comes from outside of the job explains an end of the ranks at the same time
(`processes/outside_signals.py`).

It is started at most once per attempt: if `supervisor.json` is there, an earlier one has run.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.containers.command_lines import BadContainer, ContainerCommands
from cotenant.agent.containers.processes import client_environment, remove_containers
from cotenant.agent.host import cgroups, process_identity, rights, user_files
from cotenant.agent.ipc import channel, files, records
from cotenant.agent.supervisor import datagrams, handover, sockets, streams
from cotenant.agent.supervisor.core import edge, exit_rules, exits, supervision
from cotenant.agent.supervisor.processes import attempt_folder, environment, measuring, outputs, ranks
from cotenant.agent.supervisor.processes.launchers import NotLaunchable
from cotenant.agent.supervisor.processes.outside_signals import block_signals, take_outside_signals
from cotenant.agent.supervisor.processes.reaper import leave_to_reaper
from cotenant.agent.supervisor.processes.termination import Terminations, group_by_pipe
from cotenant.agent.supervisor.ranks import RankProcesses, WantedRank
from cotenant.agent.warm.spawn import MODULES_BYTES_MAX
from cotenant.controller.system.diagnostics import say, take_standard_error
from cotenant.controller.wire import AskStream, BadMessage

CLEAR_PERIOD_S: Final = 0.1
TERMINATION_PERIOD_S: Final = 0.05
WARN_PERIOD_S: Final = 0.2
STUBBORN_S: Final = 10.0
RETRY_S: Final = 5.0
LONGEST_WAIT_S: Final = 3600.0
EXIT_USAGE: Final = 2
EXIT_HAS_RUN: Final = 3


class Supervisor:
    """The loop around one `Supervision`."""

    def __init__(self, folder: Path, order: records.Order, *, has_reaper: bool = False) -> None:
        """Sets up the parts of a supervisor. `has_reaper`: a reaper sees to the processes if we are killed;
        else they die with us."""
        self._has_reaper = has_reaper
        self._folder = folder
        self._order = order
        self._cgroup = cgroups.AttemptCgroup(order, folder)
        self._selector = selectors.DefaultSelector()
        self._supervision = supervision.Supervision(order, time.monotonic())
        self._ranks = RankProcesses(self._selector, self._rank_ended, self._nanny_ended)
        self._outputs = outputs.Outputs(folder, order, self._selector)
        self._measuring = measuring.Measuring(order, self._ranks.roots)
        self._terminations = Terminations()
        self._clear_s = inf
        self._clearing_since_s = inf
        self._signalled_s = -inf
        """When a rank ended by a signal; ours, if the host sent one to all, may come a moment later."""
        self._allowed_s = inf if order.start.time_left_s is None else order.start.time_left_s
        """From `_began_s` to its time limit."""
        self._began_s = inf
        self._warn_s = inf
        """When the script is sent the signal before its time limit."""
        self._result: records.Result | None = None
        self._result_s = inf
        self._is_over = False
        self._oom_kills_before = measuring.host_oom_kills()
        self._removed = False
        """Nothing is left of the attempt's containers."""
        self._datagrams = datagrams.Datagrams(
            folder, order, self._selector, lambda word: self._handle(edge.RankMessageCame(word=word))
        )
        self._conversations = sockets.Conversations(
            folder / records.CONTROL,
            self._selector,
            status=lambda: self._supervision.status,
            heard=self._hear,
        )
        self._streams = streams.Streams(
            order, self._selector, self._conversations.say, lambda: self._conversations.has_room
        )
        self._wakeup = self._open_wakeup()

    # --- Setting up ---------------------------------------------------------------------------------

    def _open_wakeup(self) -> socket.socket:
        """Becomes readable when a child has ended, whichever it was."""
        ours, for_signals = socket.socketpair()
        for end in (ours, for_signals):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(for_signals.fileno(), warn_on_full_buffer=False)
        self._selector.register(ours, selectors.EVENT_READ, self._children_ended)
        self._for_signals = for_signals
        return ours

    def run(self) -> None:
        """Start the processes, stay with them to the end, write the result."""
        self._enter_cgroup()
        self._start_all()
        self._keep(records.SUPERVISOR, process_identity.own_identity())
        while not self._is_over:
            ready = self._selector.select(self._wait_s())
            self._take_outside_signals()  # First: they may explain what has ended.
            for key, _ in ready:
                key.data()
            self._work_through_timers()
        self._say_farewell()

    def _enter_cgroup(self) -> None:
        if not self._cgroup:
            return
        try:
            self._cgroup.make()
            self._cgroup.enter(cgroups.SUPERVISOR)
        except OSError as error:
            self._cgroup = cgroups.AttemptCgroup.none(self._order, self._folder)
            self._handle(edge.Noted(text=f"no cgroup: {error.strerror}: {error.filename or ''}"))
        if self._cgroup.problem:
            self._handle(
                edge.Noted(text=f"device memory is not limited by the kernel: {self._cgroup.problem}")
            )
        self._order = self._cgroup.order_within(self._order)

    # --- Starting -----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        order = self._order
        try:
            (self._folder / records.LOGS).mkdir(mode=0o700, exist_ok=True)
            argv = environment.command_of(order)
            started = self._start_ranks(argv)
        except ranks.RankStartFailed as failure:
            self._handle(edge.CouldNotStart(problem=failure.problem))
            return
        except (NotLaunchable, BadContainer) as refusal:
            self._could_not_start("command", 22, str(refusal))
            return
        except OSError as error:  # A log that cannot be made: our own folder's disk.
            self._could_not_start("process", error.errno or 0, f"{error.strerror}: {error.filename or ''}")
            return
        self._measuring.begin(self._cgroup, time.monotonic())
        self._began_s = time.monotonic()
        self._time_warning()
        self._handle(started)

    def _could_not_start(self, stage: exits.LaunchStage, code: int, text: str) -> None:
        problem = exits.StartProblem(rank=self._order.ranks[0].rank, stage=stage, code=code, text=text)
        self._handle(edge.CouldNotStart(problem=problem))

    def _start_ranks(self, argv: tuple[str, ...]) -> edge.Started:
        opened: list[outputs.Output] = []
        try:
            wanted = []
            for rank in self._order.ranks:
                output = self._outputs.open(rank)
                opened.append(output)
                ends = output.rank_end, output.errors_end
                own_argv, env = self._command(rank, argv)
                wanted.append(WantedRank(rank, env, *ends, own_argv))
            dies = not (self._has_reaper and self._order.mps)
            started = self._ranks.start(self._order, wanted, self._cgroup, dies_with_us=dies)
        finally:
            for each in opened:
                each.hand_over()
        if self._outputs.terminal is not None:
            self._streams.serve(self._outputs.terminal, time.monotonic())
        for rank in self._order.ranks:
            self._outputs.listen(rank.rank)
        return started

    def _command(
        self, rank: records.RankOrder, argv: tuple[str, ...]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """What is executed for a rank, and its environment: the job's own, or what starts its container."""
        order, socket = self._order, self._datagrams.path
        if order.runtime is None:
            return argv, self._environment(rank)
        self._ranks.contain(socket)
        client_env = client_environment(order.launch.uid)
        commands = ContainerCommands(order, self._folder, socket.parent, client_env)
        return commands.wrap(rank, argv, self._environment(rank))

    def _environment(self, rank: records.RankOrder) -> dict[str, str]:
        order = self._order
        # Of the programs that start containers, apptainer alone shows them all of the host's GPUs.
        alone = order.runtime is not None and order.runtime.name != "apptainer"
        indices = ranks.cuda_indices(rank.cuda_uuids, alone=alone) if order.numbers_devices else ()
        return environment.environment_of(
            order, rank, self._datagrams.path, ranks.account_of(order.launch.uid), indices
        )

    # --- What happens -------------------------------------------------------------------------------

    def _children_ended(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            pass
        self._ranks.reap()

    def _take_outside_signals(self) -> None:
        nanny = self._ranks.nanny_pid
        roots = (os.getpid(), nanny) if nanny is not None else (os.getpid(),)
        for number in take_outside_signals(self._order.launch.uid, roots):
            self._handle(edge.OutsideSignal(number=number))

    def _hear(self, word: channel.ToSupervisor) -> None:
        if isinstance(word, AskStream):
            self._streams.ask(word, time.monotonic())
        elif isinstance(word, channel.LimitNow):
            if word.allowed_s != self._allowed_s:  # Else it is a repeat, and the signal may have been sent.
                self._allowed_s = word.allowed_s
                self._time_warning()
        else:
            self._handle(word)

    def _time_warning(self) -> None:
        slurm = self._order.launch.slurm
        self._warn_s = self._began_s + slurm.warned_after_s(self._allowed_s) if slurm else inf

    def _rank_ended(self, rank: int, code: int) -> None:
        self._outputs.drain(rank, final=True)  # Its last words are in the pipe: they say why.
        if -code in exit_rules.ASKS_TO_END:
            self._signalled_s = time.monotonic()
        self._handle(
            edge.RankExited(rank=rank, exit_code=code)
            if code >= 0
            else edge.RankExited(rank=rank, signal=-code)
        )

    def _nanny_ended(self) -> None:
        """Whoever waits for that to be the last of them need not wait for the next look."""
        if self._clear_s < inf:
            self._clear_s = time.monotonic()

    # --- Time ---------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        alarms = [self._supervision.next_alarm_s, self._outputs.next_alarm_s]
        alarms += [self._measuring.sample_s, self._measuring.collect_s]
        alarms += [self._clear_s, self._result_s, self._ranks.kill_s, self._warn_s]
        alarms.append(self._streams.next_alarm_s)
        if self._terminations.is_under_way:
            alarms.append(time.monotonic() + TERMINATION_PERIOD_S)
        return max(0.0, min(LONGEST_WAIT_S, min(alarms) - time.monotonic()))

    def _work_through_timers(self) -> None:
        now_s = time.monotonic()
        self._streams.work(now_s)
        self._outputs.listen_again(now_s)
        if now_s >= self._measuring.sample_s:
            self._sample(now_s)
        self._look_at_terminations(now_s)
        if now_s >= self._measuring.collect_s:
            self._measuring.collect(now_s)
        self._ranks.kill_late(now_s)
        if now_s >= self._warn_s:
            self._warn_s = inf if self._ranks.warn(self._order) else now_s + WARN_PERIOD_S
        if now_s >= self._clear_s:
            self._clear(now_s)
        if now_s >= self._result_s:
            self._write_result()
        if now_s >= self._supervision.next_alarm_s:
            self._handle(edge.SupervisorTicked())

    def _sample(self, now_s: float) -> None:
        terminal = self._outputs.terminal
        if self._ranks.pids.items() & self._ranks.roots.items():
            self._ranks.look_into_containers()
        for measured in self._measuring.sample(
            now_s,
            is_profiling=self._supervision.is_profiling,
            output_bytes=self._outputs.bytes_seen,
            printed=self._outputs.read_printed(),
            input_bytes=0 if terminal is None else terminal.stream.taken_bytes,
        ):
            self._handle(measured)

    def _look_at_terminations(self, now_s: float) -> None:
        answer = self._terminations.poll(self._clients, now_s)
        if answer is not None:
            self._handle(edge.ClientsTerminated(outcomes=answer[0], problem=answer[1]))

    def _clients(self) -> dict[str, list[int]]:
        """Every process of the attempt, by the pipe directory of the MPS daemon that may know it."""
        trees = {rank: process_identity.tree_of(pid) for rank, pid in self._ranks.pids.items()}
        nanny = self._ranks.nanny_pid
        others = process_identity.tree_of(os.getpid())[1:]
        others += process_identity.tree_of(nanny)[1:] if nanny is not None else []
        return group_by_pipe(self._order, trees, others)

    # --- What follows -------------------------------------------------------------------------------

    def _handle(self, event: edge.AnyHappening) -> None:
        for effect in self._supervision.handle(event, time.monotonic()):
            self._do(effect)

    def _do(self, effect: edge.AnySupervisorEffect) -> None:
        match effect:
            case edge.TellRank(rank=rank, data=data):
                self._datagrams.tell(rank, data)
            case edge.WriteWord(text=text):
                self._outputs.write_word(text)
            case edge.SetPace(pace=pace):
                self._datagrams.set_pace(pace, time.monotonic())
            case edge.InterruptRanks() if self._order.mps:
                for pids in self._clients().values():
                    ranks.interrupt(pids)
            case edge.InterruptRanks():
                self._ranks.signal(signal.SIGINT)
            case edge.EndRanks(force=False):
                if self._outputs.terminal is not None:
                    self._outputs.terminal.hang_up()
                    self._ranks.signal(signal.SIGHUP)
                self._ranks.signal(signal.SIGTERM)
            case edge.EndRanks():
                self._ranks.signal(signal.SIGKILL)
                if self._order.runtime is None:
                    self._cgroup.kill(cgroups.RANKS)
                    ranks.kill_children()
            case edge.TerminateClients(timeout_s=timeout_s):
                self._terminations.ask(self._clients, timeout_s)
                self._look_at_terminations(time.monotonic())
            case edge.DumpStacks(abort=abort):
                (ranks.abort_others if abort else ranks.dump)(self._measuring.tree_pids())
            case edge.Publish(status=status, keep=keep):
                if status.first_step is not None:
                    self._keep_modules()
                if keep:
                    self._keep(records.STATUS, status)
                self._conversations.say(channel.StatusNow(status=status))
            case channel.GangOut():
                self._conversations.say(effect)
            case edge.ClearLeftovers():
                self._clearing_since_s = self._clear_s = time.monotonic()
            case edge.Finish(result=result):
                self._result = result
                self._write_result()

    def _keep_modules(self) -> None:
        """What the ranks have imported, where their agent wants to know: from the user's folder into ours."""
        if self._order.warm.learns:
            with suppress(OSError):
                names = self._datagrams.read_file(records.MODULES, MODULES_BYTES_MAX)
                with user_files.OpenFolder.open_path(self._folder) as ours:
                    ours.write(records.MODULES, names, 0o600)
                self._order = msgspec.structs.replace(self._order, warm=records.WarmOffer())

    def _keep(self, name: str, record: msgspec.Struct) -> bool:
        """Whether it is on disk. A full disk does not end a job."""
        try:
            files.write_record(self._folder / name, record)
        except OSError as error:
            say(f"cannot write {self._folder / name}: {error.strerror}")
            return False
        return True

    def _clear(self, now_s: float) -> None:
        """End what the processes left behind. Orphans become our children, so none is missed."""
        self._cgroup.kill(cgroups.RANKS)
        ranks.kill_children()
        self._children_ended()
        if now_s < self._signalled_s + CLEAR_PERIOD_S:
            self._clear_s = self._signalled_s + CLEAR_PERIOD_S
            return
        if ranks.has_children() or self._cgroup.pids(cgroups.RANKS) or self._has_warm_leftovers(now_s):
            self._clear_s = now_s + CLEAR_PERIOD_S
            if now_s >= self._clearing_since_s + STUBBORN_S:
                self._clear_s = now_s + STUBBORN_S
                self._handle(edge.Noted(text="processes do not end although they were killed (state D?)"))
            return
        if self._order.runtime is not None and not self._removed:
            self._removed = True
            if why := remove_containers(self._order, self._folder):
                self._handle(edge.Noted(text=why))
            return  # Podman may have left a process of its own, which the next look ends.
        self._clear_s = inf
        self._take_outside_signals()
        self._keep_modules()
        self._outputs.drain_all()
        own = self._cgroup.memory_kills()
        anybodys = measuring.host_oom_kills() - self._oom_kills_before
        self._handle(
            edge.AllGone(
                tails=self._outputs.tails,
                printed=self._outputs.read_printed(is_over=True),
                oom_kills=own.at_limit if own is not None else 0,
                host_oom_kills=own.by_host if own is not None else anybodys,
                counts_oom=own is not None,
            )
        )

    def _has_warm_leftovers(self, now_s: float) -> bool:
        is_warm = self._supervision.status.launch == "warm"
        return is_warm and self._ranks.has_warm_leftovers(self._folder, self._order, now_s)

    def _write_result(self) -> None:
        assert self._result is not None
        self._outputs.tell_losses()  # Before the result, with which readers stop.
        if not self._keep(records.RESULT, msgspec.structs.replace(self._result, ended_unix_s=time.time())):
            self._result_s = time.monotonic() + RETRY_S
            return
        self._result_s = inf
        self._conversations.say(channel.EndedNow())
        self._is_over = True

    def _say_farewell(self) -> None:
        """Give a connected agent a moment to take the last words; the file says the same."""
        self._outputs.close()
        self._streams.end()
        self._conversations.say_farewell()
        self._datagrams.close()
        self._cgroup.leave()
        self._cgroup.remove()
        attempt_folder.remove_short_folder(self._folder)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--wait"] and len(arguments) == 2 and arguments[1].isdecimal():
        handed = handover.handed_over(int(arguments[1]))
        if handed is None:
            return 0
        arguments = handed
    if len(arguments) not in (1, 2) or not all(each.isdecimal() for each in arguments[1:]):
        say("usage: python -m cotenant.agent.supervisor.runtime ATTEMPT_FOLDER [SECRETS]")
        return EXIT_USAGE
    folder = Path(arguments[0]).resolve()
    try:
        order = files.read_record(folder / records.ORDER, records.Order)
        if order is not None and len(arguments) > 1:
            order = files.take_secrets(order, int(arguments[1]))
    except (files.BadRecord, BadMessage, OSError) as error:
        say(str(error))
        return EXIT_USAGE
    if order is None:
        say(f"no {records.ORDER} in {folder}")
        return EXIT_USAGE
    if (folder / records.SUPERVISOR).exists():
        say(f"attempt {order.attempt} of job {order.job_id} was started before")
        return EXIT_HAS_RUN
    block_signals()
    ranks.keep_files_to_ourselves()
    if os.getsid(0) != os.getpid():
        os.setsid()
    try:
        # Flushed once the ranks run.
        files.write_record(folder / records.SUPERVISOR, process_identity.own_identity(), durable=False)
        reaper = _reaper(folder) if order.mps or order.runtime is not None else None
        rights.become_subreaper()
        supervisor = Supervisor(folder, order, has_reaper=reaper is not None)
    except OSError as error:  # Our own folder's disk is full, say. Nothing of the job's has run.
        say(f"{error.strerror or error}: {error.filename or folder}")
        return records.CANNOT_BEGIN
    supervisor.run()
    return 0


def _reaper(folder: Path) -> int | None:
    """What keeps it waiting as long as it is open. Without one the processes die with us."""
    try:
        return leave_to_reaper(folder)
    except OSError as error:
        say(f"no reaper: {error}")
        return None


if __name__ == "__main__":
    take_standard_error()
    sys.exit(main(sys.argv[1:]))

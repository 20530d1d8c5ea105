"""Counts the optimizer's steps of one process, and tells its supervisor; asks Trainers that know themselves
how many steps they will make.

Rule: between two reports a step costs a comparison and a look at the clock. Nobody waits for a report to be
sent: what one datagram cannot deliver, the next one says. Where a checkpoint Session speaks for this process,
it tells the steps, and we tell only their total.

No framework is imported here. A Trainer that runs the present step stands in its frames, and is asked for
what it shows its own callbacks.
"""

from __future__ import annotations

import os
import socket
import sys
import types
from collections.abc import Callable, Iterable
from multiprocessing import util
from time import perf_counter
from typing import Any, Final

from cotenant.checkpoint import lookups, namespaces, unseen
from cotenant.checkpoint.guard import COUNTING, ENDING, Guard, door
from cotenant.checkpoint.progress import expressions, lengths, loops, losses, main_optimizer
from cotenant.checkpoint.progress.batches import BatchRows, rows_seen
from cotenant.checkpoint.talk import pace, protocol

TURNS_MIN: Final = 16
"""So many turns of the innermost loop say how many steps one has, where that is no whole number."""
FLUSH_S_MAX: Final = 0.2
"""The last report may wait so long for room."""
_RANK: Final = "cotenant.checkpoint.rank"


class LoopLength:
    """How many steps there will be, from what was seen of the loops at two steps or more."""

    def __init__(self) -> None:
        self._key: object = None
        self._since = (0, 0)
        """Steps and turns when these loops were first seen."""
        self.total: int | None = None
        self.note = ""
        self.loops: tuple[int, ...] = ()
        """The turns of the loops around a step, from the outside in, where they were seen."""

    def learn(self, steps: int, windows: loops.Turns) -> None:
        """Learns from the loops in the middle of a turn of the innermost one, just after step number
        `steps`."""
        if windows.key != self._key:
            self._key, self._since, self.total = windows.key, (steps, windows.done), None
        more_steps, more_turns = steps - self._since[0], windows.done - self._since[1]
        each = ""
        if more_steps > 0 and (more_turns >= TURNS_MIN or more_turns > 0 == more_turns % more_steps):
            self.total = steps + round((windows.all - windows.done) * more_steps / more_turns)
            if more_turns // more_steps > 1:
                each = f", {more_turns // more_steps} a step"
        self.note, self.loops = f"loops seen: {windows.text}{each}", windows.counts

    def take_length(self, total: int, note: str) -> None:
        """Takes the length that a framework says."""
        self.total, self.note, self.loops = total, note, ()

    def not_seen(self, why: str) -> None:
        self._key, self.total, self.loops, self.note = None, None, (), f"length not seen: {why}"


class StepReporter:
    """`stepped` is called after each step of each optimizer; the first one to step is the one that counts."""

    def __init__(
        self, loaders: loops.Loaders, turns_in: Callable[..., Any] = loops.turns_in, guard: Guard = COUNTING
    ) -> None:
        """Begins with no steps. `turns_in`: what sees the loops around a step."""
        self._guard = guard
        self._loaders, self._turns_in = loaders, turns_in
        self._out: socket.socket | None = None
        self._start_anew()

    def begin(self, register: Callable[[Any], Any]) -> None:
        self._guard.when_off.append(self._give_up)
        register(self._hook())
        os.register_at_fork(after_in_child=COUNTING.door(self._start_anew))

    def _start_anew(self) -> None:
        """Starts counting anew, also in a process that was forked: what its parent has counted is the
        parent's."""
        self.steps = 0
        self.pace = pace.pace_here()
        self.length = LoopLength()
        self.batch: BatchRows | None = None
        self._main = main_optimizer.MainOptimizer()
        if self._out is not None:
            self._out.close()
        self._out = None
        self._address = ""
        self._rank = 0
        self._look_at = 1
        self._s_changes_at: int | None = None
        self._due_s = 0.0
        self._memory: Any = None
        self._told_first = False
        self._told = (0, 0.0)
        """Step and time of the last report."""
        self._told_length: tuple[int | None, str] = (None, "")
        self._told_batch = False

    def _hook(self) -> Callable[..., None]:
        torch = sys.modules["torch"]

        @door
        @lookups.never_compile
        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            # A step that is being compiled must find nothing here to compile.
            if not torch.compiler.is_compiling():
                self._guard.run(self.note_step, optimizer)

        return stepped

    def note_step(self, optimizer: Any) -> None:
        if not self._main.counts(optimizer):
            return
        self.pace.end_step()
        self.steps = steps = self.steps + 1
        if steps >= self._look_at or steps == self._s_changes_at or perf_counter() >= self._due_s:
            with unseen.Unseen():
                self._speak(steps)

    # --- Telling ------------------------------------------------------------------------------------

    def _speak(self, steps: int) -> None:
        now_s = perf_counter()
        if self._out is None and not self._open(now_s):
            return
        session = speaking()
        total = self.length.total
        if steps >= self._look_at or (total is not None and steps > total):
            self._look_at = 2 * steps
            self._rank = _rank(self._rank)
            self._look(steps, session)
        if self.batch is not None and not self._told_batch:  # Before the first step: a profile begins there.
            self._told_batch = self._say(protocol.BATCH, rows=self.batch.rows, note=self.batch.note)
        if session is None:
            self._told_first = self._told_first or self._say(protocol.FIRST_STEP, step=steps)
            before, before_s = self._told
            elapsed_s = now_s - before_s if before else 0.0
            loss = losses.loss_number(losses.loss_variable(loops.frames_from(sys._getframe(1))))
            self._tell_step(steps, steps - before if before else 0, elapsed_s, loss)
            s_ends = steps == self._s_changes_at
            self._memory.report_if_due(now_s, steps, self._steps_used(), s_ends=s_ends)
            self._told = steps, perf_counter() if s_ends else now_s
        self._s_changes_at = self._s_change_after(steps)
        if self._told_length != (self.length.total, self.length.note):
            told = self.length.total, self.length.note
            if self._say(protocol.LENGTH, total=told[0], note=told[1], loops=self.length.loops):
                self._told_length = told
        self._due_s = now_s + protocol.STEP_REPORT_PERIOD_S

    def _open(self, now_s: float) -> bool:
        env = protocol.JobEnvironment.read(os.environ)
        if env.socket is None or env.protocol > protocol.PROTOCOL_VERSION:
            self._leave()
            return False
        self._address, self._rank = str(env.socket), env.rank
        if os.environ.get("LOCAL_RANK", "0") == "0":
            self.pace.speak_for_host()
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        from cotenant.checkpoint.talk.memory import MemoryReports

        self._memory = MemoryReports(self._say, self.steps)
        # Not `atexit`, which processes of `multiprocessing` do without.
        util.Finalize(None, ENDING.door(self._flush), exitpriority=10)
        return True

    def _say(self, name: str, **fields: Any) -> bool:
        assert self._out is not None
        try:
            self._out.sendto(protocol.encode(name, self._rank, fields), self._address)
        except OSError:
            return False
        return True

    def _tell_step(self, steps: int, count: int, elapsed_s: float, loss: float | None = None) -> None:
        waited_s, longest_s = self.pace.take()
        self._say(
            protocol.STEP,
            step=steps,
            count=count,
            elapsed_s=round(elapsed_s, 6),
            s=self._steps_used(),
            loss=loss,
            waited_s=round(waited_s, 6),
            longest_s=round(longest_s, 6),
            **({"equivalent": True} if self._is_equivalent() else {}),
        )

    @staticmethod
    def _is_equivalent() -> bool:
        accumulation = sys.modules.get("cotenant.gradaccum")
        return accumulation is not None and accumulation.PROGRESS.is_equivalent

    @staticmethod
    def _s_change_after(steps: int) -> int | None:
        accumulation = sys.modules.get("cotenant.gradaccum")
        found: int | None = None if accumulation is None else accumulation.PROGRESS.change_after(steps)
        return found

    @staticmethod
    def _steps_used() -> int:
        """Into how many parts the last step's batch was split."""
        accumulation = sys.modules.get("cotenant.gradaccum")
        return accumulation.PROGRESS.last_steps if accumulation is not None else 1

    def _flush(self) -> None:
        """A job that ends well is seen at its last step."""
        if self._out is not None and speaking() is None and self.steps > self._told[0]:
            self._out.settimeout(FLUSH_S_MAX)
            self._tell_step(self.steps, 0, 0.0)

    # --- Looking ------------------------------------------------------------------------------------

    def _look(self, steps: int, session: Any) -> None:
        if session is not None:
            steps = session.step + 1  # It counts this one when the script asks for the next batch.
        frames = list(loops.frames_from(sys._getframe(1)))
        accumulation = sys.modules.get("cotenant.gradaccum")
        first = () if accumulation is None else accumulation.PROGRESS.first_rows
        if accumulation is not None:
            accumulation.PROGRESS.between_parts = self.pace.wait
        self.batch = self.batch or rows_seen(frames, first)
        try:
            known = steps_left(frames)
            if known is not None:
                self.length.take_length(steps + known[0], known[1])
            else:
                self.length.learn(steps, self._turns_in(frames, self._loaders, session))
        except loops.NotSeen as error:
            self.length.not_seen(str(error))

    # --- Ending -------------------------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        self._leave()
        if self._out is not None:
            self._say(protocol.LENGTH, total=None, note=reason)

    def _leave(self) -> None:
        """The hook stays, and does nothing: torch goes through its hooks while one of them runs."""
        self._look_at = sys.maxsize
        self._due_s = float("inf")


def speaking() -> Any:
    """The checkpoint Session that counts for this process, if the script has one."""
    module = sys.modules.get(_RANK)
    return None if module is None else module.JobRank.newest()


def _rank(before: int) -> int:
    """torch.distributed knows better than the environment, once it is set up."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return before


# --- Trainers that know their length ---------------------------------------------------------------


_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")


def steps_left(frames: Iterable[types.FrameType]) -> tuple[int, str] | None:
    """After the present step, and who says so; None where no such trainer stands around it."""
    for frame in frames:
        module = namespaces.module_of(frame)
        if module == "transformers.trainer":
            found = _transformers(_owner(frame))
        elif module.startswith(_LIGHTNING):
            found = _lightning(_owner(frame))
        else:
            continue
        if found is not None:
            return found
    return None


def _owner(frame: types.FrameType) -> Any:
    """Whose method it is."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return None
    names = expressions.Names(frame)
    try:
        return names.local.get("self")
    finally:
        names.release()


def _transformers(trainer: Any) -> tuple[int, str] | None:
    state = lengths.attribute_there(trainer, "state")
    total, done = (lengths.attribute_there(state, name) for name in ("max_steps", "global_step"))
    if not issubclass(type(total), int) or not issubclass(type(done), int) or total < 1:
        return None
    return max(0, total - done - 1), f"the Trainer says {total} steps in all"


def _lightning(owner: Any) -> tuple[int, str] | None:
    """Its own estimate may ask the script for its loaders: this is the same from what its loops hold."""
    trainer = owner if _there(owner, "fit_loop") is not lengths.MISSING else _there(owner, "trainer")
    batches, epochs = _there(trainer, "fit_loop", "max_batches"), _there(trainer, "fit_loop", "max_epochs")
    steps, each = (
        _there(trainer, "fit_loop", "epoch_loop", "max_steps"),
        _there(trainer, "accumulate_grad_batches"),
    )
    loop = _there(trainer, "fit_loop", "epoch_loop", "automatic_optimization")
    done = _there(loop, "optim_progress", "optimizer", "step", "total", "completed")
    if not issubclass(type(done), int) or not issubclass(type(each), int):
        return None
    known = [steps] if issubclass(type(steps), int) and steps > 0 else []
    if issubclass(type(batches), int) and issubclass(type(epochs), int) and epochs > 0:
        known.append(-(-batches // each) * epochs)
    return (
        (max(0, min(known) - done - 1), f"the Trainer expects {min(known)} steps in all") if known else None
    )


def _there(owner: Any, *names: str) -> Any:
    for name in names:
        owner = lengths.attribute_there(owner, name)
    return owner

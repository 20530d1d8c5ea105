"""A rank whose script knows nothing of us: saved at the end of a turn of its loop, by two pictures.

Rule: the script is asked for nothing. What differs between the picture at the loop's begin and one at the end
of a turn is its state. "Resumable" is said once that state was written for the first time, after the first
step; until then, and for whatever cannot be written, the reason is said.
"""

from __future__ import annotations

import contextvars
import os
import sys
import types
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Literal, NoReturn, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from cotenant.checkpoint import facts, guard, namespaces, ownership, picture, rank, rerun, resuming, seeds
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.picture.arrays import TENSOR
from cotenant.checkpoint.picture.kinds import release_variables
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.progress.main_optimizer import MainOptimizer
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.agreement import StepVerdict
from cotenant.checkpoint.training.state import order_matters, order_of
from cotenant.checkpoint.zerocode import boundaries, looking, passes, refusals, state_writer
from cotenant.checkpoint.zerocode.files import FileWatch
from cotenant.checkpoint.zerocode.proof import Expected, OverlapProof, ShownState
from cotenant.checkpoint.zerocode.sites import CallSite, calls_in, script_frames, stand_at

PROOF_STEPS: Final = 2
"""Made by a process that has saved, before it leaves: the next one shows that it makes the same."""
PROOF_STEP_S_MAX: Final = 1.0
"""A longer step is not made for the proof's sake alone: somebody waits for the devices."""


def _nothing() -> None:
    return None


class PicturedState:
    """What the disk asks of a state: here all of it is each rank's own."""

    ranks_are_alike = True
    cuda_device: torch.device | None = None

    def __init__(self) -> None:
        self.named: dict[str, torch.Tensor] = {}

    @property
    def on_cuda(self) -> bool:
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def shared_state(self) -> dict[str, Any]:
        return {}

    def parameters(self) -> dict[str, torch.Tensor]:
        return self.named

    def first_step_done(self) -> None:
        return


class SavingPlace(Protocol):
    """Where a script is that is being saved."""

    def locate(self, reason: str) -> str:
        """A reason, after the line that it is about."""


class Watched:
    """What follows a script from its start, whether or not it is ever saved."""

    def __init__(self) -> None:
        self.look, self.files, self.loaders = looking.FirstLook(), FileWatch(), Loaders()
        self.passes = passes.Passes(self.loaders)


class ScriptRank(rank.JobRank):
    """Watches one script from its first step on, or from the loop in which it is taken up."""

    def __init__(self, watched: Watched, *, why_not: str, leaves_only: bool) -> None:
        """`why_not`: why it is not to be saved; empty: it is. leaves_only: only when it is asked to leave."""
        self._script = PicturedState()
        super().__init__(self._script)
        self._watched, self._why_not, self._leaves_only = watched, why_not, leaves_only
        self._turns = boundaries.TurnEnds()
        self.has_ended = False
        """This attempt was ended, and said why."""
        self._verdict = StepVerdict.GO
        self._leaving: OverlapProof | None = None
        """It has saved, and makes some steps more."""
        self._expected: Expected | None = None
        """What the process before has shown after its last steps, where this one makes them again."""
        self._way: list[CallSite] = []
        self._loops: list[CallSite] = []
        """Where the script was left, and the loops on the way there."""
        self._optimizer: Callable[[], Any] = _nothing
        """What has made the newest step."""
        self._step_began_s = perf_counter()
        self._step_s = 0.0
        self._is_written = False
        """Its state was written once."""
        self._has_looked = False
        """The interpreter keeps what its variables were at the end of the last turn."""
        files = {namespaces.names_of(name).get("__file__") for name in ownership.own_modules()}
        self._sources = {os.path.abspath(file): rerun.number_of(file) for file in files if file}
        guard.SAVING.when_off.append(self._fail)
        MainOptimizer.let_go = staticmethod(self._let_go)

    def begin(self, accumulates: bool | str) -> None:
        """Say hello, after the first step of a script that has begun at its beginning."""
        root = self._env.root
        if not self._why_not and root is None:
            self._why_not = "there is no folder for its checkpoints"
        if (
            not self._why_not
            and root is not None
            and self._open_checkpoints(root, rank.KEEP, rank.IDLE_S_MAX)
        ):
            self.end_attempt(
                "there are checkpoints of this job, but the script has not come to the loop they are of"
            )
        self._say_hello(accumulates)

    def take_up(self) -> resuming.LoadedCheckpoint:
        """Read the checkpoint that the script is to go on from."""
        assert self._env.root is not None
        loaded = self._open_checkpoints(self._env.root, rank.KEEP, rank.IDLE_S_MAX)
        assert loaded is not None, "a script is taken up where there are checkpoints"
        if loaded.manifest.world_size != self._env.world_size:
            self.end_attempt(
                f"it was saved by {loaded.manifest.world_size} ranks, and {self._env.world_size} run now: a "
                "script without a Session goes on with as many",
                "load",
            )
        self.step = loaded.manifest.step
        self._find_counter()
        return loaded

    def taken_up(self, loaded: resuming.LoadedCheckpoint) -> None:
        """Everything is back where it was, and was compared."""
        differences = facts.unequal_facts(loaded.manifest.facts, self._facts())
        differences += [
            f"{each} was edited"
            for each in rerun.edited_since(loaded.manifest.facts.get(rerun.SOURCES) or {})
        ]
        differences += facts.cuda_notes() if self._script.on_cuda else []
        self._take_over(loaded, differences)
        assert self._env.root is not None
        if not differences:
            self._expected = Expected(self._env.root / loaded.name, self._env.rank)
        self._is_written = self._has_looked = True
        guard.SAVING.is_needed = False
        self._say_hello(accumulates=False)  # It is not known before the first step.
        self._allow_saves()

    def _say_hello(self, accumulates: bool | str) -> None:
        self._agreement.can_save = False  # Until its state was written once.
        self._introduce(accumulates, [], self._why_not or "its state was not written yet")
        if self._leaves_only:
            self._introduction.leaves_only()

    def note_step(self, optimizer: Any = None) -> None:
        """The script's main optimizer has made a step; the script's frames are above this one."""
        self._optimizer = _nothing if optimizer is None else weakref.ref(optimizer)
        now_s = perf_counter()
        self._step_s, self._step_began_s = now_s - self._step_began_s, now_s
        self._watched.passes.steps += 1
        self._let_go()
        if self._leaving is None:
            self._complete()
        is_due = not self._is_written or self._is_compared or self._verdict is not StepVerdict.GO
        if self._leaving is not None or (is_due and not self._why_not):
            guard.SAVING.run(self._wait)

    def _let_go(self) -> None:
        """Before the next step: a trace function must not do this."""
        if self._has_looked:
            self._has_looked = False
            release_variables(script_frames(sys._getframe(1)))

    @property
    def _is_compared(self) -> bool:
        """The process before has shown how the next step ends."""
        return self._expected is not None and bool(self._expected.turns)

    def give_up(self, reason: str) -> None:
        """This script cannot be saved from now on."""
        if not self._why_not:
            self._why_not = reason
            self._turns.forget()
            self._watched.passes.end()
            self.cannot_resume(reason)

    def _fail_to_load(self, error: CheckpointError) -> NoReturn:
        """Ends the attempt: a guard must not make a fresh start of it."""
        self.end_attempt(str(error), "load")

    def end_attempt(self, reason: str, what: Literal["resume", "load"] = "resume") -> NoReturn:
        """This is not the run that was left: it must not go on. load: that says nothing against its
        checkpoint."""
        self.has_ended = True
        self._tell(protocol.FAILED, what=what, error=reason)
        guard.write_line(f"{CheckpointError.__module__}.CheckpointError: {reason}")
        self._close()
        raise guard.AttemptEnds(1)

    def run_or_end(self, function: Callable[..., Any], *args: Any) -> Any:
        """What goes wrong while a script is taken up must not end in a run that looks resumed."""
        try:
            return function(*args)
        except refusals.NotResumable as error:
            self.end_attempt(str(error))
        except (CheckpointError, OSError, MemoryError, torch.OutOfMemoryError) as error:
            self.end_attempt(str(error), "load")
        except Exception as error:  # noqa: BLE001  # whatever it is, this is not the run that was left
            self.end_attempt(guard.describe(error))

    def _wait(self) -> None:
        """Do what is due at the end of this turn of the loop."""
        try:
            standing = stand_at(sys._getframe(1), self._watched.loaders, self._watched.passes.find_in_loop)
            self._turns.wait(standing, self._end_turn)
        except refusals.NotResumable as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """This script cannot be saved, or not at this place."""
        self._end_proof()
        if self._is_compared:
            self.end_attempt(
                f"step {self.step} was made otherwise than in the attempt that was left: {reason}"
            )
        if self._verdict is not StepVerdict.GO:
            self._verdict = StepVerdict.GO
            self._tell(protocol.FAILED, what="save", error=reason)
        self.give_up(reason)

    # At the end of a turn.

    def _obey(self, verdict: StepVerdict) -> None:
        """It was agreed to save after this step: at the end of its turn."""
        self._verdict = verdict

    def _end_turn(self, frame: types.FrameType, standing: SavingPlace) -> None:
        self._has_looked = True
        if self._leaving is not None:
            self._show_turn(frame)
            return
        if self._is_compared:
            self._compare_turn(frame)
        try:
            if not self._is_written:
                self._write(frame, standing)
                self._script.named = {}
                self._is_written = True
                self._allow_saves()
            if self._verdict is not StepVerdict.GO:
                # What is set meanwhile in its context is none of the script's.
                contextvars.copy_context().run(self._leave, frame, standing)
        except refusals.NotYet as error:
            if self._verdict is not StepVerdict.GO:
                self._verdict = StepVerdict.GO
                self._tell(protocol.FAILED, what="save", error=str(error))
        except (refusals.NotResumable, picture.PictureTooLarge, CheckpointError) as error:
            self._expected = None  # It goes on as it did before; only the next step will not be compared.
            self._fail(standing.locate(str(error)))

    def _allow_saves(self) -> None:
        files = self._watched.files
        files.when_refused = self.give_up
        if files.refused:
            self.give_up(files.refused)
        elif self._saver is not None and self._can_open:
            self._agreement.can_save = True
            self._introduction.can_resume()

    def _leave(self, frame: types.FrameType, standing: SavingPlace) -> None:
        stop = self._verdict in (StepVerdict.STOP, StepVerdict.FINISH)
        own, now = self._write(frame, standing)
        own["shown"] = list(ShownState.from_picture(now))
        own["files"] = self._watched.files.capture()
        saved = self._save_now(own, wait=stop, tidy=not stop)
        self._script.named = {}
        self._verdict = StepVerdict.GO
        if saved and stop:
            self._tell(protocol.STOPPED, step=self.step)
            self.stopping = True
            self._show_where_it_stands()

    def _write(self, frame: types.FrameType, standing: SavingPlace) -> tuple[dict[str, Any], picture.Picture]:
        """This rank's state at the end of a turn, as a tree of plain values and tensors, and what it is of.
        Whether a script can be saved is tried by this alone: it reads no tensor and writes no file."""
        look = self._watched.look
        if look.picture is None:
            raise refusals.NotResumable(look.why_not)
        thread = ownership.own_thread()
        if thread:
            raise refusals.NotResumable(f"a thread of the script's runs beside its loop: {thread}")
        now = picture.Picture(self.roots(frame), digests=True)
        with look.picture.hold():
            writer = state_writer.StateWriter(look.picture, now, self._watched.passes, look.opaque)
            place = self._write_place(standing, writer)
            state = writer.write()
        self._script.named = {
            node.path: node.value
            for node in now.nodes
            if node.kind is TENSOR and isinstance(node.value, torch.nn.Parameter)
        }
        orders = self._gradient_orders(look.picture, now)
        hooks = {"hooks_made": RemovableHandle.next_id}
        own = {"state": state, "gradient_orders": orders, **hooks, **place}
        return own, now

    def roots(self, frame: types.FrameType) -> list[tuple[str, Any]]:
        """What everything is reached from, at the end of a turn."""
        return [*looking.roots_of(script_frames(frame)), *self._watched.passes.generators()]

    def _leave_generators(self, writer: state_writer.StateWriter) -> None:
        """What stands between a loop and its loader is led to where it was, and gets back what it holds."""
        for _, names in self._watched.passes.generators():
            held = (each for each in names.variables.values() if issubclass(type(each), _BaseDataLoaderIter))
            writer.leave_to_each_process(*held)
            if names.frame is not None:
                release_variables([names.frame])

    def _write_place(self, standing: Any, writer: state_writer.StateWriter) -> dict[str, Any]:
        """Where the script stands, and how far it is in its data."""
        self._leave_generators(writer)
        sites = standing.sites
        if not self._is_written and looking.registers_for_the_end(standing.loops):
            raise refusals.NotResumable(
                f"{sites[0].place}: it registers functions for its end (atexit) in the loop"
            )
        self._way = calls_in(standing.frames[: sites[-1].depth + 1], sites[-1].line)
        self._loops = [CallSite(*site[:3]) for site in sites]
        return {
            "began": [list(call) for call in self._watched.look.began],
            "way": [list(call) for call in self._way],
            "sites": [list(site) for site in sites],
            "optimizer": [
                each.key for each in [writer.before.node_of(self._optimizer())] if each is not None
            ],
            "passes": [
                [list(each.write(writer)) for each in through if each.batches() is not None]
                for through, _ in zip(standing.passes, sites)
            ],
        }

    def _gradient_orders(self, before: picture.Picture, now: picture.Picture) -> list[list[Any]]:
        """In which order each DDP adds gradients up, where that matters."""
        found = []
        for node in now.nodes:
            if issubclass(type(node.value), DistributedDataParallel) and order_matters(
                node.value, self._env.world_size
            ):
                if node.value.static_graph:
                    raise refusals.NotResumable(
                        "DDP(static_graph=True) groups its gradients anew in each process"
                    )
                old, names = before.node_of(node.value), order_of(node.value)
                if not names:
                    raise refusals.NotYet("DDP has not yet grouped its gradients")
                if old is None:
                    raise refusals.NotResumable(f"`{node.path}` was put into DDP in the loop")
                found.append([old.key, names])
        return found

    def _facts(self) -> dict[str, Any]:
        files = self._watched.files
        began = self._watched.look.began
        places = {rerun.BEGAN: began[-1:], rerun.LOOPS: self._loops, rerun.CALLS: [*began, *self._way]}
        paths = {word: [[call.file, call.line] for call in calls] for word, calls in places.items()}
        told = {
            rerun.FOLDERS: sorted(files.made),
            rerun.WRITTEN: sorted(files.written),
            rerun.SEEDS: seeds.seeds_used(),
        }
        told[rerun.SOURCES] = self._sources
        return {**super()._facts(), **told, **paths}

    # The proof: a few steps more than were saved, made by this process and by the next one.

    def _show_where_it_stands(self) -> None:
        root = self._env.root
        assert root is not None and self._saver is not None
        steps = PROOF_STEPS if self._step_s <= PROOF_STEP_S_MAX else 0
        self._leaving = OverlapProof(self._saver.directory_of(self.step), self._env.rank, steps)
        self._watched.files.forbid(self._end_proof)
        if not steps:
            self._end_proof()

    def _show_turn(self, frame: types.FrameType) -> None:
        assert self._leaving is not None
        self._leaving.add(ShownState.from_picture(picture.Picture(self.roots(frame))))
        if self._leaving.is_complete:
            self._end_proof()

    def _end_proof(self) -> None:
        """Ends this process at once: what the script does on its way out (`finally`, `atexit`) would not be
        part of a run that nobody has interrupted."""
        proof, self._leaving = self._leaving, None
        if proof is not None:
            try:
                proof.write()
                self._say_stopped()
            except Exception as error:  # noqa: BLE001  # it has saved, and leaves in any case
                guard.tell_supervisor(protocol.FAILED, what="hook", error=guard.describe(error))
            finally:  # Its output is closed, and its place is somebody else's.
                os._exit(0)

    def _compare_turn(self, frame: types.FrameType) -> None:
        assert self._expected is not None
        try:
            wrong = self._expected.compare(ShownState.from_picture(picture.Picture(self.roots(frame))))
        except picture.PictureTooLarge as error:
            wrong = str(error)
        if wrong:
            self.end_attempt(
                f"step {self.step} was made otherwise than in the attempt that was left: {wrong}"
            )
        self._introduction.resume_proven(self._lineage.proven(self.step))

    def _close(self) -> None:
        self._end_proof()
        super()._close()

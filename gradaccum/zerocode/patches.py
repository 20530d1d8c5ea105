"""Where the torch of a script is changed whose batches are to be split, and how it is changed back.

Rule: nothing of this is in a process whose s is 1. Three places are changed: `Module.__call__` (to see the
outermost forward pass), `torch.autograd.backward` and `grad` (to audit the loss before its gradient is
computed, and to read what the second pass through the parts showed), and `torch.compile` (which does not go
with any of it). Loaders, optimizers, schedulers, clipping and scalers are not touched: they see whole
batches, once.

Rule: a split is proven when it begins, again after 2, 4, 8, ... steps, whenever the modules, their modes or
the way through their code change, and before what it led to is saved or the script ends. Where the proof
fails, the step is not taken.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from cotenant.checkpoint.guard import SPLITTING, AttemptEnds, door
from cotenant.gradaccum import exactness, modules, rows, schedule
from cotenant.gradaccum.zerocode import audit, first_batches, forward, selfcheck
from cotenant.gradaccum.zerocode.standing import AccumulationStanding

WAYS_MAX: Final = 32
"""Ways through a module's code, told apart by how many graph nodes a part makes; more cannot be checked."""
WITHOUT_ROWS: Final = "it is called without a tensor that has rows"


class ModuleProof:
    """What was shown of one module, and when it has to be shown again."""

    def __init__(self, original: Any, module: torch.nn.Module, *, allows_noise: bool) -> None:
        self._check = selfcheck.RowCheck(original, module, allows_noise=allows_noise)
        self._form: list[tuple[int, bool]] = []
        self._due_at = 0
        self._ways: set[int] = set()
        self._last: rows.Call | None = None
        self.steps = 0
        """Forward passes in parts so far."""

    @property
    def generators(self) -> list[Any]:
        return self._check.generators

    def is_due(self, form: list[tuple[int, bool]]) -> bool:
        return self.steps >= self._due_at or form != self._form

    def prove(self, call: rows.Call, steps: int, form: list[tuple[int, bool]]) -> str | None:
        """Why this module's batches must not be split; None: they may be."""
        reason = self._check.objection(self._few(call, steps))
        if reason is None:
            self._form, self._due_at = form, max(1, 2 * self.steps)
        return reason

    def note_pass(self, call: rows.Call, steps: int, ways: set[int]) -> str | None:
        """A forward pass in parts was made, in these ways. Proves again what is new about it."""
        self.steps += 1
        self._last = self._few(call, steps)
        if ways <= self._ways:
            return None
        if len(self._ways | ways) > WAYS_MAX:
            return f"its forward pass took more than {WAYS_MAX} different ways, which cannot all be checked"
        reason = self._check.objection(self._last) if self._ways else None
        self._ways |= ways
        return reason

    def prove_last(self) -> str | None:
        """Why what was made in parts so far must not count; None: it may."""
        return None if self._last is None else self._check.objection(self._last)

    @staticmethod
    def _few(call: rows.Call, steps: int) -> rows.Call:
        return call.pick(selfcheck.rows_to_check(call.rows, max(rows.sizes_of(call.rows, steps))))


class Replacements:
    """What stands in place of torch's functions for a while. What others have put on top of it stays there;
    it passes everything on then."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any, Any]] = []

    def replace(self, holder: Any, name: str, around: Callable[[Any], Any]) -> None:
        """`around(original)` stands in place of `holder.name`."""
        ours = around(getattr(holder, name))
        own = vars(holder).get(name)  # None: a class that inherits it
        setattr(holder, name, ours)
        self._originals.append((holder, name, ours, own))

    def restore(self, *names: str) -> None:
        """Put the originals back; of these names only, if there are any."""
        for holder, name, ours, own in self._originals:
            if (names and name not in names) or vars(holder).get(name) is not ours:
                continue
            if own is None:
                delattr(holder, name)
            else:
                setattr(holder, name, own)


class Patches:
    """The changes of one process whose batches are to be split."""

    def __init__(self, standing: AccumulationStanding, *, allows_noise: bool = False) -> None:
        self.standing = standing
        self._allows_noise = allows_noise
        self._audit = audit.Audit()
        self._replaced = Replacements()
        self._proofs: WeakKeyDictionary[torch.nn.Module, ModuleProof] = WeakKeyDictionary()
        self._open: WeakSet[forward.SplitForward] = WeakSet()
        """Forward passes in parts whose graph is still there."""
        standing.when_refused.append(self.leave)

    def enter(self) -> None:
        self._replaced.replace(torch.nn.Module, "__call__", self._calls)
        self._replaced.replace(torch.autograd, "backward", self._audits)
        self._replaced.replace(torch.autograd, "grad", self._audits)
        self._replaced.replace(torch, "compile", self._refuses)
        schedule.PROGRESS.before_save = self.prove_all
        atexit.register(self._prove_at_exit)

    def leave(self) -> None:
        """The audit of the present step goes on: it may have been split."""
        self._replaced.restore("__call__", "compile")

    def objection(self) -> str | None:
        """What speaks against a split after the first step: nothing was there to be split."""
        if self._proofs or self.standing.steps_now() == 1:
            return None
        return "no forward pass with more than one row was seen before the first optimizer step"

    # What stands in each place.

    def _calls(self, original: Any) -> Any:
        depth, begin, end = forward.DEPTH, self._begin, self._end

        @door
        @functools.wraps(original)
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if depth.inside or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            split = SPLITTING.run(begin, original, module, args, kwargs)
            if split is None:
                return original(module, *args, **kwargs)
            if split is WHOLE:
                with forward.inside():
                    return original(module, *args, **kwargs)
            began = forward.node_number()
            output = forward.run_or_end(split, split.run)
            exactness.prove_or_end(end, module, split, output, began)
            return output

        return __call__

    def _audits(self, original: Any) -> Any:
        signature = inspect.signature(original)

        @door
        @functools.wraps(original)
        def with_audit(*args: Any, **kwargs: Any) -> Any:
            if forward.DEPTH.inside or forward.is_in_backward():
                return original(*args, **kwargs)
            exactness.prove_or_end(self._check_losses, signature, args, kwargs)
            found = original(*args, **kwargs)
            exactness.prove_or_end(self._check_second_pass)
            return found

        return with_audit

    def _refuses(self, original: Any) -> Any:
        @door
        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            SPLITTING.run(self.standing.refuse, "torch.compile fixes the batch it was compiled for")
            return original(*args, **kwargs)

        return compile_

    # A forward pass.

    def _begin(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """The pass in parts; `WHOLE` for an outermost one that stays whole; None for any other."""
        if schedule.PROGRESS.explicit or self.standing.by_framework or forward.is_in_backward():
            return None
        if issubclass(type(module), DistributedDataParallel) or not modules.trains(module):
            return None  # Inside DDP is the module that we are looking for.
        first_batches.note_rows(args, kwargs)
        steps = self.standing.steps_now()
        schedule.PROGRESS.last_steps = 1
        if steps == 1:
            return WHOLE
        try:
            call = rows.Call(args, kwargs)
        except rows.Uncut as error:
            if str(error) != WITHOUT_ROWS:
                self._refuse(module, str(error))
            return WHOLE
        if call.rows < 2:
            return WHOLE
        proof = self._proofs.get(module)
        if proof is None:
            proof = self._proofs[module] = ModuleProof(original, module, allows_noise=self._allows_noise)
        form = forward.form_of(module)
        if proof.is_due(form):
            reason = proof.prove(call, steps, form)
            if reason is not None:
                self._refuse(module, reason)
                return WHOLE
        schedule.PROGRESS.last_steps = steps
        schedule.PROGRESS.is_equivalent |= bool(proof.generators)
        return forward.SplitForward(original, module, call, steps, proof.generators)

    def _end(self, module: torch.nn.Module, split: forward.SplitForward, output: Any, began: int) -> None:
        self._audit.note_pass(began, type(module).__name__, output)
        self._open.add(split)
        if split.draws_more:
            exactness.end_attempt(f"{type(module).__name__}: {selfcheck.DRAWS.format(split.draws_more)}")
        reason = self._proofs[module].note_pass(split.whole_call, split.steps, split.nodes)
        if reason is not None:
            exactness.end_attempt(f"{type(module).__name__}: {reason}")

    def _refuse(self, module: torch.nn.Module, reason: str) -> None:
        self.standing.refuse(f"{type(module).__name__}: {reason}")

    def _check_losses(self, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        tensors = next(iter(given.values()))
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        losses = [loss for loss in losses if isinstance(loss, torch.Tensor)]
        reason = self._audit.objection(losses, again=bool(given.get("create_graph")))
        if reason is not None:
            exactness.end_attempt(reason)

    def _check_second_pass(self) -> None:
        for split in list(self._open):
            differs = split.difference()
            if differs:
                exactness.end_attempt(
                    f"a part of the batch that was computed again in the backward pass had {differs}"
                )

    # The whole script.

    def prove_all(self) -> None:
        """Before what was trained in parts is saved: every module once more."""
        for module, proof in list(self._proofs.items()):
            reason = proof.prove_last()
            if reason is not None:
                exactness.end_attempt(f"{type(module).__name__}: {reason}")

    @door
    def _prove_at_exit(self) -> None:
        if self.standing.refused is not None or getattr(sys, "last_value", None) is not None:
            return
        try:
            SPLITTING.run(self.prove_all)
        except AttemptEnds as ends:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(int(ends.code or 1))


WHOLE: Final = object()

"""Where the torch of the script is changed, and how it is changed back.

Rule: four places, each restored by `leave`: `Module.__call__` (to see the outermost forward pass),
`torch.autograd.backward` and `grad` (to audit the loss before its gradient is computed) and `torch.compile`
(which does not go with any of it). Steps are counted by torch's own global hook. Loaders, optimizers,
schedulers, clipping and scalers are not touched: they see whole batches, once.

With s = 1 the first step is left alone: its graph is audited, and the check on a few of its rows comes after
it, so that a script whose forward pass has side effects is refused before it was called once more than it
would have been. With s > 1 from the start (such a script has been seen before) the check comes first.

Rule: a verdict may only get worse. After a refusal we take the patches out again and leave every batch whole.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from cotenant.gradaccum import exactness
from cotenant.gradaccum.rows import Call, Uncut
from cotenant.gradaccum.schedule import PROGRESS
from cotenant.gradaccum.zerocode import selfcheck
from cotenant.gradaccum.zerocode.forward import DEPTH, Audit, inside, split_forward
from cotenant.gradaccum.zerocode.standing import AccumulationStanding

log = logging.getLogger("cotenant.gradaccum")


SEARCH_STEPS: Final = 8
"""After so many steps no new module is looked for: every call of every module would go on paying for it."""

ROWS_SEEN: Final = 4
"""Batches of which the number of rows is kept."""

WITHOUT_ROWS: Final = "it is called without a tensor that has rows"


class Patches:
    """The changes of one process."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.standing = AccumulationStanding(self.leave, is_quiet=is_quiet)
        self.audit = Audit()
        self._to_check: dict[torch.nn.Module, _Kept] = {}
        self._originals: list[tuple[Any, str, Any, Any]] = []
        self._steps = 0
        self._hook: Any = None

    def enter(self) -> None:
        """Raises ValueError for a schedule that cannot be read."""
        PROGRESS.steps_now()
        self._replace(torch.nn.Module, "__call__", self._calls)
        self._replace(torch.autograd, "backward", self._audits)
        self._replace(torch.autograd, "grad", self._audits)
        self._replace(torch, "compile", self._refuses)
        self.count_steps()

    def count_steps(self) -> None:
        self._hook = register_optimizer_step_post_hook(self._note_step)

    def leave(self) -> None:
        """What others have put on top of our changes stays; ours then pass everything on.

        The audit of the current step goes on: a check may have been part of it.
        """
        self._restore("__call__", "compile")
        self._to_check.clear()

    def _restore(self, *names: str) -> None:
        for holder, name, ours, own in self._originals:
            if name not in names or vars(holder).get(name) is not ours:
                continue
            if own is None:
                delattr(holder, name)
            else:
                setattr(holder, name, own)

    def _replace(self, holder: Any, name: str, around: Callable[[Any], Any]) -> None:
        ours = around(getattr(holder, name))
        own = vars(holder).get(name)  # None: a class that inherits it
        setattr(holder, name, ours)
        self._originals.append((holder, name, ours, own))

    # What stands in each place.

    def _calls(self, original: Any) -> Any:
        depth, whole_call = DEPTH, self._outermost

        @functools.wraps(original)
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if depth.inside or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            return whole_call(original, module, args, kwargs)

        return __call__

    def _audits(self, original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def audit_losses(*args: Any, **kwargs: Any) -> Any:
            if not DEPTH.inside:
                given = signature.bind(*args, **kwargs).arguments
                self._check_losses(next(iter(given.values())), bool(given.get("create_graph")))
            return original(*args, **kwargs)

        return audit_losses

    def _refuses(self, original: Any) -> Any:
        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self.standing.refuse("torch.compile fixes the batch it was compiled for")
            return original(*args, **kwargs)

        return compile_

    def _note_step(self, optimizer: Any, *_: Any) -> None:
        if self.standing.refused is not None:
            self._restore("backward", "grad")
        self._check_kept()
        self.standing.optimizer_stepped(optimizer)
        self._steps += 1
        if self._steps == SEARCH_STEPS and self.standing.refused is None:
            self._end_search()

    def _end_search(self) -> None:
        """Ends the search: from now on only calls of the classes that were found come by here."""
        self._restore("__call__")
        for kind in {type(module) for module in self.standing.good}:
            self._replace(kind, "__call__", self._calls)

    def _check_kept(self) -> None:
        """The modules that were seen in this step for the first time, on the rows kept of their batches."""
        waiting, self._to_check = self._to_check, {}
        for module, kept in waiting.items():
            if self.standing.refused is not None:
                return
            with kept.autocast():
                self._check(kept.original, module, kept.call)

    # A forward pass.

    def _outermost(
        self, original: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        standing = self.standing
        if PROGRESS.explicit or standing.by_framework:  # batches come split already
            self._restore("__call__", "compile", "backward", "grad")
            return original(module, *args, **kwargs)
        if isinstance(module, DistributedDataParallel) or standing.refused is not None:
            return original(module, *args, **kwargs)  # inside DDP is the module we are looking for
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return original(module, *args, **kwargs)
        call = self._call(original, module, args, kwargs)
        steps = self.standing.steps_now() if call is not None and call.rows > 1 else 1
        PROGRESS.last_steps = steps
        began = self.audit.begin()
        output, ours = None, False
        if call is not None and steps > 1:
            try:
                output, ours = split_forward(original, module, call, steps), True
            except Uncut as error:
                self._refuse(module, str(error))  # nothing was lost: the whole batch follows
        if not ours:
            with inside():
                output = original(module, *args, **kwargs)
        self.audit.end(began, type(module).__name__, output, ours=ours)
        return output

    def _call(
        self, original: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """The call as something that can be cut, if the module is known to stand it. Of a module that was
        checked, or will be, only where it is to be cut: looking costs some of every step."""
        is_known = module in self.standing.good or module in self._to_check
        if is_known and self.standing.steps_now() == 1 and len(PROGRESS.first_rows) >= ROWS_SEEN:
            return None
        try:
            call = Call(args, kwargs)
        except Uncut as error:
            if str(error) != WITHOUT_ROWS:
                self._refuse(module, str(error))
            return None
        if len(PROGRESS.first_rows) < ROWS_SEEN:
            PROGRESS.first_rows.append(call.rows)
        if module in self.standing.good:
            reason = _mode_objection(module)
            if reason is not None:
                self._refuse(module, reason)
            return call if reason is None else None
        if call.rows < 2:
            self.standing.postponed = True
            return None
        few = call.pick(selfcheck.rows_to_check(call.rows))
        if self.standing.steps_now() == 1:
            self._to_check[module] = _Kept(original, few)
            return None
        return call if self._check(original, module, few) else None

    def _check(self, original: Any, module: torch.nn.Module, few: Call) -> bool:
        began = self.audit.begin()
        reason = selfcheck.objection(original, module, few)
        self.audit.end(began, type(module).__name__, None, ours=True)
        if reason is not None:
            self._refuse(module, reason)
            return False
        self.standing.good.add(module)
        return True

    def _refuse(self, module: torch.nn.Module, reason: str) -> None:
        self.standing.refuse(f"{type(module).__name__}: {reason}")

    def _check_losses(self, tensors: Any, again: bool) -> None:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        losses = [loss for loss in losses if isinstance(loss, torch.Tensor)]
        found = self.audit.twice() if again else self.audit.side_channel(losses)
        if found is None:
            return
        reason, is_wrong = found
        if is_wrong:
            raise exactness.refuse(f"{reason}. Submit this job with --accumulate never")
        self.standing.refuse(reason)


class _Kept:
    """A few rows of a call and the autocast in force, for a check after the step."""

    def __init__(self, original: Any, call: Call) -> None:
        self.original = original
        self.call = call
        kinds = {leaf.device.type for leaf in call.leaves if isinstance(leaf, torch.Tensor)}
        self._autocast = {
            kind: torch.get_autocast_dtype(kind) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)
        }

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield


def _mode_objection(module: torch.nn.Module) -> str | None:
    """A module that was fine may have been put into training mode since."""
    try:
        exactness.GUARD.check_modules(module)
    except exactness.Refused as error:
        return str(error)
    return None

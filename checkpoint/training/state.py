"""What a training state consists of, gathered from the script's objects and put back into them.

Rule: what all ranks have alike (model, optimizers, schedulers, scaler, stateful extras) is saved once, by
rank 0; what is a rank's own (random state, position, plain extras) is saved by each. Two runs are compared
bit for bit by one hash over (name, dtype, shape, bytes) in the order of names, of the module inside DDP and
torch.compile wrappers, so that it does not depend on device, world size or memory layout.

Rule: the order in which DDP sums gradients is part of the state. After its first backward pass DDP regroups
the parameters by the order in which their gradients came. With three ranks or more the grouping decides in
which order the ranks' contributions to an element are added, and so how they round. A resumed process would
do its first step with the groups of a new DDP: instead it replays the recorded order with a backward pass
over zeros, before any state is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.training import rng

Extra = MutableMapping[str, Any]

SHARDED: Final = {"ZeroRedundancyOptimizer", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}


def to_list(value: Any) -> list[Any]:
    """None, one object, or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class SavedState(Protocol):
    """What a rank saves: `TrainingState` is the first of its kind."""

    @property
    def on_cuda(self) -> bool: ...

    @property
    def cuda_device(self) -> Any: ...

    @property
    def ranks_are_alike(self) -> bool: ...

    def shared_state(self) -> dict[str, Any]: ...

    def parameters(self) -> dict[str, Any]: ...

    def first_step_done(self) -> None: ...


class TrainingState:
    """The training state in the script's objects. Reads and writes them; keeps no copy."""

    def __init__(
        self, model: Any, optimizer: Any, lr_scheduler: Any, scaler: Any, extra: Extra | None
    ) -> None:
        self._wrapped: list[torch.nn.Module] = to_list(model)
        self._models = [unwrap_model(m) for m in self._wrapped]
        self.optimizers = to_list(optimizer)
        self._schedulers = to_list(lr_scheduler)
        self._scaler = scaler
        self._extra: Extra = {} if extra is None else extra
        self._orders: list[GradientOrder] = []
        self._refuse_sharded()

    def _refuse_sharded(self) -> None:
        """What differs from rank to rank would be saved from rank 0 only: say so at the start."""
        kinds = {type(module).__name__ for model in self._wrapped for module in model.modules()}
        kinds.update(type(optimizer).__name__ for optimizer in self.optimizers)
        sharded = sorted(kinds & SHARDED)
        if any(hasattr(p, "device_mesh") for model in self._models for p in model.parameters()):
            sharded.append("DTensor")
        if sharded:
            raise CheckpointError(
                f"{', '.join(sharded)}: each rank holds another part of the state, which cannot be saved: "
                "use DistributedDataParallel and a plain optimizer"
            )

    @property
    def models(self) -> list[torch.nn.Module]:
        return self._wrapped

    @property
    def cuda_device(self) -> torch.device | None:
        """The CUDA device of the first parameter that is on one."""
        return next((p.device for model in self._models for p in model.parameters() if p.is_cuda), None)

    @property
    def on_cuda(self) -> bool:
        return any(p.is_cuda for model in self._models for p in model.parameters())

    @property
    def ranks_are_alike(self) -> bool:
        """DDP keeps parameters equal on all ranks; without it each rank's must be compared."""
        return all(isinstance(model, DistributedDataParallel) for model in self._wrapped)

    def record_gradient_order(self, world_size: int) -> None:
        """Call before the first step of the job; `first_step_done` after it."""
        self._orders = gradient_orders(self._wrapped, world_size)
        for order in self._orders:
            order.record()

    def first_step_done(self) -> None:
        for order in self._orders:
            order.end_recording()

    def replay_gradient_order(self, shared: dict[str, Any], world_size: int) -> list[str]:
        """Call before `load`, on all ranks (it is a collective); returns what differs."""
        self._orders = gradient_orders(self._wrapped, world_size)
        if len(self._orders) != len(shared["gradient_order"]):
            return ["other parts of the model are in DistributedDataParallel"]
        problems = [o.replay(names) for o, names in zip(self._orders, shared["gradient_order"])]
        return [problem for problem in problems if problem]

    def parameters(self) -> dict[str, torch.Tensor]:
        prefix = len(self._models) > 1
        return {
            f"{i}.{name}" if prefix else name: parameter
            for i, model in enumerate(self._models)
            for name, parameter in model.named_parameters()
        }

    def shared_state(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in self._models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
            "gradient_order": [order.names for order in self._orders],
            "extra": {key: v.state_dict() for key, v in self._extra.items() if _is_stateful(v)},
        }

    def own(self, rank: int) -> dict[str, Any]:
        return {
            "rng": rng.capture(),
            "generators": rng.Sources(self._extra_holder()).capture(),
            "extra": {
                k: v for k, v in self._extra.items() if not _is_stateful(v) and not rng.is_generator(v)
            },
            "buffers": [] if rank == 0 else [_own_buffers(model) for model in self._wrapped],
            "unsaved_buffers": [
                {} if rank > 0 and _broadcasts(model) else _unsaved_buffers(unwrap_model(model))
                for model in self._wrapped
            ],
        }

    def load(self, shared: dict[str, Any], own: dict[str, Any], own_is_mine: bool) -> list[str]:
        """Put everything back (the global random state excepted); returns what differs."""
        self._check_counts(shared)
        notes: list[str] = []
        for model, state in zip(self._models, shared["models"]):
            notes.extend(_conversion_notes(model, state))
            _load_into(model, state)
        for optimizer, state in zip(self.optimizers, shared["optimizers"]):
            _load_into(optimizer, _copy_tensors(state))
        for scheduler, state in zip(self._schedulers, shared["schedulers"]):
            _load_into(scheduler, state)
        if self._scaler is not None and shared["scaler"]:
            self._scaler.load_state_dict(shared["scaler"])
        for key, state in shared["extra"].items():
            if key not in self._extra:
                notes.append(f"extra {key!r} is in the checkpoint but not in the script")
            else:
                self._extra[key].load_state_dict(_copy_tensors(state))
        for model, values in zip(self._models, own.get("unsaved_buffers", [])):
            _put_back_unsaved(model, values)
        if own_is_mine:
            for model, buffers in zip(self._models, own["buffers"]):
                model.load_state_dict(buffers, strict=False)
            problem = rng.Sources(self._extra_holder()).restore(own["generators"])
            if problem:
                notes.append(problem)
        self._extra.update({key: _copy_tensors(value) for key, value in own["extra"].items()})
        return notes

    def _extra_holder(self) -> object:
        return _Holder(self._extra)

    def _check_counts(self, shared: dict[str, Any]) -> None:
        for what, mine in (
            ("models", self._models),
            ("optimizers", self.optimizers),
            ("schedulers", self._schedulers),
        ):
            if len(shared[what]) != len(mine):
                raise CheckpointError(
                    f"the checkpoint holds {len(shared[what])} {what}, the script gives {len(mine)}"
                )


class _Holder:
    """Lets `rng.Sources` look into a mapping as it looks into an object."""

    def __init__(self, mapping: Extra) -> None:
        self.__dict__.update({str(key): value for key, value in mapping.items()})


def parameters_sha256(model: torch.nn.Module | Iterable[torch.nn.Module]) -> str:
    """A hash for all parameters: equal if and only if every parameter is equal, bit for bit.

    The sha256 over (name, dtype, shape, bytes) in the order of names, inside DDP and torch.compile wrappers.
    """
    return tensors_sha256(TrainingState(model, None, None, None, None).parameters().items())


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _places_of_unsaved(model: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The buffers that `state_dict` leaves out (`persistent=False`): path, where each is kept, and its name
    there."""
    for path, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            yield f"{path}.{name}".lstrip("."), module._buffers, name


def _unsaved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Those buffers by their paths. All of them: torch's own kernels write some without a trace."""
    return {path: buffers[name] for path, buffers, name in _places_of_unsaved(model)}


def _put_back_unsaved(model: torch.nn.Module, values: dict[str, torch.Tensor | None]) -> None:
    """Those of the same form keep their memory: somebody else may hold them."""
    for path, buffers, name in _places_of_unsaved(model):
        if path not in values:
            continue
        now, before = buffers[name], values[path]
        if now is None or before is None or (now.shape, now.dtype) != (before.shape, before.dtype):
            buffers[name] = _copy_tensors(before)
        else:
            with torch.no_grad():
                now.copy_(before)


def _broadcasts(model: torch.nn.Module) -> bool:
    """DDP sends the buffers of rank 0 to all ranks before each forward pass."""
    return isinstance(model, DistributedDataParallel) and model.broadcast_buffers


def _own_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Persistent buffers, unless DDP sends rank 0's to everyone before each forward pass."""
    if _broadcasts(model):
        return {}
    inner = unwrap_model(model)
    names = {name for name, _ in inner.named_buffers()}
    return {name: value for name, value in inner.state_dict().items() if name in names}


def _load_into(target: Any, state: Any) -> None:
    try:
        target.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint does not fit this {type(target).__name__}: {error}; was the script changed?"
        ) from error


def _conversion_notes(model: torch.nn.Module, state: dict[str, Any]) -> list[str]:
    """The notes on parameters that load_state_dict converts silently: a model that became bfloat16 is not the
    one that was saved."""
    mine = model.state_dict()
    changed = sorted(
        {
            f"{value.dtype} then, {mine[name].dtype} now"
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and name in mine and value.dtype != mine[name].dtype
        }
    )
    return [f"parameters were converted: {', '.join(changed)}"] if changed else []


def _copy_tensors(tree: Any) -> Any:
    """Tensors of a loaded file are mapped from it; what keeps them (an optimizer) needs memory of its own."""
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return type(tree)((key, _copy_tensors(value)) for key, value in tree.items())
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copy_tensors(value) for value in tree)
    return tree


ORDER_MATTERS_FROM: Final = 3
"""Ranks. Two numbers have the same sum in either order."""


def gradient_orders(models: Iterable[torch.nn.Module], world_size: int) -> list[GradientOrder]:
    """The gradient orders, one for each DDP in the models, wherever it is, that regroups and where the order
    matters."""
    if world_size < ORDER_MATTERS_FROM:
        return []
    found = [m for model in models for m in model.modules() if isinstance(m, DistributedDataParallel)]
    return [GradientOrder(ddp) for ddp in found if not ddp.find_unused_parameters]


def order_matters(ddp: DistributedDataParallel, world_size: int) -> bool:
    """Whether it matters in which order a DDP adds gradients up: what hooks on its communication keep, they
    keep for each group."""
    if ddp.find_unused_parameters:
        return False
    return world_size >= ORDER_MATTERS_FROM or bool(vars(ddp).get("_comm_hooks"))


def order_of(ddp: DistributedDataParallel) -> list[str]:
    """The order in which a DDP has grouped its parameters, by name; empty before its second forward pass."""
    logged: Any = ddp._get_ddp_logging_data
    told = logged().get("rebuilt_per_bucket_param_indices", "")
    names = [name for name, parameter in ddp.named_parameters() if parameter.requires_grad]
    return [names[int(number)] for bucket in told.split(",") for number in bucket.split()]


class GradientOrder:
    """The order in which one DDP's gradients come, by parameter name."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.names: list[str] = []
        self._hooks: list[Any] = []
        self._ddp = ddp

    def record(self) -> None:
        """Note the order of the next backward pass: a few hundred nanoseconds per parameter, once."""
        for name, parameter in self._parameters().items():

            def came(_: torch.Tensor, name: str = name) -> None:
                if name not in self.names:
                    self.names.append(name)

            hook = parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def end_recording(self) -> None:
        """The first step is over."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def replay(self, names: list[str]) -> str | None:
        """Make DDP regroup as it did; returns why it will not add up in the old order, if so."""
        ddp: Any = self._ddp
        if getattr(ddp, "static_graph", False):
            return "DDP(static_graph=True) groups its gradients anew"
        parameters = self._parameters()
        if set(names) != set(parameters) or not hasattr(ddp.reducer, "prepare_for_backward"):
            return "the order in which DDP adds gradients could not be put back"
        self.names = list(names)
        before = {name: parameter.grad for name, parameter in parameters.items()}
        total = torch.zeros((), device=next(iter(parameters.values())).device)
        for name in reversed(names):  # what was added last comes first in the backward pass
            total = total + parameters[name].sum().float().to(total.device) * 0
        ddp.reducer.prepare_for_forward()
        ddp.reducer.prepare_for_backward([])
        total.backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            parameter.grad = before[name]
        return None

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self._ddp.named_parameters() if p.requires_grad}


def tensors_sha256(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda item: item[0]):
        head = f"{name}\0{str(tensor.dtype)[len('torch.') :]}\0{tuple(tensor.shape)}\0"
        digest.update(head.encode())
        flat = tensor.detach().cpu().contiguous()
        digest.update(bytes_of(flat))
    return digest.hexdigest()


def bytes_of(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_ubyte]:
    """The memory of a contiguous CPU tensor as a buffer, not copied (and without numpy)."""
    size_bytes = tensor.numel() * tensor.element_size()
    return (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr() if size_bytes else 0)


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside DDP (`.module`) and torch.compile (`._orig_mod`)."""
    while True:
        inner = model.__dict__.get("_modules", {})
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = inner["module"]
        elif "_orig_mod" in inner and len(inner) == 1:
            model = inner["_orig_mod"]
        else:
            return model

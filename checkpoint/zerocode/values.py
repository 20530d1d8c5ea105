"""What a script keeps in its variables, as plain values.

Rule: models, optimizers, schedulers and scalers are found on the way, and are saved as such; all else is
taken by value, unless a new process makes the same again.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
import zlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.contents import DATA, PLAIN, contents, is_display
from cotenant.checkpoint.zerocode.pattern import LoopPlan
from cotenant.checkpoint.zerocode.refusals import NotPlain

MAPPINGS: Final = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)

MARK: Final = "cotenant"
"""A key of dicts that stand for something else."""
KEPT: Final = {MARK: "kept"}
"""Stands for what the script makes again by itself."""


READ_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of an array, to see whether it was changed; a larger one is where the loop writes to its name."""


def is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class CarriedValues:
    """The objects of one script. Models, optimizers, schedulers and scalers are found on the way: they are
    saved as such."""

    def __init__(self, plan: LoopPlan) -> None:
        self.stored, self._keeps_gradients = plan.stored, plan.keeps_gradients
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.scalers: list[Any] = []
        self._trained: set[int] = set()
        self._busy: set[int] = set()
        self._constant: dict[str, Any] = {}
        """By path: what the script made before its loop, and makes again."""
        self._made: dict[int, Any] = {}
        """All of these, by identity."""
        self._versions: dict[int, int] = {}
        """Of tensors and arrays among them: what tells whether they were changed."""
        self._looking = False
        self.is_checking = False
        """What is taken will not be kept: arrays are not read."""
        self._form_before: list[Any] = []

    def look(self, path: str, value: Any) -> Any:
        """Looks at a value as `taken` does, before the loop: what is found is known from now on."""
        self._looking = True
        try:
            return self.take(path, value)
        finally:
            self._looking = False

    def know_models(self) -> None:
        """After a first look at all: parameters and buffers are their modules'."""
        tensors = (t for m in self.models for t in (*m.parameters(), *m.buffers()))
        self._trained = {id(tensor) for tensor in tensors}

    def keep_roots(self) -> None:
        """Leave out models that are part of another one. A module in DDP counts as DDP's."""
        parts = {id(part) for model in self.models for part in model.modules() if part is not model}
        self.models = [model for model in self.models if id(model) not in parts]
        for model in self.models:
            inner = (part for part in model.modules() if part is not model)
            if any(isinstance(part, DistributedDataParallel) for part in inner):
                raise NotPlain("DistributedDataParallel inside another module")
        self._form_before = self._form()

    def modes(self) -> dict[str, list[Any]]:
        """The modes that no state_dict has: which modules and parameters train, and gradients if they last.

        Raises:
            NotPlain: the loop has given a model or an optimizer another form than a new process gives it.
        """
        form = self._form()
        if form != self._form_before:
            raise NotPlain("a model or an optimizer was given another form in the loop")
        parameters = [each for model in self.models for each in model.parameters()]
        gradients = [each.grad for each in parameters] if self._keeps_gradients else []
        return {
            "training": [part.training for model in self.models for part in model.modules()],
            "requires_grad": [each.requires_grad for each in parameters],
            "gradients": [None if each is None else each.detach() for each in gradients],
        }

    def set_modes(self, modes: dict[str, list[Any]]) -> None:
        parts = (part for model in self.models for part in model.modules())
        for part, training in zip(parts, modes["training"]):
            part.training = training
        parameters = (each for model in self.models for each in model.parameters())
        for each, requires_grad in zip(parameters, modes["requires_grad"]):
            each.requires_grad_(requires_grad)
        parameters = (each for model in self.models for each in model.parameters())
        for each, gradient in zip(parameters, modes["gradients"]):
            each.grad = None if gradient is None else gradient.clone().to(each.device)

    def _form(self) -> list[Any]:
        """The form of all that is saved as such."""
        shapes = [(name, tuple(t.shape)) for model in self.models for name, t in _tensors(model)]
        return [shapes, [[len(group["params"]) for group in each.param_groups] for each in self.optimizers]]

    def saves_itself(self, value: Any) -> bool:
        """Whether a session saves it by its `state_dict`, beside models and what trains them."""
        special = (type, torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
        return is_stateful(value) and not _is_object(value) and not isinstance(value, special)

    def take(self, path: str, value: Any) -> Any:
        """A plain value that stands for this one. Raises NotPlain."""
        if type(value) in PLAIN:
            return value
        if id(value) in self._busy:
            return KEPT  # It holds itself.
        self._busy.add(id(value))
        try:
            return self._take(path, value)
        finally:
            self._busy.discard(id(value))

    def _take(self, path: str, value: Any) -> Any:
        if self._looking:
            self._constant[path] = self._made[id(value)] = value
        elif id(value) in self._made and self._was_another(path, value):
            raise NotPlain(f"{path} is another {type(value).__name__} than before the loop")
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value)
        if _is_numpy(value):
            return self._array(path, value)
        if type(value) in (list, tuple, set, collections.deque):
            return self._sequence(path, value)
        if type(value) in MAPPINGS:
            return self._mapping(path, value)
        if rng.is_generator(value):
            return {MARK: "generator", "state": list(rng.generator_state(value))}
        if isinstance(value, torch.nn.Module):
            self._module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._register(path, value, self.optimizers)
            return KEPT
        elif isinstance(value, LRScheduler):
            self._register(path, value, self.schedulers)
        elif isinstance(value, torch.amp.GradScaler):
            self._register(path, value, self.scalers)
            return KEPT
        elif self.saves_itself(value):
            return {MARK: "state", "state": self.take(path, value.state_dict())}
        elif isinstance(value, enum.Enum):
            return {MARK: "member", "of": type(value).__name__, "name": value.name}
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            return {MARK: "named", **_class_named(value), "items": [*self._sequence(path, [*value])]}
        return self._object(path, value)

    def _was_another(self, path: str, value: Any) -> bool:
        """Whether there was something else in this place: what is put back there would be put into that."""
        is_value = isinstance(value, (tuple, enum.Enum)) or is_display(value)
        return not is_value and self._constant.get(path, value) is not value

    def _object(self, path: str, value: Any) -> Any:
        held = list(contents(path, value, self.stored))
        found = {content.key: self.take(f"{path}.{content.key}", content.value) for content in held}
        found = {key: tree for key, tree in found.items() if tree is not KEPT}
        if id(value) not in self._made and _is_object(value):
            missing = [each.key for each in held if each.key not in found and each.key != "class"]
            if missing:
                raise NotPlain(f"{path}.{missing[0]} is not kept, for its {type(value).__name__} is new")
            return {MARK: "object", **_class_named(value), "contents": found}
        if found:
            return {MARK: "object", **_class_named(value), "contents": found}
        if not isinstance(value, torch.nn.Module):
            self._refuse_changed(path, value)
        return KEPT

    def _refuse_changed(self, path: str, value: Any) -> None:
        """A constant must be the one that a new process makes. What an epoch makes anew may depend on what
        the training has come to: only of data sets and their loaders would nobody notice."""
        if path in self._constant:
            is_new = self._constant[path] is not value and self._constant[path] != value
        else:
            is_new = isinstance(value, DATA) and id(value) not in self._made
        if is_new and not is_display(value):
            raise NotPlain(f"{path} is another {type(value).__name__} than before the loop")

    def _tensor(self, path: str, value: torch.Tensor) -> Any:
        if id(value) in self._trained:
            return KEPT
        if value.requires_grad and value.is_leaf:
            raise NotPlain(f"{path} is a trainable tensor of no module")
        if self._is_part_of_model(value):
            if self._constant.get(path) is value:
                return KEPT  # A new process makes it a part of the model as well.
            raise NotPlain(f"{path} is no copy: it has the memory of a model, and changes with it")
        return KEPT if self._is_unchanged(path, value, value._version) else value.detach()

    def _is_part_of_model(self, value: torch.Tensor) -> bool:
        return any(_at(each) == _at(value) != 0 for model in self.models for _, each in _tensors(model))

    def _is_unchanged(self, path: str, value: Any, version: int) -> bool:
        """Whether the same object is in the same place, and nobody has written to it."""
        if self._looking:
            self._versions[id(value)] = version
        return self._constant.get(path) is value and self._versions.get(id(value)) == version

    def _array(self, path: str, value: Any) -> Any:
        if value.dtype.hasobject:
            raise NotPlain(f"{path} is an array of objects")
        if self.is_checking:
            return KEPT
        is_scalar, shape = not hasattr(value, "__setitem__"), list(value.shape)
        name = path.rpartition(".")[2]
        if value.nbytes > READ_MAX_BYTES and name not in self.stored and self._is_unchanged(path, value, 0):
            return KEPT
        content = value.tobytes()
        if not is_scalar and self._is_unchanged(path, value, zlib.crc32(content)):
            return KEPT
        return {MARK: "array", "type": value.dtype.str, "shape": shape, "bytes": content, "one": is_scalar}

    def _sequence(self, path: str, value: Any) -> Any:
        is_plain = all(type(each) in PLAIN for each in value)
        items = list(value) if is_plain else [self.take(f"{path}[{i}]", v) for i, v in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) is tuple:
            return KEPT if items and all(item is KEPT for item in items) else tuple(items)
        if type(value) is set:
            if not is_plain or list(set(items)) != items:
                raise NotPlain(f"{path} is a set, whose order is not kept")
            return {MARK: "set", "items": items}
        return {MARK: "deque", "items": items, "most": value.maxlen}

    def _mapping(self, path: str, value: Any) -> Any:
        if not all(_is_plain_key(key) for key in value):
            raise NotPlain(f"{path} has keys that are no plain values")
        found = {key: self.take(f"{path}[{key!r}]", each) for key, each in value.items()}
        if type(value) is dict:
            return found
        about = self.take(f"{path} attributes", dict(vars(value))) if hasattr(value, "__dict__") else {}
        return {MARK: type(value).__name__, "items": found, "about": about}

    def _module(self, path: str, value: torch.nn.Module) -> None:
        is_unknown = not is_scripts_own(type(value).__module__) and type(value).__module__[:6] != "torch."
        if value.state_dict():
            self._register(path, value, self.models)
        elif is_unknown:
            raise NotPlain(f"{path} is a {type(value).__name__}, whose state only the script knows")

    def _register(self, path: str, value: Any, known: list[Any]) -> None:
        parts = (part for each in known if isinstance(each, torch.nn.Module) for part in each.modules())
        if any(value is each for each in (*parts, *known)):
            return
        if not self._looking:
            raise NotPlain(f"{path} is a {type(value).__name__} that was made in the loop")
        known.append(value)


def copy_tree(tree: Any) -> Any:
    """Copies the tree, with tensors of its own, for what goes on to change."""
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if type(tree) is dict:
        return {key: copy_tree(each) for key, each in tree.items()}
    return type(tree)(map(copy_tree, tree)) if type(tree) in (list, tuple) else tree


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _at(tensor: torch.Tensor) -> int:
    """The address where the tensor's memory begins; 0: it has none that could be shared."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _class_named(value: Any) -> dict[str, str]:
    return {"module": type(value).__module__, "type": type(value).__qualname__}


def _is_object(value: Any) -> bool:
    """Whether the value is one that is made of its attributes."""
    special = (type, torch.nn.Module, Dataset, Sampler, DataLoader, LRScheduler, types.FunctionType)
    is_own = is_scripts_own(type(value).__module__) and not is_display(value)
    return is_own and not isinstance(value, special)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _is_plain_key(key: Any) -> bool:
    return type(key) in PLAIN or (type(key) is tuple and all(map(_is_plain_key, key)))

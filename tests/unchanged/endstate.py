"""What a process holds when its script ends, as digests by path.

Rule: it is taken in the same way beside the hook and without it, and asks nothing of the script: no method,
no property, no `len` of an object of its classes. It follows dictionaries, lists, attributes, closures and
class attributes from the script's own modules, and reads tensors, arrays and generators of random numbers.
What it cannot look into has its type alone. This file is loaded by its path in the process that it looks at,
so it imports nothing but the standard library.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import random
import signal
import sys
import types
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

OBJECTS_MAX = 100_000
BYTES_MAX = 1 << 28
SHOWN = 4
"""Numbers of a tensor that are shown beside its digest."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis))
FAULTS = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")
OURS = "cotenant"
"""A function or an object of ours in the script's reach shows as what it is."""


class Picture:
    """Digests by path; each object under the path by which it was met first."""

    def __init__(self, folder: str) -> None:
        """`folder`: modules from below it are the script's own."""
        self.lines: dict[str, str] = {}
        self._folder = os.path.join(folder, "")
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []
        self._waiting: deque[tuple[str, Any]] = deque()
        self._bytes = 0

    def add(self, path: str, value: Any) -> None:
        """Adds everything that can be reached from `value`."""
        self._waiting.append((path, value))
        while self._waiting:
            self._look(*self._waiting.popleft())

    def _look(self, path: str, value: Any) -> None:
        kind = type(value)
        if kind in PLAIN:
            self.lines[path] = _plain(value)
            return
        known = self._paths.get(id(value))
        if known is not None:
            self.lines[path] = "is " + known
            return
        if len(self._paths) >= OBJECTS_MAX or self._bytes >= BYTES_MAX:
            self.lines["(rest)"] = "not looked at"
            return
        self._paths[id(value)] = path
        self._kept.append(value)
        try:
            said = self._leaf(value, kind)
        except Exception as error:  # noqa: BLE001  # a tensor without memory, say
            said = f"{_name(kind)} cannot be read: {type(error).__name__}"
        self.lines[path] = _name(kind) if said is None else said
        if said is None or issubclass(kind, _kinds("torch", "Tensor")):
            self._waiting.extend((path + step, child) for step, child in self._parts(path, value, kind))

    # --- Values that are read ----------------------------------------------------------------------

    def _leaf(self, value: Any, kind: type) -> str | None:
        if issubclass(kind, _kinds("torch", "Tensor")):
            return self._tensor(value)
        if issubclass(kind, _kinds("numpy", "ndarray")):
            return self._array(value)
        if issubclass(kind, _kinds("torch", "Generator")):
            return f"torch.Generator {_digest(bytes(value.get_state().tolist()))}"
        if issubclass(kind, _kinds("numpy.random", "Generator")):
            return f"numpy.Generator {_digest(repr(value.bit_generator.state).encode())}"
        if issubclass(kind, _kinds("numpy.random", "RandomState")):
            return f"numpy.RandomState {_digest(repr(value.get_state()).encode())}"
        if kind is random.Random:
            return f"Random {_digest(repr(value.getstate()).encode())}"
        if kind is types.ModuleType:
            return None if self._is_own(value) else f"module {value.__name__}"
        if issubclass(kind, type):
            return None if self._is_of_script(value) else f"class {_name(value)}"
        if kind is types.FunctionType:
            return f"function {value.__module__}.{value.__qualname__}" if self._is_library(value) else None
        if kind is types.BuiltinFunctionType:
            return f"function {value.__name__}"
        if kind.__module__.partition(".")[0] == OURS:
            return f"{_name(kind)}, which is ours"
        return None

    def _tensor(self, value: Any) -> str:
        torch = sys.modules["torch"]
        with torch._C.DisableTorchFunctionSubclass():
            head = f"{_name(type(value))} {str(value.dtype)[6:]}{list(value.shape)}"
            flags = f" version {value._version}" + " grad" * value.requires_grad
            parts = [value.detach()]
            if value.layout != torch.strided:
                parts = [value.detach()._indices(), value.detach()._values()]
            data = b"".join(_bytes(each) for each in parts)
            self._bytes += len(data)
            shown = [f"{each:.9g}" for each in parts[-1].reshape(-1)[:SHOWN].tolist()]
            return f"{head}{flags} {_digest(data)} ({', '.join(shown)}...)"

    def _array(self, value: Any) -> str:
        head = f"array {value.dtype}{list(value.shape)}"
        if value.dtype.hasobject:
            return head
        self._bytes += value.nbytes
        shown = ", ".join(map(str, value.reshape(-1)[:SHOWN].tolist()))
        return f"{head} {_digest(value.tobytes())} ({shown}...)"

    # --- Ways that lead on -------------------------------------------------------------------------

    def _parts(self, path: str, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
        if issubclass(kind, _kinds("torch", "Tensor")):
            if value.is_leaf and value.requires_grad:
                yield ".grad", value.grad
        elif issubclass(kind, dict):
            for number, (key, child) in enumerate(dict.items(value)):
                yield f"[{self._key(path, key, child, number)}]", child
        elif issubclass(kind, (list, tuple, deque)):
            base: Any = next(each for each in (list, tuple, deque) if issubclass(kind, each))
            for number, child in enumerate(base.__iter__(value)):
                yield f"[{number}]", child
        elif issubclass(kind, (set, frozenset)):
            base = set if issubclass(kind, set) else frozenset
            members = list(base.__iter__(value))
            yield "{}", ", ".join(sorted(_plain(each) for each in members if type(each) in PLAIN))
            yield "{}.size", len(members)
        elif issubclass(kind, partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif kind is types.MethodType:
            yield from ((".__self__", value.__self__), (".__func__", value.__func__))
        elif kind is types.FunctionType:
            yield from self._parts_of_function(value)
        elif kind is types.GeneratorType:
            yield ".line", 0 if value.gi_frame is None else value.gi_frame.f_lineno
        elif issubclass(kind, type):
            yield from ((f".{name}", each) for name, each in vars(value).items() if name[:2] != "__")
        if kind is types.ModuleType or self._has_attributes(kind):
            found = _attributes(value)
            hidden = ("__builtins__", "__loader__", "__spec__", "__cached__")
            yield from ((f".{name}", child) for name, child in found if name not in hidden)

    def _key(self, path: str, key: Any, child: Any, number: int) -> str:
        """Torch numbers all hooks of a process in turn: what a hook is tells more than its number."""
        if path.endswith("_hooks"):
            return f"{getattr(child, '__qualname__', number)}"
        return _plain(key) if type(key) in PLAIN else f"key {number}"

    def _parts_of_function(self, value: Any) -> Iterator[tuple[str, Any]]:
        for number, cell in enumerate(value.__closure__ or ()):
            try:
                yield f"<{value.__code__.co_freevars[number]}>", cell.cell_contents
            except ValueError:  # It is empty.
                continue
        yield from ((".defaults", value.__defaults__), (".keywords", value.__kwdefaults__))
        yield from ((f".{name}", child) for name, child in vars(value).items())

    def _has_attributes(self, kind: type) -> bool:
        """Objects of the script's classes and of torch's; of others nobody but they knows what is in them."""
        root = kind.__module__.partition(".")[0]
        return root in ("torch", "accelerate", "types", "argparse") or self._is_of_script(kind)

    def _is_of_script(self, kind: type) -> bool:
        return any(self._is_own(sys.modules.get(each.__module__)) for each in kind.__mro__)

    def _is_library(self, function: types.FunctionType) -> bool:
        module = sys.modules.get(function.__module__ or "")
        return module is not None and not self._is_own(module)

    def _is_own(self, module: Any) -> bool:
        if module is sys.modules.get("__main__"):
            return True
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.startswith(self._folder)


def _kinds(module: str, name: str) -> Any:
    """The class if its module was imported, else no class at all."""
    return getattr(sys.modules.get(module), name, ())


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__"):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # It has never been set.
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(own) is dict:
        yield from own.items()


def _plain(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:60]}... {_digest(text.encode())}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").removeprefix("__main__.")


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:12]


def _bytes(tensor: Any) -> bytes:
    torch = sys.modules["torch"]
    whole = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return bytes(whole.view(torch.uint8).numpy().tobytes())


# --- The process ---------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """What belongs to the process as a whole, and a script may have set, or have drawn from."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found: dict[str, Any] = {
        "random": _digest(repr(random.getstate()).encode()),
        "cwd": os.getcwd(),
        "umask": _umask(),
        "signals": {number.name: _handler(number) for number in signal.valid_signals() if _is_named(number)},
        "warnings": [str(each) for each in warnings.filters],
        "logging": [logging.root.level, [type(each).__name__ for each in logging.root.handlers]],
        "gc": [gc.isenabled(), gc.get_threshold()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace() is None, sys.getprofile() is None],
        "recursion": sys.getrecursionlimit(),
    }
    if numpy is not None and hasattr(numpy, "random"):
        found["numpy.random"] = _digest(repr(numpy.random.get_state()).encode())
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch.random"] = _digest(bytes(torch.get_rng_state().tolist()))
        found["torch.dtype"] = str(torch.get_default_dtype())
        found["torch.threads"] = [torch.get_num_threads(), torch.is_grad_enabled()]
        found["torch.deterministic"] = torch.are_deterministic_algorithms_enabled()
    return found


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_named(number: Any) -> bool:
    """Not of the signals that PYTHONFAULTHANDLER takes."""
    return isinstance(number, signal.Signals) and number.name not in FAULTS


def _handler(number: int) -> str:
    found = signal.getsignal(number)
    return getattr(found, "__qualname__", None) or str(found)


def picture(kept: list[Any]) -> dict[str, str]:
    """Digests by path of the script's modules, of `kept`, and of models that neither of them leads to."""
    main = sys.modules["__main__"]
    folder = os.path.dirname(os.path.abspath(getattr(main, "__file__", None) or "nowhere/x"))
    seen = Picture(folder)
    seen.add("process", settings())
    seen.add("main", main)
    for number, each in enumerate(kept):
        seen.add(f"optimizer {number}", each)
    gc.collect()  # When it last ran is luck; what it leaves is held by somebody.
    models = [each for each in gc.get_objects() if issubclass(type(each), _kinds("torch.nn", "Module"))]
    alone = Counter(_of_alone(each, folder) for each in models if id(each) not in seen._paths)
    seen.lines.update({f"alive {said}": str(number) for said, number in alone.items()})
    return seen.lines


def _of_alone(model: Any, folder: str) -> str:
    """The order in which the collector names objects says nothing, so each is one line."""
    seen = Picture(folder)
    seen.add("", model)
    return f"{_name(type(model))} {_digest(repr(seen.lines).encode())}"

"""How many items a thing has, worked out without running code of the script's.

Rule: a `__len__` of the script's own is read and not called; what it returns must be an expression that can
be worked out. Loaders and samplers of torch are looked into, because they would call it. What installed
packages say of their own is asked.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.unseen import Unseen

MISSING: Final = object()
"""In the place of a value that is not there, or cannot be worked out."""
OPTIONS: Final = frozenset(("argparse", "types", "omegaconf", "ml_collections", "yacs"))
"""Modules of objects that hold a script's options: what is in them stays."""
ValueOf = Callable[[ast.expr, Mapping[str, Any], Mapping[str, Any], int], Any]
_SAMPLERS: Final = ("SequentialSampler", "RandomSampler")
_SHAPED: Final = (
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("numpy", "ndarray"),
    ("numpy", "memmap"),
)
"""Types that are no subclass of the script's, by module and name."""
_DEPTH_MAX: Final = 8


def attribute_there(owner: Any, name: str) -> Any:
    """An attribute of `owner` that is there; what a property would work out is not known."""
    if type(owner).__module__.partition(".")[0] in OPTIONS:
        return getattr(owner, name, MISSING)
    found = inspect.getattr_static(owner, name, MISSING)
    if not hasattr(type(found), "__get__"):
        return found
    return shape_of(owner) if name == "shape" else MISSING


def shape_of(value: Any) -> Any:
    """The shape of a tensor or an array as plain numbers; MISSING: it is none, or has none that is fixed."""
    if (type(value).__module__, type(value).__name__) not in _SHAPED:
        return MISSING
    with Unseen():
        shape = tuple(value.shape) if not getattr(value, "is_nested", False) else (None,)
    return shape if all(type(size) is int for size in shape) else MISSING


def length_of(value: Any, value_of: ValueOf, depth: int = 0) -> Any:
    """The length of a thing; MISSING: it has none, or it cannot be worked out. `value_of(expression, local,
    shared, depth)`: the value of an expression of a method with these variables."""
    method = inspect.getattr_static(type(value), "__len__", None)
    if method is None or depth > _DEPTH_MAX:
        return MISSING
    if is_scripts_own(str(getattr(method, "__module__", ""))) and isinstance(method, types.FunctionType):
        return _returned(method, value, value_of, depth)
    names = [kind.__name__ for kind in type(value).__mro__ if kind.__module__.startswith("torch.utils.data")]
    for name, rule in _RULES.items():
        if name in names:
            return rule(value, value_of, depth + 1)
    try:
        return len(value)
    except Exception:  # noqa: BLE001  # a loader over an iterable dataset; whatever it is, there is no length
        return MISSING


def _of_loader(loader: Any, value_of: ValueOf, depth: int) -> Any:
    sampler = attribute_there(loader, "batch_sampler")
    if sampler is None:
        sampler = attribute_there(loader, "sampler")
    return MISSING if sampler is MISSING else length_of(sampler, value_of, depth)


def _of_batches(sampler: Any, value_of: ValueOf, depth: int) -> Any:
    rows, size = (
        length_of(attribute_there(sampler, "sampler"), value_of, depth),
        attribute_there(sampler, "batch_size"),
    )
    if not isinstance(rows, int) or not isinstance(size, int) or not size:
        return MISSING
    return rows // size if attribute_there(sampler, "drop_last") is True else -(-rows // size)


def _of_sampler(sampler: Any, value_of: ValueOf, depth: int) -> Any:
    number = attribute_there(sampler, "_num_samples")
    return (
        number
        if isinstance(number, int)
        else length_of(attribute_there(sampler, "data_source"), value_of, depth)
    )


_RULES: Final = {
    "DataLoader": _of_loader,
    "BatchSampler": _of_batches,
    **dict.fromkeys(_SAMPLERS, _of_sampler),
}


def _returned(method: types.FunctionType, owner: Any, value_of: ValueOf, depth: int) -> Any:
    """What a method of one `return` gives back."""
    expression = _only_return(method.__code__)
    if expression is None:
        return MISSING
    found = value_of(expression, {method.__code__.co_varnames[0]: owner}, method.__globals__, depth + 1)
    return found if isinstance(found, int) else MISSING


@functools.lru_cache(maxsize=64)
def _only_return(code: types.CodeType) -> ast.expr | None:
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions = (
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == code.co_name
    )
    lines = {min([each.lineno, *(d.lineno for d in each.decorator_list)]): each for each in functions}
    if code.co_firstlineno not in lines:
        return None
    *before, last = lines[code.co_firstlineno].body
    is_plain = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in before)
    return last.value if isinstance(last, ast.Return) and is_plain else None

"""Values of a checkpoint, put back into the objects that a script has made again.

Rule: into the object that is there, since others may hold it as well.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from typing import Any

import torch

from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.contents import PLAIN, Content, contents
from cotenant.checkpoint.zerocode.refusals import NotPlain
from cotenant.checkpoint.zerocode.values import MAPPINGS, MARK


def put_back(path: str, old: Any, tree: Any, stored: frozenset[str]) -> Any:
    """Puts back what `tree` stands for: `old` itself with what it held, where that is possible.

    Raises:
        NotPlain: the script has made something else than before.
    """
    if type(tree) is dict and MARK in tree:
        return _restore_marked(path, old, tree, stored)
    if type(tree) is list and type(old) is list:
        old[:] = [put_back(f"{path}[{i}]", _at(old, i), each, stored) for i, each in enumerate(tree)]
        return old
    if type(tree) in (list, tuple):
        mine = old if isinstance(old, (list, tuple)) else ()
        return type(tree)(put_back(f"{path}[{i}]", _at(mine, i), each, stored) for i, each in enumerate(tree))
    if type(tree) is dict:
        return _fill_dict(path, old if type(old) is dict else {}, tree, stored)
    if isinstance(tree, torch.Tensor):
        return _tensor_back(old, tree)
    return tree


def _tensor_back(old: Any, tree: torch.Tensor) -> torch.Tensor:
    fits = isinstance(old, torch.Tensor) and old.shape == tree.shape and old.dtype == tree.dtype
    if fits and not old.requires_grad:
        old.copy_(tree)
        return old  # type: ignore[no-any-return]
    return tree.clone()


def _fill_dict(path: str, mine: Any, tree: Any, stored: frozenset[str]) -> Any:
    found = {key: put_back(f"{path}[{key!r}]", mine.get(key), each, stored) for key, each in tree.items()}
    mine.clear()
    mine.update(found)
    return mine


def _at(values: Any, index: int) -> Any:
    return values[index] if index < len(values) else None


def _restore_marked(path: str, old: Any, tree: dict[str, Any], stored: frozenset[str]) -> Any:
    what = tree[MARK]
    if what == "kept":
        return old
    if what == "object":
        return _object_back(path, old, tree, stored)
    if what == "named":
        mine = old if isinstance(old, tuple) else ()
        items = [put_back(f"{path}[{i}]", _at(mine, i), each, stored) for i, each in enumerate(tree["items"])]
        return _class_of(path, tree)._make(items)
    if what == "generator":
        rng.set_generator(old, *tree["state"])
        return old
    if what == "state":
        old.load_state_dict(put_back(path, old.state_dict(), tree["state"], stored))
        return old
    if what == "member":
        if type(old).__name__ != tree["of"]:
            raise NotPlain(f"{path} was a {tree['of']}, and is a {type(old).__name__} now")
        return type(old)[tree["name"]]
    if what == "array":
        return _array_back(old, tree)
    if what in ("set", "deque"):
        return _collection_back(path, old, tree, stored)
    return _mapping_back(path, old, tree, stored)


def _collection_back(path: str, old: Any, tree: dict[str, Any], stored: frozenset[str]) -> Any:
    mine: set[Any] | collections.deque[Any]
    if tree[MARK] == "set":
        mine = old if type(old) is set else set()
        mine.clear()
        mine.update(tree["items"])
        return mine
    mine = old if type(old) is collections.deque else collections.deque(maxlen=tree["most"])
    items = [put_back(f"{path}[{i}]", _at(mine, i), each, stored) for i, each in enumerate(tree["items"])]
    mine.clear()
    mine.extend(items)
    return mine


def _mapping_back(path: str, old: Any, tree: dict[str, Any], stored: frozenset[str]) -> Any:
    made = {each.__name__: each for each in MAPPINGS}[tree[MARK]]
    if type(old) is not made:
        if made is collections.defaultdict:
            raise NotPlain(f"{path} was a defaultdict, and is a {type(old).__name__} now")
        old = made()
    _fill_dict(path, old, tree["items"], stored)
    if hasattr(old, "__dict__"):
        put_back(path, vars(old), tree["about"], stored)
    return old


def _array_back(old: Any, tree: dict[str, Any]) -> Any:
    numpy: Any = sys.modules.get("numpy") or __import__("numpy")
    made = numpy.frombuffer(tree["bytes"], dtype=tree["type"]).reshape(tree["shape"])
    if tree["one"]:
        return made[()]
    if isinstance(old, numpy.ndarray) and old.shape == made.shape and old.dtype == made.dtype:
        old[...] = made
        return old
    return made.copy()


def _object_back(path: str, old: Any, tree: dict[str, Any], stored: frozenset[str]) -> Any:
    if type(old).__qualname__ != tree["type"]:
        kind = _class_of(path, tree)
        if old is not None or not is_scripts_own(kind.__module__):
            raise NotPlain(f"{path} was a {tree['type']}, and is a {type(old).__name__} now")
        old = kind.__new__(kind)
    mine = {content.key: content for content in contents(path, old, stored)}
    for key, each in tree["contents"].items():
        content = mine.get(key)
        if content is None:
            content = Content(key, None, old if not isinstance(old, torch.nn.Module) else None)
        new = put_back(f"{path}.{key}", content.value, each, stored)
        is_same = new is content.value or (type(new) in PLAIN and repr(new) == repr(content.value))
        if key not in mine or not (is_same or _is_like(new, content.value)):
            _set(path, content, new)
    return old


def _class_of(path: str, tree: dict[str, Any]) -> Any:
    found: Any = sys.modules.get(tree["module"])
    for name in tree["type"].split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type):
        raise NotPlain(f"{path} was a {tree['type']}, which the script has not made")
    return found


def _is_like(new: Any, old: Any) -> bool:
    """Tuples are made anew, of the same objects where these could be put back in place."""
    return type(new) is tuple is type(old) and len(new) == len(old) and all(map(operator.is_, new, old))


def _set(path: str, content: Content, value: Any) -> None:
    owner, name = content.owner, content.key.rpartition(".")[2]
    if isinstance(owner, types.CellType):
        owner.cell_contents = value
    elif owner is None:
        raise NotPlain(f"{path}.{content.key} cannot be put back")
    elif isinstance(owner, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        setattr(owner, name, value)
    else:
        vars(owner)[name] = value  # A frozen data class would refuse.

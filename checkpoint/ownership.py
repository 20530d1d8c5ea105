"""Whose code a module is: the user's own, or that of an installed package."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import types
from pathlib import Path

from cotenant.checkpoint.namespaces import module_of, names_of

_MAIN = "__main__"
_OURS = ("cotenant", "cotenant_forkserver")


def is_scripts_own(module: str) -> bool:
    """Whether a module's code is the user's: it is in no installed package."""
    return module == _MAIN or _is_outside_packages(module, names_of(module).get("__file__"))


@functools.lru_cache(maxsize=4096)
def _is_outside_packages(module: str, file: str | None) -> bool:
    if file is None or module.partition(".")[0] in _OURS:
        return False
    return _is_own_folder(os.path.dirname(file))


@functools.lru_cache(maxsize=4096)
def _is_own_folder(folder: str) -> bool:
    """Asked for each folder once: a script has a thousand modules when it begins, and the disk is asked."""
    path = Path(folder).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(each == path or each in path.parents for each in _installed())


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in names})


def is_in_import(frame: types.FrameType | None) -> bool:
    """Whether an installed module is being imported here, which happens once in a process, whoever asks."""
    while frame is not None and not is_scripts_own(module_of(frame)):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def own_modules() -> list[str]:
    """The names of the script's own modules that are imported now."""
    return [name for name in list(sys.modules) if name != "__mp_main__" and is_scripts_own(name)]


def own_thread() -> str:
    """The name of a thread of the script's beside this one; empty: there is none. What such a thread changes
    cannot be told from what this one does."""
    for thread in threading.enumerate():
        target = thread.__dict__.get("_target")
        code = type(thread) if target is None else target
        if thread is not threading.current_thread() and is_scripts_own(str(getattr(code, "__module__", ""))):
            return thread.name
    return ""

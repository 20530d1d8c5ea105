"""`interpreter.py REQUEST`: what `python SCRIPT ARGS` is, in a process that has torch already.

Rule: what the process does is the same beside the hook and without it; only its environment says which. The
start of a job's interpreter is the real one: the `sitecustomize` that PYTHONPATH leads to. Random numbers
that a script does not seed are the same in all processes, so that scripts without a seed can be compared.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import signal
import sys
import threading
import types
from pathlib import Path
from time import sleep
from typing import Any, NoReturn

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

SEED = 20131
UNSEEDED = ("numpy.random", "torch")


class Optimizers:
    """Every optimizer that has stepped, kept so that its parameters can be looked at in the end; and a pause
    after each of the first steps, so that a short script is there long enough to be measured."""

    def __init__(self, pause_s: float) -> None:
        self.kept: list[Any] = []
        self._left_s = 50 * pause_s
        self._pause_s = pause_s

    def stepped(self, optimizer: Any, *_: Any) -> None:
        if not any(optimizer is each for each in self.kept):
            self.kept.append(optimizer)
        if self._left_s > 0 and not torch.compiler.is_compiling():
            self._left_s -= self._pause_s
            sleep(self._pause_s)


def main() -> NoReturn:
    request = json.loads(sys.argv[1])
    os.setsid()
    os.chdir(request["folder"])
    _take_streams(request["errors"])
    sys.argv = list(request["argv"])
    sys.orig_argv = [sys.executable, *sys.argv]
    path = os.path.abspath(sys.argv[0])
    _set_path(path)
    optimizers = Optimizers(request["pause_s"])
    moved = _move(request["number"])
    if request["state"]:
        atexit.register(_write_state, Path(request["state"]), optimizers.kept, os.getpid())
    script = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    script.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __builtins__=__builtins__)
    script.__dict__.update(__annotations__={})
    sys.modules["__main__"] = script
    sys.modules.pop("sitecustomize", None)
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    if request["state"]:
        register_optimizer_step_post_hook(optimizers.stepped)
    _end(_run(path, script), moved)


def _take_streams(errors: str) -> None:
    """Unbuffered, as PYTHONUNBUFFERED makes them."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)
    streams = [
        io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), encoding="utf-8", errors=how, write_through=True)
        for fd, how in ((1, "strict"), (2, "backslashreplace"))
    ]
    sys.stdout, sys.stderr = streams
    python: Any = sys
    python.__stdout__, python.__stderr__ = streams


def _move(number: int) -> list[Any]:
    """Fills the gaps of memory in a way of this run alone. Forks of one process have the same addresses, and
    what follows from them (the order of a set of objects) must not look as if it were the script's."""
    draw = random.Random(number)
    sizes = range(0, 480, 16)
    made: list[Any] = [bytes(size) for size in sizes for _ in range(draw.randrange(600))]
    draw.shuffle(made)
    del made[::2]
    return made


def _set_path(script: str) -> None:
    """The script's folder, PYTHONPATH, and what belongs to the interpreter; not what our own start added."""
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    roots = (os.path.join(sys.prefix, ""), os.path.join(sys.base_prefix, ""))
    own = [each for each in sys.path if each.startswith(roots) and each not in given]
    sys.path[:] = [os.path.dirname(script), *given, *own]
    importlib.invalidate_caches()


def _run(path: str, script: types.ModuleType) -> int:
    """The exit code that Python would give; a negative one is a signal."""
    try:
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(script))
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # we stand in for the interpreter here
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.last_value = error
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int, moved: list[Any]) -> NoReturn:
    """As the interpreter ends: threads, exit functions, streams. `moved` stays until then."""
    threads: Any = threading
    threads._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _write_state(path: Path, kept: list[Any], pid: int) -> None:
    """The last exit function, as it was the first to be registered. Children that are forked have it, too."""
    if os.getpid() != pid:
        return
    spec = importlib.util.spec_from_file_location("endstate", Path(__file__).with_name("endstate.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text(json.dumps(module.picture(kept)))


if __name__ == "__main__":
    main()

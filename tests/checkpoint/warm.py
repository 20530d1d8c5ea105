"""A process that has imported torch already and forks ranks on request: a rank starts in a tenth of a second.

Rule: run as a program by `ranks.py`, with the names of what else it is to import. One JSON request per
line on stdin, one answer per line on stdout. It starts no thread and no OpenMP region before a fork, and
kills what is left of its children when stdin ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import traceback

import torch
import torch.distributed
import torch.nn.parallel
import torch.utils.data

for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


def main() -> None:
    children: dict[int, int] = {}  # pid -> pidfd
    stdin = sys.stdin.fileno()
    pending = b""
    gc.freeze()  # Else each rank looks at all that torch has made, and so copies it.
    answer({"ready": os.getpid()})
    while True:
        ready, _, _ = select.select([stdin, *children.values()], [], [])
        for pid, fd in list(children.items()):
            if fd in ready:
                _, status = os.waitpid(pid, 0)
                os.close(children.pop(pid))
                answer({"ended": pid, "code": os.waitstatus_to_exitcode(status)})
        if stdin not in ready:
            continue
        data = os.read(stdin, 65536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            pid = start(json.loads(line), list(children.values()))
            children[pid] = os.pidfd_open(pid)
            answer({"started": pid})
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer(message: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class InRank(Exception):
    """Raised in a rank, which so leaves our loop: it is none of the script's, whose loops are counted."""

    def __init__(self, request: dict[str, object], inherited: list[int]) -> None:
        super().__init__()
        self.request = request
        self.inherited = inherited


def start(request: dict[str, object], inherited: list[int]) -> int:
    """Fork a child that runs one script as `__main__`, with its own environment and output file."""
    pid = os.fork()
    if not pid:
        raise InRank(request, inherited)
    return pid


def be_rank(request: dict[str, object], inherited: list[int]) -> None:
    code = 1
    try:
        for fd in inherited:
            os.close(fd)
        output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        sys.argv = [str(part) for part in request["argv"]]  # type: ignore[attr-defined]
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        code = run(sys.argv[0])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(path: str) -> int:
    """What the interpreter does with a script: its folder on the path, exceptions, SystemExit, atexit."""
    import atexit

    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    code = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException as error:  # noqa: BLE001  # we stand in for the interpreter here
        sys.last_value = error
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    return code


if __name__ == "__main__":
    rank = None
    try:
        main()
    except InRank as forked:
        rank = forked.request, forked.inherited
    if rank is not None:
        be_rank(*rank)

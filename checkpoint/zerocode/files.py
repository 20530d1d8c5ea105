"""What a script does to files: whether what comes before its loop, done again, would destroy what its loop
has made.

Rule: Python tells of every file that is opened, removed or made. Paths that the script truncated, removed or
made anew before its loop are kept, and paths that its loop writes: where the second touches the first, the
script is not resumed. A file that is only appended to is cut back to where it was when the state was saved.
Folders that were made before the loop may be there when they are made again.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import io
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

from cotenant.checkpoint import guard, namespaces, ownership
from cotenant.checkpoint.progress.expressions import called_name
from cotenant.checkpoint.zerocode.looking import own_sources, training_loops

_NOWHERE: Final = ("/dev/", "/proc/", "/sys/")
_FRAMES_MAX: Final = 60
_BETWEEN: Final = (__name__, "cotenant.checkpoint.guard")
"""What stands between the script and us."""
WRITTEN_MAX: Final = 1000
_REMOVES: Final = {"os.remove": "removes", "os.rmdir": "removes", "shutil.rmtree": "removes"}
_TEMPORARY: Final = ("tempfile.mkstemp", "tempfile.mkdtemp")


class FileWatch:
    """Follows one process. `refused`: why its script cannot be resumed; empty: nothing speaks against it."""

    def __init__(self) -> None:
        self.refused = ""
        self.when_refused: Callable[[str], None] | None = None
        self._in_loop = False
        self._before: dict[str, str] = {}
        """What happened to paths before the loop: a verb, and the line."""
        self.made: set[str] = set()
        """Folders that were made before the loop."""
        self._appended: set[str] = set()
        self.written: set[str] = set()
        """Files that the loop has written, in this attempt or in those before."""
        self.when_destroyed: Callable[[str], Any] | None = None
        """Told, before it happens, that what comes before the loop destroys what the loop has written."""
        self.removal = ""
        """The line of a call before the loop that removes files, where the text of the script has one."""
        self._when_written: Callable[[], None] | None = None
        self._busy = False

    def begin(self) -> None:
        """From now on, for ever: an audit hook cannot be taken away. torch.save opens its file in C++, of
        which Python does not tell."""
        guard.listen_for(_EVENTS, self._heard)
        serialization = sys.modules.get("torch.serialization")
        opens = getattr(serialization, "_open_zipfile_writer", None)
        if opens is None:
            return

        @guard.door
        @functools.wraps(opens)
        def _open_zipfile_writer(target: Any, *args: Any, **kwargs: Any) -> Any:
            if issubclass(type(target), (str, os.PathLike)):
                self._heard("open", (target, "w", 0))
            try:
                return opens(target, *args, **kwargs)
            except BaseException as error:
                guard.leave_out_frame(error)
                raise

        serialization._open_zipfile_writer = _open_zipfile_writer  # type: ignore[union-attr]

    def enter_loop(self) -> None:
        """What comes now is in the loop. What is still open for writing, the loop may write."""
        self._in_loop = True
        self.removal = self.removal or removal_before_loops()
        for path in _open_for_writing():
            self._loop_writes(path, "")

    def capture(self) -> dict[str, Any]:
        """Where appended files end, and which folders there were, when a state is saved."""
        _flush_all()
        ends = {}
        for path in sorted(self._appended):
            with contextlib.suppress(OSError):
                ends[path] = os.stat(path).st_size
        return {"ends": ends}

    def forbid(self, when_written: Callable[[], None]) -> None:
        """From now on nothing may leave the process: `when_written` is called before a file is written."""
        _flush_all()
        self._when_written = when_written
        with contextlib.suppress(OSError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)

    @guard.door
    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            guard.SAVING.run(self._take, event, args)
        finally:
            self._busy = False

    def _take(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            verb = _verb_of(mode, flags)
            if not verb or not issubclass(type(path), (str, bytes, os.PathLike)):
                return
        else:
            path, verb = args[0] if args else "", _REMOVES.get(event, event)
        where = _line_of(sys._getframe(1))
        if not where:
            return
        path = os.path.abspath(os.fsdecode(path)) if issubclass(type(path), (str, bytes, os.PathLike)) else ""
        if path.startswith(_NOWHERE) or path.endswith(".pyc") or "__pycache__" in path:
            return
        if self._when_written is not None:
            self._when_written()
        if not self._in_loop:
            self._note_before(event, verb, path, where)
        elif event != "os.mkdir":
            if verb == "appends to":
                self._appended.add(path)
            self._loop_writes(path, where)

    def _note_before(self, event: str, verb: str, path: str, where: str) -> None:
        harmed = [each for each in self.written if each == path or each.startswith(path + os.sep)]
        if harmed and event != "os.mkdir" and verb != "appends to" and self.when_destroyed is not None:
            self.when_destroyed(f"{where} {verb} {path}, and the loop has written {harmed[0]}")
        if event == "os.mkdir":
            self.made.add(path)
        elif event in _TEMPORARY:
            self._before[path] = f"{where} makes a temporary place of another name each time"
        elif event == "sqlite3.connect":
            self._refuse(f"{where}: a database is no part of what can be put back ({path})")
        elif event == "os.rename":
            self._refuse(f"{where}: what comes before the loop renames {path}, and would do so again")
        elif verb == "appends to":
            self._appended.add(path)
        elif verb == "makes":
            self._refuse(f"{where}: what comes before the loop makes {path}, which must not be there")
        else:
            self._before[path] = f"{where} {verb} it"

    def _loop_writes(self, path: str, where: str) -> None:
        if len(self.written) < WRITTEN_MAX:
            self.written.add(path)
        if self.removal:
            self._refuse(
                f"{self.removal} removes files before the loop, and {where or 'the loop'} writes {path}"
            )
            return
        for part in (path, *_parents(path)):
            if part in self._before:
                text = self._before[part]
                self._refuse(
                    f"{where or 'the loop'} writes {path}, and before the loop {text}: done again, that "
                    "would destroy it"
                )
                return

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            self.refused = reason
            if self.when_refused is not None:
                self.when_refused(reason)


_EVENTS: Final = frozenset(("open", "os.mkdir", "os.rename", "sqlite3.connect", *_REMOVES, *_TEMPORARY))


def removal_before_loops() -> str:
    """The first line of the script that removes files and is in no loop that trains; empty: there is none.
    Where such a line is not reached at first, because there is nothing yet to be removed, no event tells of
    it."""
    loops = training_loops()
    for file, tree in own_sources():
        inside = [(each.lineno, each.end_lineno or 0) for each in loops.get(file, {}).values()]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or called_name(node) not in ("rmtree", "unlink", "remove"):
                continue
            function = node.func
            is_lists = isinstance(function, ast.Attribute) and function.attr == "remove"
            owner = function.value if isinstance(function, ast.Attribute) else None
            if is_lists and not (isinstance(owner, ast.Name) and owner.id == "os"):
                continue  # A list's.
            if not any(first <= node.lineno <= last for first, last in inside):
                return f"{os.path.basename(file)} line {node.lineno}"
    return ""


def _verb_of(mode: Any, flags: Any) -> str:
    """What an `open` does to a file; empty: it reads."""
    if isinstance(mode, str):
        for letter, verb in (("x", "makes"), ("w", "truncates"), ("a", "appends to"), ("+", "writes")):
            if letter in mode:
                return verb
        return ""
    if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
        return ""
    if flags & os.O_EXCL:
        return ""  # A temporary file, of which another event tells.
    return "truncates" if flags & os.O_TRUNC else "appends to" if flags & os.O_APPEND else ""


def _line_of(frame: types.FrameType | None) -> str:
    """The line of the script that this comes from; empty: it does not come from the script."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return ""
        name = namespaces.module_of(frame)
        if name.startswith("importlib") or (name.startswith("cotenant.") and name not in _BETWEEN):
            return ""
        if ownership.is_scripts_own(name):
            return f"{os.path.basename(frame.f_code.co_filename)} line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def _parents(path: str) -> list[str]:
    found = []
    while (above := os.path.dirname(path)) != path:
        found.append(path := above)
    return found


def _open_for_writing() -> list[str]:
    """The files that this process has open for writing, beside its output."""
    found = []
    with contextlib.suppress(OSError):
        output = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                with open(f"/proc/self/fdinfo/{name}", encoding="utf-8") as file:
                    flags = int(file.read().split("flags:")[1].split()[0], 8)
                if flags & (os.O_WRONLY | os.O_RDWR) and path.startswith("/") and path not in output:
                    found.append(path)
    return found


def _flush_all() -> None:
    """What open files keep in memory is written."""
    for each in gc.get_objects():
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not each.closed:
            with contextlib.suppress(OSError, ValueError):
                each.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def put_back_files(captured: dict[str, Any]) -> None:
    """Cut appended files back to where they ended when the state was saved."""
    for path, end in captured["ends"].items():
        with contextlib.suppress(OSError):
            if os.stat(path).st_size > end:
                os.truncate(path, end)


def allow_made_again(folders: Iterable[str]) -> None:
    """Folders that an earlier attempt made before its loop may be there when this one makes them."""
    made, make = frozenset(folders), os.mkdir

    @guard.door
    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        try:
            make(path, mode, dir_fd=dir_fd)
        except FileExistsError:
            if guard.SAVING.run(_is_among, path, made) is not True:
                raise

    os.mkdir = mkdir


def _is_among(path: Any, paths: frozenset[str]) -> bool:
    return os.path.abspath(os.fsdecode(path)) in paths

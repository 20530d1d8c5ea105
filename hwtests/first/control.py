"""What questions start: MPS daemons in folders of their own, and CUDA programs (`client.py`).

Rule: both end with their `with`. A question that is killed instead is cleaned up after by the script, which
is the parent of all that is left (`processes.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from hwtests.first.processes import below

CONTROL: Final = "nvidia-cuda-mps-control"
NOWHERE: Final = "/nonexistent/mps"
"""A pipe directory that cannot be: whoever has it is no client."""
LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ASK_S: Final = 4.0
QUIT_S: Final = 1
END_S: Final = 3.0
PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python")
SOURCE: Final = (Path(__file__).parent / "client.py").read_text(encoding="utf-8")
CHATTER: Final = ("NEW UI", "UI closed", "Cmd:", "Accepting connection")
OTHER_UID: Final = 1000
"""An account that is not root; nobody need have it."""


class Silent(Exception):
    """A program did not answer; the text says which, and its last words."""


def plain_environment(uuid: str, pipe: str = NOWHERE, **more: str) -> dict[str, str]:
    """The shell's variables without any of MPS, with this GPU (or list of GPUs) and this pipe directory."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return {**names, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": pipe, **more}


class Daemon:
    """A control daemon of MPS in a folder of its own, or in one that is given."""

    def __init__(self, visible: str, pipe: Path, logs: Path) -> None:
        """`visible`: its CUDA_VISIBLE_DEVICES."""
        self.pipe, self.logs = pipe, logs
        self.env = plain_environment(visible, str(pipe), CUDA_MPS_LOG_DIRECTORY=str(logs))
        self.pid: int | None = None

    def start(self) -> None:
        """Raises Silent: it does not start, in its own words."""
        before = set(below(os.getpid()))
        done = self._run((CONTROL, "-d"), "")
        if done.returncode:
            raise Silent(
                f"{CONTROL} -d: exit {done.returncode}: {done.stderr.strip() or self.log('control')}"
            )
        fresh = [pid for pid in below(os.getpid()) if pid not in before and CONTROL in _command(pid)]
        self.pid = min(fresh, default=None)

    def ask(self, command: str, uid: int | None = None) -> str:
        """Its words, with exit code and complaint where there are any. `uid`: ask as that account."""
        try:
            done = self._run((CONTROL,), f"{command}\n", uid)
        except (subprocess.TimeoutExpired, OSError) as problem:
            return f"[{type(problem).__name__}: {problem}]"
        parts = [
            done.stdout.strip(),
            done.stderr.strip(),
            f"[exit {done.returncode}]" * bool(done.returncode),
        ]
        return " ".join(part for part in parts if part) or "(empty)"

    def _run(
        self, words: tuple[str, ...], text: str, uid: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        # To files, not pipes: the daemon would inherit a pipe and keep it open for ever.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                words, input=text, stdout=out, stderr=err, env=self.env, cwd="/", timeout=ASK_S, text=True,
                check=False, user=uid, group=uid, extra_groups=None if uid is None else [],
            )  # fmt: skip
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(words, done.returncode, out.read(), err.read())

    def servers(self) -> list[str]:
        return [word for word in self.ask("get_server_list").split() if word.isdecimal()]

    def clients(self) -> list[str]:
        """Of all servers."""
        lists = [self.ask(f"get_client_list {server}") for server in self.servers()]
        return [word for text in lists for word in text.split() if word.isdecimal()]

    def log(self, name: str, chars: int = 1500) -> str:
        """The end of `control` or `server`, without our questions."""
        path = self.logs / f"{name}.log"
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            return "\n".join(line for line in lines if not any(each in line for each in CHATTER))[
                -chars:
            ].strip()
        return ""

    def close(self) -> None:
        servers = [int(server) for server in self.servers()]
        self.ask(f"quit -t {QUIT_S}")
        for pid in [*servers, *([self.pid] if self.pid else [])]:
            _end(pid)


@contextmanager
def daemon(visible: str, *, uid: int | None = None, mode: int = 0o700) -> Iterator[Daemon]:
    """One in a new folder with a short name, whose pipe directory is that account's. Raises Silent."""
    folder = Path(tempfile.mkdtemp(prefix="gf-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        pipe, logs = folder / "p", folder / "l"
        for each in (pipe, logs):
            each.mkdir()
            each.chmod(mode)
            if uid is not None:
                os.chown(each, uid, uid)
        made = Daemon(visible, pipe, logs)
        made.start()
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Load:
    """A CUDA program that runs until it is left; what it says is heard by a thread."""

    def __init__(self, *words: str, env: Mapping[str, str], uid: int | None = None) -> None:
        self.process = subprocess.Popen(
            [python_of(uid), "-c", SOURCE, *words], env=dict(env), cwd="/", stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, user=uid, group=uid,
            extra_groups=None if uid is None else [],
        )  # fmt: skip
        self.pid = self.process.pid
        self.said: list[dict[str, Any]] = []
        self.chatter = ""
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.said.append(dict(json.loads(line)))
            except ValueError:
                self.chatter = (self.chatter + line)[-500:]

    def until(self, key: str, within_s: float = 8.0) -> dict[str, Any]:
        """The first thing it says with that key or an error; an error of our own where it says neither."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            is_over = not self._reader.is_alive()
            for each in list(self.said):
                if key in each or "error" in each:
                    return each
            if is_over:
                return {"error": f"ended: {self.chatter.strip() or self.process.poll()}", "stage": "end"}
            time.sleep(0.005)
        return waits(within_s)

    def rate(self, seconds: float = 0.6) -> float:
        """Kernels per second over a window that begins now; 0 where none were made."""
        since_s = time.monotonic()
        time.sleep(seconds)
        rates = [
            each["per_s"] for each in list(self.said) if "per_s" in each and each["at_s"] > since_s + 0.1
        ]
        return round(sum(rates) / len(rates), 1) if rates else 0.0

    def error(self) -> str:
        return next((str(each["error"]) for each in list(self.said) if "error" in each), "")

    def facts(self) -> dict[str, Any]:
        """All that it said, each name once."""
        return {name: value for each in list(self.said) for name, value in each.items() if name != "at_s"}

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(END_S)
        self.process.stdout.close()


def waits(within_s: float) -> dict[str, Any]:
    """What stands for the error of a program that does not come back."""
    return {"error": f"nothing within {within_s:g} s", "stage": "waits", "code": "waits"}


@cache
def python_of(uid: int | None) -> str:
    """An interpreter that this account may run: ours may lie in a folder of root's. Raises Silent."""
    if uid is None:
        return sys.executable
    for path in (sys.executable, *PYTHONS):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = (path, "-c", "import ctypes, json")
            subprocess.run(
                words, user=uid, group=uid, extra_groups=[], cwd="/", check=True, timeout=5, stderr=-3
            )
            return path
    raise Silent(f"no Python here that uid {uid} may run: {', '.join((sys.executable, *PYTHONS))}")


def ask_client(
    *words: str, env: Mapping[str, str], within_s: float = 8.0, uid: int | None = None
) -> dict[str, Any]:
    """What a program says from its start to its end, each name once; `waits` where it does not come back."""
    with Load(*words, env=env, uid=uid) as load:
        try:
            load.process.wait(within_s)
        except subprocess.TimeoutExpired:
            load.kill()
            return {**load.facts(), **waits(within_s)}
        load._reader.join(END_S)
        return load.facts() or {"error": load.chatter.strip()[-300:] or f"exit {load.process.returncode}"}


def at_once(questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Answers of several questions that are asked side by side, by name."""
    found: dict[str, Any] = {}

    def ask(name: str) -> None:
        found[name] = questions[name]()

    threads = [threading.Thread(target=ask, args=(name,)) for name in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def run_words(words: Sequence[str], within_s: float, env: Mapping[str, str] | None = None) -> str:
    """What a program prints, `(nothing)` included; why it did not run, where it did not."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=within_s, check=False, env=None if env is None else dict(env),
        )  # fmt: skip
    except FileNotFoundError:
        return f"[{words[0]} is not installed]"
    except subprocess.TimeoutExpired:
        return f"[{Path(words[0]).name} did not end within {within_s:g} s]"
    except OSError as problem:
        return f"[{type(problem).__name__}: {problem}]"
    code = f" [exit {done.returncode}]" if done.returncode else ""
    return f"{done.stdout.strip() or '(nothing)'}{code}"


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _end(pid: int) -> None:
    """End a daemon or server of ours that `quit` left, if it is still below this process."""
    if pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)

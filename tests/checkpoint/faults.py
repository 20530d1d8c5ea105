"""A copy of what a job has of us, in which any function can be made to raise; and scripts that run beside it.

Rule: functions are found in the sources, each time. Only doors are left out, and the guard that they run ours
through: what is behind them is called or not, and all that is called is made to raise. A fault in what leads
to a script's loop from a checkpoint ends the attempt and says why; any other leaves the script as it is.

`python -m tests.checkpoint.faults [SCENE...]` makes every function raise, from its first call on and from a
later one on, and prints what became of the script where that is not as it should be.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib.util
import json
import mmap
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from cotenant.agent.host.jobside import prepare_jobside
from tests.agent.supervisor.attempts import default_words
from tests.building.limits import within_s
from tests.checkpoint.habits import INTERPRETER, MODULES, SAVED, SEED_OF_JOB, first_difference
from tests.checkpoint.ranks import DEADLINE_S, Gang, Supervisor, Warm, launch

SCRIPTS: Final = Path(__file__).resolve().parent / "scripts" / "guarded"
TRAINERS: Final = ("huggingface", "huggingface leave", "huggingface resume")
SCENES: Final = ("loader", "session", "groups", "split", "save", "leave", "resume", "start", *TRAINERS)
ONLY_START: Final = ("gradaccum/startup/", "checkpoint/seeds", "checkpoint/rerun", "checkpoint/device_limit")
"""What else a process does at its start, forks of a warm one do as well."""
AS_IF_THE_SCRIPTS: Final = ("objects.py persistent_id", "objects.py write", "selfcheck.py forward")
"""Called by pickling, or in the midst of a check of the script's own code: what is raised there, whoever did,
is an answer (this cannot be pickled, not be computed in double precision), and nothing is switched off."""
CALLED_BY_THE_SCRIPT: Final = ("/cotenant/checkpoint/session.py", "/cotenant/checkpoint/__init__.py")
FUNCTIONS_MAX: Final = 8192
STOP_AT: Final = 6
ANSWER_S: Final = within_s(2.0)
"""A rank whose listener has failed gives no answer."""
PLANTED: Final = "planted by a test"
HELD_OUT: Final = ("checkpoint/guard.py", "gradaccum/launch.py")
ENTRY: Final = """
import builtins as _builtins
if not hasattr(_builtins, "_cotenant_entered"):
    import mmap as _mmap
    with open({path!r}, "r+b") as _file:
        _counts = memoryview(_mmap.mmap(_file.fileno(), 0)).cast("I")

    def _cotenant_entered(number, _counts=_counts):
        _counts[number] = count = _counts[number] + 1
        if number == _counts[0] and count >= _counts[1]:
            raise RuntimeError({planted!r})

    _builtins._cotenant_entered = _cotenant_entered
"""
"""Functions are known by numbers. Of the first two counts one is the number of the function that raises, the
other the call from which on it does."""


class _Entries(ast.NodeTransformer):
    """Has every function of a file tell that it is entered."""

    def __init__(self, file: str, found: list[str]) -> None:
        self._file, self._found = file, found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        doors = [each for each in node.decorator_list if isinstance(each, ast.Name) and each.id == "door"]
        if not doors and node.name != "door":
            at = 1 if ast.get_docstring(node) is not None else 0
            node.body.insert(at, ast.Expr(self._entered(node.name, node.lineno)))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        both = ast.Tuple([self._entered("lambda", node.lineno), node.body], ast.Load())
        node.body = ast.Subscript(both, ast.Constant(1), ast.Load())
        return node

    def _entered(self, name: str, line: int) -> ast.Call:
        self._found.append(f"{self._file}:{line} {name}")
        number = ast.Constant(len(self._found) - 1)
        return ast.Call(ast.Name("_cotenant_entered", ast.Load()), [number], [])


class FaultyHook:
    """The folder of our job side, changed so."""

    def __init__(self, folder: Path) -> None:
        self.names = ["", ""]
        self.path = Path(shutil.copytree(prepare_jobside(folder / "plain"), folder / "faulty"))
        counts = folder / "counts"
        counts.write_bytes(bytes(4 * FUNCTIONS_MAX))
        with counts.open("r+b") as shared:
            self._counts = memoryview(mmap.mmap(shared.fileno(), 0)).cast("I")
        entry = ast.parse(ENTRY.format(path=str(counts), planted=PLANTED)).body
        ours = self.path / "cotenant"
        for path in sorted(ours.rglob("*.py")):
            file = str(path.relative_to(ours))
            tree = ast.parse(path.read_text())
            if file.startswith(("checkpoint/", "gradaccum/")) and file not in HELD_OUT:
                tree = _Entries(file, self.names).visit(tree)
            if file == "__init__.py" or path.name == "sitecustomize.py":
                tree.body[2:2] = entry  # After its text and its `from __future__`.
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n")
        assert len(self.names) <= FUNCTIONS_MAX
        compileall.compile_dir(self.path, quiet=1)

    def plant(self, number: int = 0, call: int = 1) -> None:
        """From that call of the function on it raises; 0: none does."""
        self._counts[: len(self.names)] = memoryview(bytes(4 * len(self.names))).cast("I")
        self._counts[0], self._counts[1] = number, call

    def calls(self) -> dict[int, int]:
        """How often each function was called since."""
        return {n: self._counts[n] for n in range(2, len(self.names)) if self._counts[n]}


class Planted(NamedTuple):
    """A fault: the number of a function, and the call from which on it raises."""

    number: int
    call: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a script left."""

    code: int
    output: str
    saved: Any
    heard: Sequence[dict[str, Any]] = ()

    @property
    def own_output(self) -> str:
        """Its lines, without those that begin with our name."""
        return "".join(each for each in self.output.splitlines(True) if not _is_ours(each))

    @property
    def is_told(self) -> bool:
        """Whether the supervisor or the job's log has heard of the fault."""
        told = [json.dumps(each) for each in self.heard] + [
            each for each in self.output.splitlines() if _is_ours(each)
        ]
        return any(PLANTED in each for each in told)

    @property
    def resumable(self) -> bool:
        """What it said last."""
        return any(bool(each["resumable"]) for each in [*filter(_is_hello, self.heard)][-1:])

    def has(self, name: str) -> bool:
        return any(each["m"] == name for each in self.heard)


def _is_hello(word: dict[str, Any]) -> bool:
    return bool(word["m"] == "hello")


def _is_ours(line: str) -> bool:
    return line.startswith(("cotenant", '{"result"')) or PLANTED in line


@dataclass
class Scene:
    """A script, what is asked of it, and how it ends by itself."""

    name: str
    hook: FaultyHook
    warm: Warm
    folder: Path
    bare: Ended = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        own, _, last = self.name.partition(" ")
        script = SCRIPTS / f"{own}.py"
        self.script = script if script.exists() else SCRIPTS / "loader.py"
        self.does = last or own
        self.order = self.does if self.does in ("save", "leave") else ""
        self.hook.plant()
        self.bare = self._run(None)
        assert self.bare.code == 0, self.bare.output
        if self.name == "split":
            self.bare = replace(self.bare, saved=_rounded(self.bare.saved))
        self._root: Path | None = None
        if self.does == "resume":
            self._root = self.folder / "left"
            left = self._run(self._root, order="leave")
            assert left.has("stopped"), f"{left.heard}\n{left.output}"
        self.whole = self._job()
        wrong = self.objection(self.whole)
        assert not wrong, f"without a fault: {wrong}\n{self.whole.heard}\n{self.whole.output}"
        self.calls = self.hook.calls()

    def faults(self, draw: random.Random, *, count: int | None = None) -> list[Planted]:
        """One for each function that was called, or for so many of them; with no `count` a second one, from a
        later call on."""
        numbers = sorted(self.calls)
        if self.name == "start":
            numbers = [each for each in numbers if self.hook.names[each].startswith(ONLY_START)]
        if count is not None:
            chosen = sorted(draw.sample(numbers, min(count, len(numbers))))
            return [Planted(each, draw.choice((1, draw.randint(1, self.calls[each])))) for each in chosen]
        later = [Planted(each, draw.randint(2, self.calls[each])) for each in numbers if self.calls[each] > 1]
        return [*(Planted(each, 1) for each in numbers), *later]

    def fault(self, fault: Planted) -> str:
        """What is wrong with how the script ends beside this fault; empty: nothing."""
        self.hook.plant(*fault)
        ended = self._job()
        if self.hook.calls().get(fault.number, 0) < fault.call:
            return ""  # Another thread, or timing: it was not called this time.
        wrong = self.objection(ended)
        file, name = self.hook.names[fault.number].rsplit("/", 1)[-1].split()
        is_answer = f"{file.partition(':')[0]} {name}" in AS_IF_THE_SCRIPTS
        if not wrong and not ended.is_told and not is_answer and ended.resumable == self.whole.resumable:
            wrong = "nothing was said"
        if not wrong:
            return ""
        tail = " / ".join(ended.output.strip().splitlines()[-3:])
        return f"{self.name}: {self.hook.names[fault.number]}, call {fault.call}: {wrong} [{tail}]"

    def objection(self, ended: Ended) -> str:
        """How an end differs from the script's own."""
        if self.does == "leave" and ended.has("stopped") and ended.code == 0 and ended.saved is None:
            return ""
        if self.does == "resume" and ended.code != 0 and ended.has("failed"):
            return "" if ended.saved is None and ended.is_told else "it failed without a reason"
        if self.name == "session" and any(each in ended.output for each in CALLED_BY_THE_SCRIPT):
            return "" if ended.code == 1 else f"it ended with {ended.code}"
        if self.name == "split" and "cotenant.gradaccum.Refused: " in ended.output:
            return "" if ended.code == 1 else f"it ended with {ended.code}, though refused"
        if ended.code != self.bare.code:
            return f"it ended with {ended.code}"
        if self.name == "split":
            ended = replace(ended, saved=_rounded(ended.saved))
        difference = first_difference(self.bare.saved, ended.saved)
        if difference or self.does == "resume":
            return difference
        if ended.own_output != self.bare.own_output:
            return f"it printed {ended.own_output!r}"
        return ""

    def _job(self) -> Ended:
        root = self.folder / f"root-{self._count}"
        if self._root is not None:
            shutil.copytree(self._root, root)
        return self._run(root, order=self.order, attempt=2 if self._root is not None else 1)

    def _run(self, root: Path | None, *, order: str = "", attempt: int = 1) -> Ended:
        number, self._count = self._count, self._count + 1
        work, side = self.folder / "work", self.folder / f"s{number}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        with Supervisor(side, 1) as supervisor, _Gate(self.folder / "gate") as gate:
            env = {"GUARDED_GATE": str(gate.path)}
            if root is not None:
                root.mkdir(exist_ok=True)
                words = ",".join(dict.fromkeys((*default_words(), "progress")))
                given = {"COTENANT_ZERO_CODE": words, "COTENANT_COLLECTIVE_SCALE": "2.0"}
                if self.name == "split":
                    given["COTENANT_ACCUMULATION_STEPS"] = "2"
                env |= supervisor.env(root, attempt, COTENANT_MEMORY_MIB="1000", **given)
            if self.name == "start":
                code, output = self._start_cold(work, env)
            else:
                argv = (str(work), str(SEED_OF_JOB), str(self.script), SAVED)
                gang = launch(self.warm, INTERPRETER, side / "logs", *argv, env=env)
                gate.wait_for(gang, supervisor)
                if order:
                    _ask(supervisor, order)
                gate.open()
                gate.wait_for(gang, supervisor)
                code, output = gang.warm.wait(gang.pids[0]), gang._log(0).read_text()
            supervisor.hear_all()
            saved = work / SAVED
            return Ended(
                code=code,
                output=output,
                saved=torch.load(saved, weights_only=False) if saved.exists() else None,
                heard=list(supervisor.heard),
            )

    def _start_cold(self, work: Path, env: dict[str, str]) -> tuple[int, str]:
        """In an interpreter of its own."""
        if "COTENANT_ZERO_CODE" in env:
            ours = [str(self.hook.path / "cotenant/gradaccum/startup"), str(self.hook.path)]
            env = {**env, "PYTHONPATH": os.pathsep.join(ours)}
        del env["GUARDED_GATE"]
        done = subprocess.run(
            [sys.executable, str(self.script), SAVED],
            cwd=work,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout


def _rounded(saved: Any) -> Any:
    """Sums in parts differ in their last bits."""
    if isinstance(saved, dict):
        return {key: _rounded(each) for key, each in saved.items()}
    return saved.double().mul(1e4).round() if isinstance(saved, torch.Tensor) else saved


class _Gate:
    """Where each script waits once, in the middle of its loop, until it may go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        self._waiting: socket.socket | None = None

    def wait_for(self, gang: Gang, supervisor: Supervisor) -> None:
        """Until the script stands there, or has ended. What it says meanwhile is heard."""
        while not gang.warm.ended(gang.pids[0]):
            sources: list[Any] = [self._socket, supervisor, gang.warm]
            ready, _, _ = select.select(sources, [], [], DEADLINE_S)
            if not ready:
                gang.kill()
                raise AssertionError(f"it neither ends nor comes to the gate\n{gang.output()}")
            if supervisor in ready:
                supervisor.hear()
            if self._socket in ready:
                self._waiting, _ = self._socket.accept()
                return

    def open(self) -> None:
        if self._waiting is not None:
            self._waiting.close()

    def __enter__(self) -> _Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._socket.close()


def _ask(supervisor: Supervisor, order: str) -> None:
    """Asks a script that waits to save or to leave two steps later, if it can."""
    heard = supervisor.hear_all()
    hellos = [each for each in heard if each["m"] == "hello"]
    if not hellos or not hellos[-1]["resumable"]:
        return
    name = "stop_at" if order == "leave" else "save_at"
    try:
        supervisor.tell(name, proposal=1, step=STOP_AT, phase="propose")
        while not any(each["m"] == "confirm" for each in supervisor.hear_all()):
            supervisor.hear(ANSWER_S)
        supervisor.tell(name, proposal=1, step=STOP_AT, phase="commit")
    except OSError:
        return  # Its listener is gone, or does not answer.


@contextmanager
def one_faulty_hook() -> Iterator[tuple[FaultyHook, Warm, Path]]:
    """The folder is short: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="f") as folder:
        hook = FaultyHook(Path(folder))
        warm = Warm((*MODULES, "cotenant.checkpoint.zerocode.hugging_face"), str(hook.path))
        try:
            yield hook, warm, Path(folder)
        finally:
            warm.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make every function behind the guard raise in turn.")
    parser.add_argument("scenes", nargs="*", default=[], metavar="SCENE", help=", ".join(SCENES))
    parser.add_argument("--seed", type=int, default=0, help="of the later calls")
    parser.add_argument("--count", type=int, help="so many functions of each scene; all by default")
    parser.add_argument("--only", default="", help="functions with this text in their names")
    options = parser.parse_args()
    wrong = 0
    with one_faulty_hook() as (hook, warm, folder):
        for name in options.scenes or SCENES:
            if name in TRAINERS and importlib.util.find_spec("transformers") is None:
                print(f"{name}: transformers is not installed", flush=True)
                continue
            scene = Scene(name, hook, warm, folder / name)
            faults = scene.faults(random.Random(options.seed), count=options.count)
            faults = [each for each in faults if options.only in hook.names[each.number]]
            print(f"{name}: {len(scene.calls)} functions, {len(faults)} faults", flush=True)
            for fault in faults:
                text = scene.fault(fault)
                if text:
                    wrong += 1
                    print(text, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

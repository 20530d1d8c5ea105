"""How a Python script shows in its text that it is to be started once per device.

Rule: the text is a hint. It is read without being run, within bounds, together with the modules that lie
beside it. Only code counts that the script's start can reach by the names it uses: a module of helpers that
could make a process group makes none for a script that never calls it.

A sign is SURE where the code runs whatever happens; OPEN where only its name is handed on (a framework may
call it); TRIED where the script goes on if it fails; a CHOICE behind a condition, or behind a way out.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

FILES_MAX: Final = 64
"""Parsed, beside the script."""
FILE_BYTES_MAX: Final = 1 << 20
BYTES_MAX: Final = 1 << 19
"""Parsed, beside the script."""
RANK_WORDS: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE")

CHOICE, TRIED, OPEN, SURE = range(4)
SignKind = Literal["group", "own-ranks", "spawns", "library"]

_GROUPS: Final = ("init_process_group", "init_device_mesh")
_DEEPSPEED: Final = ("deepspeed.initialize", "deepspeed.init_distributed")
_SPAWNS: Final = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_LIGHTNING: Final = ("Trainer", "Fabric", "LightningCLI")
_LIBRARIES: Final = {
    "accelerate": (("Accelerator",), "uses Accelerate"),
    "cotenant": (("Session",), "uses a Session"),
    "lightning": (_LIGHTNING, "uses Lightning"),
    "lightning_fabric": (_LIGHTNING, "uses Lightning"),
    "pytorch_lightning": (_LIGHTNING, "uses Lightning"),
}
"""By package: classes that take part in a process group, or start one."""
_TELLING: Final = (*_GROUPS, "deepspeed", *RANK_WORDS, *_LIBRARIES)
"""What a file with a sign has in its text."""
_ALWAYS: Final = frozenset(("is_initialized", "is_available"))
"""In conditions that hold wherever a process group is to be made."""
_NO_FAILURES: Final = ("KeyboardInterrupt", "SystemExit")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS: Final = (*_FUNCTIONS, ast.ClassDef)


class ScriptText(msgspec.Struct, frozen=True, kw_only=True):
    """A script, and where its modules are looked for."""

    name: str
    """As its user knows it."""
    text: str
    file: Path | None = None
    folders: tuple[Path, ...] = ()
    function: str = ""
    """Only this function of it is run; empty: all of it."""
    options: frozenset[str] = frozenset()
    """Names of the options that were typed for it, with underscores."""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a script that tells how it is to be started."""

    kind: SignKind
    text: str
    """`train.py line 12 calls init_process_group`"""
    level: int


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen in a script, the surest sign first."""

    found: tuple[Sign, ...] = ()
    asks_first: bool = False
    """Its text asks whether it has a rank, so it has a way without one."""
    is_whole: bool = True
    """All was read that there is."""

    def sign_of(self, kind: SignKind) -> Sign | None:
        return next((sign for sign in self.found if sign.kind == kind), None)


def read_signs(script: ScriptText) -> Signs | None:
    """What the script shows; None: its text is not Python that can be read here."""
    reader = _Reader(script)
    try:
        if not reader.read_script():
            return None
    except RecursionError:
        return None
    names_ranks = any(module.names_ranks for module in reader.modules)
    signs = [
        msgspec.structs.replace(sign, kind="group") if sign.kind == "own-ranks" and names_ranks else sign
        for sign in reader.signs
    ]
    signs.sort(key=lambda sign: -sign.level)
    asks_first = any(module.asks_first for module in reader.modules)
    return Signs(found=tuple(signs), asks_first=asks_first, is_whole=reader.is_whole)


def read_text(file: Path) -> str | None:
    """The text of a file; None: it cannot be read here, is too large, or is a pipe, whose text is for
    somebody else."""
    if not os.path.isfile(file):
        return None
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError:
        return None
    return data.decode("utf-8-sig", errors="replace") if len(data) <= FILE_BYTES_MAX else None


class _Module:
    """A file's syntax tree, with what its names stand for."""

    def __init__(self, name: str, file: Path | None, tree: ast.Module) -> None:
        self.name, self.file, self.tree = name, file, tree
        nodes = list(ast.walk(tree))
        self._origins = dict(_imported_names(nodes))
        tried = {
            id(inner)
            for node in nodes
            if isinstance(node, ast.Try | ast.TryStar) and _goes_on(node)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        needed = {id(_needed_variable(node)) for node in nodes if id(node) not in tried}
        words = [node for node in nodes if isinstance(node, ast.Constant) and node.value in RANK_WORDS]
        self.asks_first = any(id(word) not in needed for word in words)
        self.names_ranks = bool(words)
        methods = {id(each) for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
        self.definitions: list[Any] = [
            node
            for node in nodes
            if isinstance(node, ast.ClassDef) or (isinstance(node, _FUNCTIONS) and id(node) not in methods)
        ]

    def origin(self, node: ast.AST) -> str:
        """The full name of what an expression stands for: `torch.distributed.init_process_group`."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        first = self._origins.get(node.id, node.id) if isinstance(node, ast.Name) else ""
        return ".".join((first, *reversed(parts)))


def _imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


class _Reader:
    """Reads a script and the modules beside it, from its start on to whatever that can reach."""

    def __init__(self, script: ScriptText) -> None:
        self._script = script
        self._bytes = 0
        self._seen: set[Path] = set()
        self._files: tuple[deque[tuple[Path, str, int]], ...] = (deque(), deque())
        """Imported, with their texts and levels: those that may have a sign, and all others."""
        self.is_whole = True
        self.modules: list[_Module] = []
        self.signs: list[Sign] = []
        self._definitions: dict[str, list[tuple[_Module, Any]]] = {}
        self._used: dict[tuple[str, str], int] = {}
        """By module, empty for any, and name: the highest level at which the name was used so far."""
        self._waiting: deque[tuple[_Module, Any, int]] = deque()
        """Functions and classes that can be reached, each with its level."""

    def read_script(self) -> bool:
        script = self._script
        module = self._parse(script.name, script.file, script.text)
        if module is None:
            return False
        if script.function:
            imports = [each for each in module.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
            self._block(imports, module, SURE)
            self._use(script.function, module, SURE)
        else:
            self._block(module.tree.body, module, SURE)
        self._enter_all()
        while any(self._files) and not self._has_enough():
            if len(self.modules) > FILES_MAX or self._bytes > BYTES_MAX:
                self.is_whole = False
                break
            self._run_file(*next(files for files in self._files if files).popleft())
            self._enter_all()
        return True

    def _has_enough(self) -> bool:
        """Whether nothing that is read now could change what was seen."""
        asks_first = any(module.asks_first for module in self.modules)
        return any(
            sign.kind == "spawns" or (sign.kind == "group" and (asks_first or sign.level == SURE))
            for sign in self.signs
        )

    def _enter_all(self) -> None:
        while self._waiting:
            self._enter(*self._waiting.popleft())

    def _enter(self, module: _Module, node: Any, level: int) -> None:
        """Reads the body of a function, or the methods of a class, any of which a framework may call."""
        if not isinstance(node, ast.ClassDef):
            return self._block(node.body, module, level)
        for base in node.bases:
            self._add(_library(module.origin(base)), node, module, min(level, OPEN))
        for each in node.body:
            if isinstance(each, _FUNCTIONS):
                self._block(each.body, module, level if each.name == "__init__" else min(level, OPEN))

    # --- Modules ------------------------------------------------------------------------------------

    def _parse(self, name: str, file: Path | None, text: str) -> _Module | None:
        try:
            with warnings.catch_warnings(action="ignore"):  # They are its author's, at its own start.
                module = _Module(name, file, ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        self.modules.append(module)
        for node in module.definitions:
            self._definitions.setdefault(node.name, []).append((module, node))
            if ("", node.name) in self._used:  # Before it was known.
                self._waiting.append((module, node, self._used["", node.name]))
        return module

    def _import(self, node: ast.Import | ast.ImportFrom, module: _Module, level: int) -> None:
        folders: Sequence[Path] = self._script.folders
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            if node.level:
                folders = module.file.parents[node.level - 1 : node.level] if module.file is not None else ()
            base = f"{node.module}." if node.module else ""
            names = [node.module or "", *(f"{base}{alias.name}" for alias in node.names)]
        for file in (each for name in names if name for each in _files_of(name, folders)):
            if file not in self._seen and file != self._script.file:
                self._seen.add(file)
                text = read_text(file) or ""
                tells = any(word in text for word in _TELLING)
                self._files[0 if tells else 1].append((file, text, level))

    def _run_file(self, file: Path, text: str, level: int) -> None:
        self._bytes += len(text)
        inside = (file.relative_to(each) for each in self._script.folders if file.is_relative_to(each))
        module = self._parse(str(next(inside, file)), file, text)
        if module is not None:
            self._block(module.tree.body, module, level)

    # --- Code ---------------------------------------------------------------------------------------

    def _block(self, statements: Iterable[ast.stmt], module: _Module, level: int) -> None:
        for statement in statements:
            self._visit(statement, module, level)
            if _may_return(statement):
                level = CHOICE

    def _visit(self, node: ast.AST, module: _Module, level: int) -> None:
        self._note(node, module, level)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, module, level)
        elif isinstance(node, ast.If):
            self._branches(node, module, level)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._block(node.body, module, min(level, TRIED) if _goes_on(node) else level)
            for each in (*node.handlers, *node.orelse):
                self._visit(each, module, CHOICE)
            self._block(node.finalbody, module, level)
        elif isinstance(node, _FUNCTIONS):  # Its body runs where it is called.
            for each in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                self._visit(each, module, level)
        else:
            if isinstance(node, ast.IfExp | ast.Match):
                level = CHOICE
            for _, value in ast.iter_fields(node):
                parts = value if isinstance(value, list) else [value]
                if parts and isinstance(parts[0], ast.stmt):
                    self._block(parts, module, level)
                else:
                    for part in parts:
                        if isinstance(part, ast.AST):
                            self._visit(part, module, level)

    def _branches(self, node: ast.If, module: _Module, level: int) -> None:
        self._visit(node.test, module, level)
        names = {_name(part) or _option_name(part) for part in ast.walk(node.test)}
        if "__name__" in names:
            if module is self.modules[0]:
                self._block(node.body, module, level)
        elif "TYPE_CHECKING" not in names:
            is_open = names & (self._script.options | _ALWAYS)
            before = len(self.signs)
            self._block(node.body, module, level if is_open else CHOICE)
            between = len(self.signs)
            self._block(node.orelse, module, CHOICE)
            ways = [
                [sign for sign in part if sign.kind in ("group", "own-ranks")]
                for part in (self.signs[before:between], self.signs[between:])
            ]
            if all(ways):  # It is made one way or the other.
                made = min((sign for way in ways for sign in way), key=lambda sign: sign.kind)
                self.signs.append(msgspec.structs.replace(made, level=level))
            for name in _called(node.body) & _called(node.orelse):
                self._use(name, module, level)

    def _note(self, node: ast.AST, module: _Module, level: int) -> None:
        """Notes which names a node uses, and whether it is a sign."""
        if isinstance(node, ast.Call):
            self._use(_name(node.func), module, level)
            self._add(_sign_of_call(node, module.origin(node.func)), node, module, level)
        elif needed := _needed_variable(node):
            if level == SURE:
                what = "reads " + str(needed.value) + " from its environment"
                self._add(("group", what), node, module, level)
        else:
            self._use(_name(node), module, min(level, OPEN))

    def _add(self, found: tuple[SignKind, str] | None, node: Any, module: _Module, level: int) -> None:
        if found is not None:
            text = f"{module.name} line {node.lineno} {found[1]}"
            self.signs.append(Sign(kind=found[0], text=text, level=level))

    def _use(self, name: str, module: _Module, level: int) -> None:
        if not name:
            return
        known = self._definitions.get(name, [])
        own = [each for each in known if each[0] is module]
        key = (module.name if own else "", name)
        if level > self._used.get(key, -1):
            self._used[key] = level
            chosen = own or known
            start = level if len(chosen) == 1 else min(level, OPEN)
            self._waiting.extend((*each, start) for each in chosen)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _called(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that are called somewhere in these statements."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {_name(node.func) for node in nodes if isinstance(node, ast.Call)}


def _option_name(node: ast.AST) -> str:
    """The option that a text names: `use_ddp` of `"--use-ddp" in sys.argv`."""
    return option_name(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def option_name(word: str) -> str:
    """An option as a script spells its variable: `--use-ddp`, `ddp=true`."""
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _needed_variable(node: ast.AST) -> ast.Constant | None:
    """The name in `environ["RANK"]`, which fails where that is not set; None: it is no such expression."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _name(node.value) == "environ":
        named = node.slice
        return named if isinstance(named, ast.Constant) and named.value in RANK_WORDS else None
    return None


def _goes_on(node: Any) -> bool:
    """Whether a script goes on where something fails within this `try`."""
    return any(
        _name(each.type or each) not in _NO_FAILURES
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(each))
        for each in node.handlers
    )


def _may_return(node: ast.AST) -> bool:
    """Whether a function may end within this statement."""
    if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
        return False
    return isinstance(node, ast.Return) or any(_may_return(each) for each in ast.iter_child_nodes(node))


def _sign_of_call(node: ast.Call, origin: str) -> tuple[SignKind, str] | None:
    name = origin.rpartition(".")[2]
    keywords = {each.arg: each.value for each in node.keywords}
    if name in _GROUPS or origin in _DEEPSPEED:
        kind: SignKind = "own-ranks" if {"rank", "world_size"} <= keywords.keys() else "group"
        return kind, f"calls {name if name in _GROUPS else origin}"
    if origin in _SPAWNS:
        return "spawns", f"starts its workers itself ({origin})"
    devices = keywords.get("devices")
    if isinstance(devices, ast.Constant) and devices.value in (1, "1"):
        return None
    return _library(origin)


def _library(origin: str) -> tuple[SignKind, str] | None:
    """The sign that a class of a library is, where it is called or is a base."""
    classes, what = _LIBRARIES.get(origin.partition(".")[0], ((), ""))
    return ("library", what) if origin.rpartition(".")[2] in classes else None


def _files_of(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """The files that an import of this name runs, from the first of the folders that has it."""
    parts = name.split(".")
    for folder in folders:
        if os.path.isdir(folder / parts[0]) or os.path.isfile(folder / f"{parts[0]}.py"):
            for at in range(1, len(parts) + 1):
                path = folder.joinpath(*parts[:at])
                files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
                yield from filter(os.path.isfile, files)
            return

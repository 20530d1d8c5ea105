"""Scripts that start their own workers with `torch.multiprocessing.spawn`, seen from their text.

Rule: such a script is started once per host, as one under torchrun is: started once per GPU, each of its
processes would start as many workers again. Where the call depends on a condition only its author knows, and
`submit` names the flag.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

MODULE = "torch.multiprocessing"
CALLS = ("spawn", "start_processes")
BYTES_MAX = 1 << 20
_PYTHON = re.compile(r"(.*/)?python[\d.]*")


class Spawning(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    certain: bool
    """The call depends on no condition but `__name__ == "__main__"`."""

    def note(self, script: str) -> str:
        what = f"{script}, line {self.line}: it starts its workers itself ({MODULE})"
        if self.certain:
            return f"{what}, so it is started once per host and can use one only (--launch worker: per GPU)"
        return f"{what} under a condition: give --launch host where it does"


def spawning(argv: Sequence[str], workdir: Path) -> tuple[str, Spawning] | None:
    """Which script of a Python command does so, and where; None: none, or it cannot be read from here."""
    script = next((word for word in argv if word.endswith(".py")), "")
    before = argv[: argv.index(script)] if script else ()
    if not script or {"-m", "-c"} & {*before} or (before and not _PYTHON.fullmatch(before[0])):
        return None
    try:
        with (workdir / script).open("rb") as file:
            tree = ast.parse(file.read(BYTES_MAX))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    found = sorted(_calls(tree, _names(tree), certain=True), key=lambda each: (not each.certain, each.line))
    return (script, found[0]) if found else None


def _names(tree: ast.AST) -> set[str]:
    """Names under which the script calls the module's functions."""
    found = {f"{MODULE}.{call}" for call in CALLS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases = [alias.asname for alias in node.names if alias.name == MODULE and alias.asname]
            found |= {f"{alias}.{call}" for alias in aliases for call in CALLS}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                if f"{node.module}.{alias.name}" == MODULE:
                    found |= {f"{name}.{call}" for call in CALLS}
                elif node.module == MODULE and alias.name in CALLS:
                    found.add(name)
    return found


def _calls(node: ast.AST, names: set[str], *, certain: bool) -> Iterator[Spawning]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
        yield Spawning(line=node.lineno, certain=certain)
    is_choice = isinstance(node, (ast.If, ast.IfExp, ast.Try, ast.Match))
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        is_choice = False
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, names, certain=certain and not is_choice)

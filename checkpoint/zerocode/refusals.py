"""Why a script that has the plain pattern is not resumed all the same, each with its line.

Rule: what a second process would do otherwise than the first must be seen here, in the text of the script,
or in what its variables hold. When in doubt a script is refused: it then runs as it would anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

WRAPPERS: Final = frozenset(("enumerate", "tqdm", "trange", "track"))
"""Calls whose first argument is the loader, and which have the batches of it, one by one."""
_WRITES: Final = frozenset(
    (
        "save",
        "dump",
        "savefig",
        "to_csv",
        "to_json",
        "write",
        "write_text",
        "write_bytes",
        "writerow",
        "writerows",
        "save_pretrained",
    )
)
_TRAINERS: Final = frozenset(
    ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "LBFGS")
)
_ENTROPY: Final = frozenset(("SystemRandom", "urandom", "uuid4", "uuid1", "token_hex", "token_bytes"))
_SEEDED: Final = frozenset(("default_rng", "RandomState", "SeedSequence", "PCG64", "Random"))
"""Without a seed they take one that is never the same."""
_CLOCKS: Final = frozenset(("time", "time_ns", "now", "getpid", "perf_counter"))


class NotPlain(Exception):
    """The script does something else; the text says what."""


def refuse_entropy(tree: ast.Module) -> None:
    """What takes a seed that no other process has makes other data after a resume."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = called_name(node)
        words = [*node.args, *node.keywords]
        inside = {
            called_name(each) for word in words for each in ast.walk(word) if isinstance(each, ast.Call)
        }
        if name in _ENTROPY or (name in _SEEDED and not words) or (name == "seed" and not words):
            raise NotPlain(f"line {node.lineno}: {name}() takes another seed each time the script runs")
        if "seed" in name and inside & _CLOCKS:
            raise NotPlain(f"line {node.lineno}: the seed is another one each time the script runs")


def refuse_caught_exits(tree: ast.Module) -> None:
    """A script that is asked to leave does so by SystemExit; one that goes on then would do more than one
    that was not asked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not any(isinstance(n, ast.Raise) for n in ast.walk(node)):
            names = (
                {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
                if node.type
                else {"BaseException"}
            )
            if names & {"BaseException", "SystemExit"}:
                raise NotPlain(f"line {node.lineno}: it catches its own exit")


def refuse_never_cleared(epochs: ast.For, nodes: Sequence[ast.AST]) -> None:
    """Refuses a loop that never clears the gradients: then a step may have any number of gradients behind it;
    and no form may change that a new process must have from its beginning."""
    calls = [node for top in nodes for node in ast.walk(top) if isinstance(node, ast.Call)]
    for call in calls:
        if called_name(call) == "add_param_group":
            raise NotPlain(f"line {call.lineno}: the optimizer gets more parameters in the loop")
    clears = {"zero_grad", "zero_", "zero_grad_"} & {called_name(call) for call in calls}
    sets = any(
        isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, (ast.Store, ast.Del))
        for top in nodes
        for n in ast.walk(top)
    )
    if not clears and not sets:
        raise NotPlain(f"line {epochs.lineno}: nothing in this loop clears the gradients")


def refuse_made(nodes: Sequence[ast.AST]) -> None:
    """What trains must be there when the loop begins: a new process makes it then."""
    for call in (n for top in nodes for n in ast.walk(top) if isinstance(n, ast.Call)):
        name = called_name(call)
        copies = name == "deepcopy" and call.args and isinstance(call.args[0], (ast.Name, ast.Attribute))
        if copies:
            raise NotPlain(f"line {call.lineno}: a copy is made in the loop, of what may be a module")
        if name in _TRAINERS or (name.endswith(("LR", "WarmRestarts")) and name[:1].isupper()):
            raise NotPlain(f"line {call.lineno}: {name} is made in the loop")


def refuse_rewritten(tree: ast.Module, nodes: Sequence[ast.AST]) -> None:
    """A file that the loop appends to must not be begun anew when the script begins again."""
    inside = {id(call) for top in nodes for call in ast.walk(top) if isinstance(call, ast.Call)}
    appends = any(opens_to_write(c, "a") for top in nodes for c in ast.walk(top) if isinstance(c, ast.Call))
    for call in (node for node in ast.walk(tree) if appends and isinstance(node, ast.Call)):
        removes = called_name(call) in ("unlink", "rmtree", "remove") and isinstance(call.func, ast.Attribute)
        if id(call) not in inside and (opens_to_write(call, "wx") or removes):
            raise NotPlain(f"line {call.lineno}: a file is begun anew here, which the loop appends to")


def refuse_called_again(tree: ast.Module, epochs: ast.For) -> None:
    """Only the first training is driven, so there must be no other."""
    within = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) and n.lineno <= epochs.lineno <= (n.end_lineno or 0)
    ]
    loops = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)
    for function in within:
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) == function.name]
        repeated = {id(n) for loop in ast.walk(tree) if isinstance(loop, loops) for n in ast.walk(loop)}
        again = calls[1:] or [call for call in calls if id(call) in repeated]
        if again:
            raise NotPlain(f"line {again[0].lineno}: {function.name}() trains more than once")
    for loop in ast.walk(tree):
        is_around = (
            isinstance(loop, (ast.For, ast.While)) and holds(loop, epochs.lineno) and loop is not epochs
        )
        if is_around and not (isinstance(loop, ast.For) and range_in(loop.iter) is not None):
            raise NotPlain(f"line {loop.lineno}: this loop trains more than once")  # type: ignore[attr-defined]


def refuse_written_again(nodes: Sequence[ast.AST]) -> None:
    """What comes before the loop over batches runs again after a resume: with what was trained since.

    Args:
        nodes: that part of the script.
    """
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Call) and (called_name(node) in _WRITES or opens_to_write(node)):
            raise NotPlain(
                f"line {node.lineno}: a file is written before the epoch's batches, and would be again"
            )


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def range_in(expression: ast.expr) -> ast.Call | None:
    """`range(...)`, also in a progress bar."""
    while isinstance(expression, ast.Call):
        name = called_name(expression)
        if name == "range":
            return expression if isinstance(expression.func, ast.Name) else None
        if name not in WRAPPERS or name == "enumerate" or not expression.args:
            return None
        expression = expression.args[0]
    return None


def holds(loop: ast.For | ast.While, line: int) -> bool:
    return loop.lineno <= line <= (loop.end_lineno or line)


def opens_to_write(call: ast.Call, letters: str = "wax+") -> bool:
    given = (*call.args, *(word.value for word in call.keywords))
    words = [each.value for each in given if isinstance(each, ast.Constant)]
    modes = [word for word in words if isinstance(word, str) and len(word) < 4]
    return called_name(call) == "open" and any(set(mode) & set(letters) for mode in modes)

"""Public names say what they are: a type's name means one thing, and a function that acts begins with a verb.

Rule: a function is not named by a bare participle (`told`, `shown`, `ended`), nor by a preposition first
(`of_user`, `in_words`, `beside`). Allowed are Python's own conversions (`from_x`, `to_x`, `as_x`), handlers
of an event (`on_x`, found by their annotation), properties, which are attributes of state (`queued`), and
functions inside others.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
PARTICIPLES = frozenset(
    (
        "told", "shown", "made", "found", "known", "kept", "held", "given", "taken", "left", "seen",
        "said", "built", "begun", "chosen", "drawn", "sent", "lost", "met", "written", "spoken", "spent",
        "won", "gone", "done", "born", "grown", "thrown", "hidden", "bound", "fed", "led", "paid", "sold",
        "stood", "thought",
    )
)  # fmt: skip
"""Irregular ones; all others end in -ed."""
VERBS = frozenset(
    (
        "need", "feed", "speed", "embed", "seed", "reseed", "exceed", "proceed", "shed", "bleed", "breed",
        "heed", "succeed",
    )
)  # fmt: skip
"""Words that end in -ed without being a participle."""
PREPOSITIONS = frozenset(
    (
        "of", "in", "on", "by", "with", "without", "at", "for", "into", "beyond", "within", "beside",
        "after", "before", "among", "between", "until", "since", "under", "over", "behind", "against",
    )
)  # fmt: skip
OF_OTHERS = {
    "on": "a handler: Textual's, Hugging Face's and the engine's own are found by their names or annotations",
    "done": "`concurrent.futures.Future` and `asyncio.Task` call it so",
}
"""Names that stay -> why."""


def named_badly(name: str) -> str:
    """What is wrong with a function's name; empty if nothing is."""
    first, *more = name.split("_")
    if first in OF_OTHERS or name in OF_OTHERS:
        return ""
    if first in PREPOSITIONS:
        return "begins with a preposition"
    if not more and (
        first in PARTICIPLES or (len(first) > 4 and first.endswith("ed") and first not in VERBS)
    ):
        return "is a bare participle"
    return ""


def public_functions(tree: ast.Module) -> Iterator[str]:
    """The public functions of a module and of its classes, without properties."""
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    for scope in scopes:
        for each in scope.body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or each.name.startswith("_"):
                continue
            if not any("property" in ast.unparse(decorator) for decorator in each.decorator_list):
                yield each.name


def public_types(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The public classes and type aliases of a module, each with the text that an alias stands for."""
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            yield each.name, ""
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            if name[:1].isupper() and not name.isupper() and "_" not in name:
                yield name, re.sub(r"\b[a-z_]\w*\.(?=[A-Z])", "", ast.unparse(each.value))


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_function_is_a_bare_participle_or_begins_with_a_preposition() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name} {wrong}"
        for path in files()
        for name in public_functions(ast.parse(path.read_text()))
        if (wrong := named_badly(name))
    ]
    assert found == []


def test_a_type_has_one_meaning() -> None:
    """An alias may be written again where it stands for the same."""
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for path in files():
        for name, text in public_types(ast.parse(path.read_text())):
            where = str(path.relative_to(ROOT))
            meanings[name].setdefault(text or f"class in {where}", where)
    assert {name: found for name, found in meanings.items() if len(found) > 1 and name[0] != "_"} == {}


@pytest.mark.parametrize("name", ["told", "shown", "ended", "of", "of_user", "in_words", "beside", "by_end"])
def test_a_name_that_says_too_little_is_found(name: str) -> None:
    assert named_badly(name)
    source = f"class Thing:\n    def {name}(self): ...\n"
    assert list(public_functions(ast.parse(source))) == [name]


@pytest.mark.parametrize(
    "name", ["tell", "need", "seed", "from_text", "as_json", "on_joined", "end_job", "read"]
)
def test_a_name_that_says_what_is_done_is_left_alone(name: str) -> None:
    assert not named_badly(name)


def test_a_property_is_an_attribute_of_state() -> None:
    source = (
        "class Job:\n    @property\n    def queued(self): ...\n    @cached_property\n    def held(self): ..."
    )
    assert list(public_functions(ast.parse(source))) == []

"""What sources say, for the tests that read all of them: each is parsed once, and no tree is kept (a million
nodes would slow down every collection of garbage)."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple


class Said(NamedTuple):
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """Wherever in the source they are."""
    classes: tuple[str, ...]
    """At the top level."""
    names: frozenset[str]
    """What is defined in it, and what is asked of others."""


@cache
def said(source: str) -> Said:
    tree = ast.parse(source)
    imports, names = [], set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.append(node)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                names.add(name)
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Said(tuple(imports), classes, frozenset(names))

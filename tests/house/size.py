"""How large the house is, and how far that is from its limits; and what the lines are for: from the files.

    python tests/house/size.py
    python tests/house/size.py packages

A line is any line of a `.py` file: docstrings, comments and blank ones count, as in `wc -l`.
`imports` are the lines of import statements at any depth. Words are those of pages, tables and code blocks
included. CONTRIBUTING.md keeps the table; what is over a limit is said there with the reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
FENCED = ("controller/papers", "controller/slurm", "agent/slurm")
"""A paper is for who compares policies, Slurm for who keeps it: neither is what a lab runs."""
FACES_MAX = 120
PACKAGES = tuple(folder for folder in PRODUCT if folder != "controller")


class Figure(NamedTuple):
    """What was counted, and the most that it may be."""

    what: str
    found: int
    most: int | None = None

    def row(self) -> str:
        limit = (
            "" if self.most is None else f"{self.most:,}" + (" **over**" if self.found > self.most else "")
        )
        return f"| {self.what} | {self.found:,} | {limit} |"


def tracked(*suffixes: str) -> Iterator[str]:
    """Files under version control, as paths from the root."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    yield from (
        name for name in done.stdout.splitlines() if name.endswith(suffixes) and (ROOT / name).exists()
    )


def lines_of(names: Iterator[str]) -> int:
    return sum(len((ROOT / name).read_text().splitlines()) for name in names)


def import_lines(source: str) -> int:
    nodes = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def exported(source: str) -> int:
    """How many names a package has in its `__all__`, or loads when they are asked for (`_HOMES`)."""
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name("_HOMES"), value=ast.Dict() as homes):
                return sum(map(len, ast.literal_eval(homes).values()))
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List() as names):
                return len(names.elts)
    return 0


def package_of(name: str) -> str:
    """The package that a limit is for: a folder of the product, below `controller` one of its folders."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] in ("controller", "agent") and len(parts) > 2 else parts[0]


def figures() -> Iterator[Figure]:
    product = [name for name in tracked(".py") if name.split("/")[0] in PRODUCT]
    fenced = [name for name in product if name.startswith(FENCED)]
    core = [name for name in product if name not in set(fenced)]
    yield Figure("product, without papers and Slurm: lines", lines_of(iter(core)), 78_000)
    yield Figure("papers and Slurm: lines", lines_of(iter(fenced)), 18_000)
    sizes = Counter[str]()
    for name in core:
        sizes[package_of(name)] += lines_of(iter([name]))
    for package, lines in sizes.most_common(3):
        yield Figure(f"largest packages: {package}", lines, 12_000)
    yield Figure("imports: lines", sum(import_lines((ROOT / name).read_text()) for name in product), 5_500)
    yield from (Figure(f"names that `{name}` exports", count, FACES_MAX) for name, count in faces(product))
    marks = sum((ROOT / name).read_text().count("# fmt: skip") for name in product)
    yield Figure("`# fmt: skip` in the product", marks, 20)
    yield Figure("functions of the product", sum(map(functions_in, product)))
    yield Figure("tests: lines", lines_of(name for name in tracked(".py") if name.startswith("tests/")))
    yield Figure("README: words", words("README.md".__eq__))
    yield Figure("pages: words", words(is_page), 50_000)
    yield Figure(
        "longest result page: words", max(map(len_of_page, filter(is_result, tracked(".md")))), 1_500
    )


def faces(product: list[str]) -> list[tuple[str, int]]:
    """The two widest packages."""
    found = [
        (str(Path(name).parent), exported((ROOT / name).read_text()))
        for name in product
        if name.endswith("__init__.py")
    ]
    return sorted(found, key=lambda each: -each[1])[:2]


def functions_in(name: str) -> int:
    nodes = ast.walk(ast.parse((ROOT / name).read_text()))
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in nodes)


def is_result(name: str) -> bool:
    return name.startswith("experiments/results/")


def is_page(name: str) -> bool:
    """README, the pages of `docs` and of results, the changelog and the guide for who contributes."""
    return is_result(name) or name.startswith("docs/") or "/" not in name


def len_of_page(name: str) -> int:
    return len(re.findall(r"\S+", (ROOT / name).read_text()))


def words(counts: Callable[[str], bool]) -> int:
    return sum(len_of_page(name) for name in tracked(".md") if counts(name))


def table() -> str:
    return "\n".join(
        ["| figure | now | at most |", "| --- | --: | --: |", *(each.row() for each in figures())]
    )


def packages() -> str:
    """Each package with its lines and the first sentence of its `__init__`, the largest first."""
    sizes = Counter[str]()
    for name in tracked(".py"):
        if name.split("/")[0] in PRODUCT:
            sizes[package_of(name)] += lines_of(iter([name]))
    rows = ["| package | lines | what it is for |", "| --- | --: | --- |"]
    return "\n".join(
        [*rows, *(f"| `{name}` | {lines:,} | {about(name)} |" for name, lines in sizes.most_common())]
    )


def about(package: str) -> str:
    """The first sentence of a package's docstring; of a single module below `controller` its own."""
    path = ROOT / package / "__init__.py" if (ROOT / package).is_dir() else ROOT / package
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    print(packages() if sys.argv[1:] == ["packages"] else table())

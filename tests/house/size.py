"""How large the house is, and that it does not grow: from the files.

    python tests/house/size.py
    python tests/house/size.py packages
    python tests/house/size.py lower

A line is any line of a `.py` file: docstrings, comments and blank ones count, as in `wc -l`.
`imports` are the lines of import statements at any depth. Words are those of pages, tables and code blocks
included.

Rule: `size.toml` has the most that each figure may be, and `test_size.py` fails where one is over it, or is
so far below it that the limit no longer holds anything. Whoever makes the house smaller runs `lower`, which
only ever lowers; whoever has to raise a limit does so by hand and says why in the commit.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
FENCED = ("controller/papers", "controller/slurm", "agent/slurm")
"""A paper is for who compares policies, Slurm for who keeps it: neither is what a lab runs."""
LIMITS = Path(__file__).with_name("size.toml")
HEADING = 2
"""Lines of it that are a comment."""
SLACK = 0.02
"""How far a figure may be below its limit before that has to be lowered."""
PACKAGES = tuple(folder for folder in PRODUCT if folder != "controller")


class Figure(NamedTuple):
    """What was counted, and how many of it there are."""

    what: str
    found: int

    def row(self, most: int) -> str:
        return f"| {self.what} | {self.found:,} | {most:,}{' **over**' if self.found > most else ''} |"

    def problem(self, most: int) -> str:
        """What is wrong with this figure beside its limit; empty if nothing is."""
        if self.found > most:
            return f"{self.what}: {self.found:,}, at most {most:,}: pay for what was added"
        if self.found < most * (1 - SLACK) - 1:
            return f"{self.what}: {self.found:,}, well below {most:,}: run `python tests/house/size.py lower`"
        return ""


def limits() -> dict[str, int]:
    """The most that each figure may be, by what it counts."""
    found: dict[str, int] = tomllib.loads(LIMITS.read_text())
    return found


def lower() -> None:
    """Sets each limit to its figure where that is smaller, and adds figures that have none."""
    most = limits()
    rows = (
        f"{json.dumps(each.what)} = {min(each.found, most.get(each.what, each.found))}" for each in figures()
    )
    LIMITS.write_text("\n".join((*LIMITS.read_text().splitlines()[:HEADING], *rows)) + "\n")


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
    core = [name for name in product if not name.startswith(FENCED)]
    yield Figure("product: lines", lines_of(iter(product)))
    yield Figure("product, papers and Slurm: lines", lines_of(iter(fenced)))
    yield Figure("product, largest package: lines", max(sizes_of(core).values()))
    yield Figure("product, imports: lines", sum(import_lines((ROOT / name).read_text()) for name in product))
    yield Figure("product, names of the widest package", max(map(names_of, product)))
    marks = sum((ROOT / name).read_text().count("# fmt: skip") for name in product)
    yield Figure("product, `# fmt: skip`", marks)
    yield Figure("product, functions", sum(map(functions_in, product)))
    yield Figure("tests: lines", lines_of(name for name in tracked(".py") if name.startswith("tests/")))
    yield Figure("README: words", words("README.md".__eq__))
    yield Figure("pages: words", words(is_page))
    yield Figure("longest result page: words", max(map(len_of_page, filter(is_result, tracked(".md")))))


def names_of(name: str) -> int:
    """How many names a package exports; of a module 0."""
    return exported((ROOT / name).read_text()) if name.endswith("__init__.py") else 0


def sizes_of(names: Iterable[str]) -> Counter[str]:
    """The lines of each package among files."""
    sizes = Counter[str]()
    for name in names:
        sizes[package_of(name)] += lines_of(iter([name]))
    return sizes


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
    most = limits()
    rows = (each.row(most.get(each.what, each.found)) for each in figures())
    return "\n".join(["| figure | now | at most |", "| --- | --: | --: |", *rows])


def packages() -> str:
    """Each package with its lines and the first sentence of its `__init__`, the largest first."""
    sizes = sizes_of(name for name in tracked(".py") if name.split("/")[0] in PRODUCT)
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
    if sys.argv[1:] == ["lower"]:
        lower()
    print(packages() if sys.argv[1:] == ["packages"] else table())

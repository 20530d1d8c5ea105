"""The pages: every link leads somewhere, every page is listed, every command line shown could be typed, and
those that somebody reads while they do something fit on two screens."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from cotenant.controller.cli.verbs import BY_NAME, verb_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("experiments/**/*.md"),
        *ROOT.glob("bench/**/*.md"),
    )
    if path.name != "CHANGELOG.md"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SCREEN_LINES, SCREEN_COLUMNS = 50, 120
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if ":" in target.partition("/")[0]:
            continue  # the web
        found = page.parent / target if target else page
        assert found.exists(), f"{named(page)}: {link}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{named(page)}: {link}"


def anchors(page: Path) -> set[str]:
    """Of the headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("pages", "index"),
    [("docs", "docs/README.md"), ("experiments/results", "docs/results.md")],
    ids=["pages", "results"],
)
def test_every_page_is_listed_in_its_index(pages: str, index: str) -> None:
    """Pages of results in the table of what was found, all others in the index of pages."""
    page = ROOT / index
    listed = {(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text())}
    found = {each.resolve() for each in (ROOT / pages).glob("*.md")} - {
        (ROOT / "docs" / "README.md").resolve()
    }
    assert sorted(named(each) for each in found - listed) == []


def to_do() -> list[Path]:
    """The tutorial, the questions, the comparison and each how-to, as the list of pages sorts them."""
    sections = re.split(r"^## ", (ROOT / "docs" / "README.md").read_text(), flags=re.MULTILINE)
    links = [
        link for each in sections if each.startswith(("Tutorial", "How to")) for link in LINK.findall(each)
    ]
    return sorted(
        {ROOT / "docs" / link for link in (*links, "python.md") if re.fullmatch(r"[\w-]+\.md", link)}
    )


def test_pages_for_what_somebody_does_are_found() -> None:
    assert {"tutorial.md", "faq.md", "comparison.md", "slurm.md"} < {page.name for page in to_do()}


RESULTS = sorted((ROOT / "experiments" / "results").glob("*.md"))
RESULT_WORDS_MAX = 1_500


@pytest.mark.parametrize("page", RESULTS, ids=named)
def test_a_page_of_results_opens_with_its_answer_and_is_short(page: Path) -> None:
    title, answer, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert answer[0] not in "#|-!" and answer.rstrip().endswith((".", "**", ":"))
    assert len(page.read_text().split()) <= RESULT_WORDS_MAX


@pytest.mark.parametrize("page", to_do(), ids=named)
def test_a_page_for_what_somebody_does_fits_on_two_screens(page: Path) -> None:
    lines = [max(1, -(-len(line) // SCREEN_COLUMNS)) for line in page.read_text().splitlines()]
    assert sum(lines) <= 2 * SCREEN_LINES, f"{named(page)}: {sum(lines)} lines of {SCREEN_COLUMNS} columns"


def test_every_file_on_the_map_is_there() -> None:
    named_files = re.findall(r"`([\w/.-]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named_files) > 50
    folders = (
        "agent",
        "controller",
        "profiler",
        "checkpoint",
        "gradaccum",
        "mps",
        "tests",
        "hwtests",
        "bench",
        "experiments",
    )
    known = [
        "/" + str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")
    ]
    ends = {each[at:] for each in known for at, letter in enumerate(each) if letter == "/"}
    assert [name for name in named_files if f"/{name}" not in ends] == []


class Shown(NamedTuple):
    page: str
    line: str
    words: tuple[str, ...]


def shown() -> Iterator[Shown]:
    """The command lines in the pages' blocks and sentences and in the help pages."""
    for page in PAGES:
        text = page.read_text()
        for block in FENCE.findall(text):
            yield from lines_of(named(page), block.replace("\\\n", " "), r"(?:\$ )?cotenant (.*)")
        yield from lines_of(named(page), text, r" {4,}(?:\$ )?cotenant (.*)")
        for typed in re.findall(r"`cotenant ([^`]+)`", text):
            yield from lines_of(named(page), f"cotenant {typed}", r"cotenant (.*)")
    for verb in BY_NAME:
        for page_of_help in help_texts(command(verb)):
            yield from lines_of(f"help of {verb}", page_of_help, r" +cotenant (.*)")


def lines_of(page: str, text: str, pattern: str) -> Iterator[Shown]:
    for line in text.splitlines():
        found = re.match(pattern, line)
        if found and not found[1].startswith(("VERB", "-")):
            typed = re.split(r"\s+#|\s{3,}|[|>]|&&", found[1])[0]  # without what is said behind it
            yield Shown(page, line.strip(), tuple(shlex.split(typed)))


def help_texts(part: Any) -> Iterator[str]:
    yield part.help or ""
    for each in parts_of(part).values():
        yield from help_texts(each)


def parts_of(part: Any) -> dict[str, Any]:
    """The parts of a verb, those included that are looked up only when they are named."""
    if not isinstance(part, click.Group):
        return {}
    context = click.Context(part, resilient_parsing=True)
    return {name: part.get_command(context, name) for name in part.list_commands(context)}


@cache
def command(verb: str) -> Any:
    return verb_command(BY_NAME[verb])


def test_every_command_line_that_is_shown_has_verbs_and_flags_that_exist() -> None:
    lines = list(shown())
    assert len(lines) > 150
    assert [(each.page, each.line, wrong) for each in lines if (wrong := unknown(each.words))] == []


def unknown(typed: tuple[str, ...]) -> list[str]:
    """The verb or the flags that there are not."""
    verb, *rest = typed
    if verb not in BY_NAME:
        return [verb]
    words = rest[: rest.index("--")] if "--" in rest else rest
    part = command(verb)
    for word in words:
        part = parts_of(part).get(word, part)
    if verb == "profile" and part is command(verb):  # what names no part is measured
        part = part.commands["measure"]
    known = {flag for option in part.params for flag in option.opts} | {"-h", "--help"}
    flags = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
    return sorted(flags - known)


def test_a_wrong_verb_or_flag_would_be_found() -> None:
    assert unknown(("submitt", "train.yaml")) == ["submitt"]
    assert unknown(("sim", "compare", "x.csv", "--polcies", "a")) == ["--polcies"]
    assert unknown(("run", "-g", "2", "--", "python", "--anything")) == []

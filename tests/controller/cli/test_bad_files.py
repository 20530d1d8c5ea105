"""Files that a command line names and that cannot be read: one line, the same exit code from every verb."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cotenant = Callable[..., Any]

READS = {
    "submit a job file": ("submit", "{}.yaml"),
    "submit with a profile": ("submit", "--profile", "{}.json", "--", "true"),
    "a trace": ("sim", "trace", "show", "{}.csv"),
    "a packed trace": ("sim", "run", "{}.csv.gz", "--policy", "fifo"),
    "a trace to import": ("sim", "trace", "import", "{}.csv", "ours.csv"),
    "a pair table": ("sim", "run", "philly/0e4a51", "--policy", "fifo", "--jobs", "2", "--pairs", "{}.csv"),
    "a journal to replay": ("sim", "replay", "{}.sqlite"),
    "a journal for whatif": ("whatif", "--journal", "{}.sqlite"),
    "a journal to export": ("predictor", "export", "pairs.csv", "--journal", "{}.sqlite"),
    "a model": ("predictor", "show", "{}.json"),
    "a learned order": ("sim", "run", "philly/51b7ef", "--jobs", "2", "--policy", "scorer:model={}.json"),
    "a trade-off": ("policy", "set", "pcs", "config={}.json#p1"),
}
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 500,
    "truncated": b'{"a": ',
    "packed": gzip.compress(b"a" * 5000, mtime=0)[:30] + b"\0" * 9,
}


def file_of(verb: str, stem: str) -> str:
    """Which file its command line names."""
    found = re.search(r"\{\}[.a-z]+", " ".join(READS[verb]))
    assert found is not None
    return found[0].format(stem)


@pytest.mark.parametrize("verb", READS)
def test_what_is_not_there_is_exit_code_3(verb: str, cotenant: Cotenant, at_home: Path) -> None:
    result = cotenant(*(word.format("nowhere") for word in READS[verb]))
    assert (result.code, result.out) == (3, ""), result.err
    assert result.err.count("\n") == 1
    assert "nowhere" in result.err


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("verb", READS)
def test_what_holds_something_else_is_exit_code_2(
    verb: str, content: str, cotenant: Cotenant, at_home: Path
) -> None:
    name = file_of(verb, "odd")
    (at_home / name).write_bytes(CONTENTS[content])
    result = cotenant(*(word.format("odd") for word in READS[verb]))
    assert (result.code, result.out) == (2, ""), result.err
    assert result.err.count("\n") == 1
    assert name in result.err


@pytest.mark.parametrize("verb", READS)
def test_a_folder_is_no_file(verb: str, cotenant: Cotenant, at_home: Path) -> None:
    name = file_of(verb, "folder")
    (at_home / name).mkdir()
    result = cotenant(*(word.format("folder") for word in READS[verb]))
    assert result.code == (3 if "sqlite" in name else 2), result.err  # a state folder may hold a journal
    assert result.err.count("\n") == 1
    assert name in result.err


@pytest.mark.parametrize("verb", ["up", "controller"])
def test_a_model_that_is_not_there_stops_a_controller_before_it_starts(
    verb: str, cotenant: Cotenant, at_home: Path
) -> None:
    result = cotenant(verb, "--predictor", "nowhere.json")
    assert (result.code, result.out) == (3, ""), result.err
    assert result.err == (
        "error[not-found]: nowhere.json: there is no such file; "
        "`python -m experiments.castor.predictor train` makes one\n"
    )

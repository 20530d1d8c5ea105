"""The product of grids as an array: every combination once, in order, and nothing but the values replaced."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from cotenant.controller.submission.build import Submission
from cotenant.controller.submission.options import BY_KEY, BadSubmission, Options, read
from cotenant.controller.submission.quantities import grid_values
from cotenant.controller.wire import clients as wire
from tests.controller.cli.test_submission import file, given, submitted

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: "key" not in name)
VALUES = st.text("abc01.-/=:{}$ ", min_size=1, max_size=6).filter(
    lambda text: text == text.strip() and ".." not in text
)
GRIDS = st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=4, unique=True), min_size=1, max_size=3)


def grid(*texts: str, **others: str) -> Options:
    return {**given(**others), "grid": read(BY_KEY["grid"], texts, "--grid")}


def made(folder: Path, *command: str, flags: Options) -> Submission:
    return submitted(folder, "python3", "-c", "pass", *command, flags=flags, command_only=True)


def refused(folder: Path, *command: str, flags: Options) -> str:
    with pytest.raises(BadSubmission) as error:
        made(folder, *command, flags=flags)
    return error.value.sentence


@for_all(grids=GRIDS)
def test_every_combination_is_one_task_and_the_last_grid_changes_fastest(
    grids: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    flags = grid(*(f"{name}={','.join(values)}" for name, values in grids.items()))
    request = made(folder, *(f"--{name}={{{name}}}" for name in grids), flags=flags).request
    product = [dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
    assert [dict(spec.parameters) for spec in request.specs] == product
    assert list(request.array_indices) == list(range(len(product)))
    for spec, values in zip(request.specs, product, strict=True):
        assert spec.launch.argv[3:] == tuple(f"--{name}={value}" for name, value in values.items())
        for name, value in values.items():
            assert spec.launch.env[f"COTENANT_GRID_{name.upper()}"] == value


@for_all(first=st.integers(-50, 50), count=st.integers(1, 50), step=st.integers(1, 9))
def test_a_range_has_both_its_ends(first: int, count: int, step: int) -> None:
    last = first + (count - 1) * step
    wanted = tuple(str(first + at * step) for at in range(count))
    assert grid_values(f"n={first}..{last}..{step}").values == wanted
    if step == 1:
        assert grid_values(f"n={first}..{last}").values == wanted


@for_all(
    first=st.integers(-999, 999), count=st.integers(1, 40), step=st.integers(1, 99), down=st.booleans(),
    places=st.integers(0, 4), beyond=st.integers(0, 98),
)  # fmt: skip
def test_decimals_are_counted_exactly_and_written_with_the_places_that_were_typed(
    first: int, count: int, step: int, down: bool, places: int, beyond: int
) -> None:
    """Counted here in whole units of the last place."""

    def text(units: int) -> str:
        digits = f"{abs(units):0{places + 1}d}"
        point = len(digits) - places
        return "-" * (units < 0) + digits[:point] + ("." + digits[point:] if places else "")

    step = -step if down else step
    last = first + (count - 1) * step + (min(beyond, abs(step) - 1) * (-1 if down else 1))
    wanted = tuple(text(first + at * step) for at in range(count))
    assert grid_values(f"n={text(first)}..{text(last)}..{text(step)}").values == wanted


@for_all(first=st.integers(0, 30), count=st.integers(1, 40), width=st.integers(1, 5))
def test_zeros_in_front_stay(first: int, count: int, width: int) -> None:
    names = tuple(str(first + at).zfill(width) for at in range(count))
    assert grid_values(f"n={names[0]}..{names[-1]}").values == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (".1...3", "looks like a range and is none: '.1...3'; write FIRST..LAST..STEP"),
        ("1e-4..1e-2", "looks like a range and is none: '1e-4..1e-2'"),
        ("0.1..0.3", "needs a step between decimals: '0.1..0.3'; such as 0.1..0.3..0.1"),
        ("5..1", "has an empty range: '5..1'; 5..1..-1 counts down"),
        ("5..1..2", "has an empty range"),
        ("8..010", "write 8 as wide as 010"),
        ("5..", "looks like a range and is none"),
        ("..5", "looks like a range and is none"),
        ("1..2..3..4", "looks like a range and is none"),
        ("2027-01-01..2027-02-01", """'"2027-01-01..2027-02-01"' for this word itself"""),
        ("0 .. 4", "looks like a range and is none"),
        ("a,1...3", "looks like a range and is none"),
    ],
)
def test_what_looks_like_a_range_and_is_none_is_refused_with_what_to_type(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        grid_values(f"n={text}")


@pytest.mark.parametrize(
    "word", ["../data", "a..b", "..", "v1..v2", "1..n", "...", '"x"', "1e-4", "-0.5", "1.5e..x"]
)
def test_words_that_are_no_numbers_are_themselves(word: str) -> None:
    assert grid_values(f"n={word}").values == (word,)


def test_in_quotes_a_range_is_a_word() -> None:
    assert grid_values('n="0.1..0.3",1..2').values == ("0.1..0.3", "1", "2")


@for_all(text=st.text("0123456789.-+eE ", max_size=12))
def test_no_word_of_digits_with_two_points_stays_as_it_is(text: str) -> None:
    try:
        found = grid_values(f"n={text}").values
    except ValueError:
        return
    assert not any(".." in value and re.search("[0-9]", value) for value in found)


@for_all(text=st.text(max_size=40))
def test_whatever_is_written_is_a_grid_or_a_sentence(text: str) -> None:
    try:
        found = grid_values(f"n={text}")
    except ValueError:
        return
    else:
        assert found.values and all(value and value.isprintable() for value in found.values)


def test_other_braces_stay_and_a_slip_is_refused(tmp_path: Path) -> None:
    flags = grid("lr=.1")
    words = ('{"lr": {lr}, "a": {}}', "${lr}", "{other_thing}", "{0}", "{lr!r}", "{{lr}}")
    assert made(tmp_path, *words, flags=flags).request.specs[0].launch.argv[3:] == (
        '{"lr": .1, "a": {}}', "${lr}", "{other_thing}", "{0}", "{lr!r}", "{.1}",
    )  # fmt: skip
    assert "{lrr} is the name of no --grid; did you mean lr?" in refused(tmp_path, "{lr} {lrr}", flags=flags)
    assert not made(tmp_path, "{lr}", flags={}).request.array_indices, "without a grid braces are braces"


def test_values_go_into_variables_name_output_and_link(tmp_path: Path) -> None:
    flags = grid(
        "lr=.1,.2%1", env="RATE=x{lr}", name="at-{lr}", output="{lr}.log", link="https://a.example/{lr}"
    )
    first, second = made(tmp_path, flags=flags).request.specs
    assert (first.launch.env["RATE"], second.name, second.launch.output) == (
        "x.1", "at-.2", f"{tmp_path}/.2.log",
    )  # fmt: skip
    assert (second.link, first.array_limit) == ("https://a.example/.2", 1)


def test_a_script_may_use_the_variable_alone(tmp_path: Path) -> None:
    script = file(
        tmp_path / "job.sh",
        "#!/bin/sh\n#COTENANT --grid lr=.1,.2\nexec train --lr $COTENANT_GRID_LR\n",
        0o755,
    )
    assert [spec.parameters for spec in submitted(tmp_path, str(script)).request.specs] == [
        (("lr", ".1"),), (("lr", ".2"),),
    ]  # fmt: skip


def test_a_yaml_file_has_grids_as_lists_or_ranges(tmp_path: Path) -> None:
    path = file(
        tmp_path / "job.yaml", "command: python3 -c pass {lr} {seed}\ngrid: {lr: [.1, .01], seed: 0..1%2}\n"
    )
    request: wire.Submit = submitted(tmp_path, str(path)).request
    assert [dict(spec.parameters) for spec in request.specs][1] == {"lr": ".1", "seed": "1"}
    assert request.specs[0].array_limit == 2
    file(path, "command: python3 -c pass {lr}\ngrid: {lr: ['1,2']}\n")
    with pytest.raises(BadSubmission, match="has a value with a comma in it"):
        submitted(tmp_path, str(path))


def test_grids_that_make_no_sense_together_are_refused(tmp_path: Path) -> None:
    many = grid("a=1..40", "b=1..40")
    assert "a (40) x b (40) make 1600 tasks of 1000" in refused(tmp_path, "{a}{b}", flags=many)
    assert "does not go with --array" in refused(tmp_path, "{a}", flags=grid("a=1", array="0-3"))
    assert "are one variable" in refused(tmp_path, "{a.b}{a-b}", flags=grid("a.b=1", "a-b=1"))
    assert "say one of them" in refused(tmp_path, "{a}{b}", flags=grid("a=1%2", "b=1%3"))

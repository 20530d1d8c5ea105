"""Who steers: the lowest number that is not over, of those that only an operator can have written."""

from __future__ import annotations

import pytest

from cotenant.controller.slurm.steer.core.queue import Mark, marks_in, rival


def mark(number: int, *, host: str = "a", until_s: float = 200.0, state: str = "/s") -> Mark:
    return Mark(job_id=number, host=host, pid=7, until_s=until_s, state=state)


MINE = mark(5)
CASES = {
    "nobody else": ([], None),
    "one before us": ([mark(3, host="b")], 3),
    "one after us": ([mark(6, host="b")], None),
    "one whose time is over": ([mark(3, host="b", until_s=50.0)], None),
    "an earlier run of ours": ([mark(3)], None),
    "another file on our host": ([mark(3, state="/t")], 3),
    "the first of several": ([mark(4, host="c"), mark(2, host="b"), mark(1, until_s=0.0, host="d")], 2),
}


@pytest.mark.parametrize(("marks", "number"), CASES.values(), ids=CASES.keys())
def test_rival(marks: list[Mark], number: int | None) -> None:
    found = rival([*marks, MINE], MINE, 100.0)
    assert (found.job_id if found else None) == number


def test_a_mark_is_read_as_it_was_written() -> None:
    text = f"5|{MINE.comment}END\n6|END\n7|cotenant-steer/1;a;bEND\n8|somebody;elses;1;2;commentEND\n"
    assert list(marks_in(text, "END")) == [MINE]

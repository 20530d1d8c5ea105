"""Words that name jobs: what they mean, and what names no job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import read_job_words, split_words

MEANS = {
    "12": ["12"], "12_3": ["12_3"], "12,14": ["12", "14"], "12_1,12_2": ["12_1", "12_2"],
    "12_[1-3]": ["12_[1-3]"], "12_[1-3,7]": ["12_[1-3]", "12_7"], "12_[0-9%2]": ["12_[0-9]"],
    "12_[0-8:4,9]": ["12_[0-8:4]", "12_9"], "12_[5]": ["12_5"], "12_[4-4]": ["12_4"],
    " 12_[1-2] , 13": ["12_[1-2]", "13"], "7,": ["7"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), MEANS.items())
def test_what_a_word_means(text: str, words: list[str]) -> None:
    assert [str(word) for word in read_job_words([text])] == words


@pytest.mark.parametrize(
    "text", ["", ",", "x", "12_", "_3", "12_[", "12_[]", "12_[3-1]", "12_[1-3", "12_[1,3", "12_[0-9:0]",
             "12_[1--3]", "12_x", "new-1", "12 13", "12.0", "\u0661", "\u00b9", "12_[%2]", "12_[1-3]x"]
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="names no job: write 7, 38_2"):
        read_job_words(["7", text])


def test_lists_are_divided_outside_brackets_alone() -> None:
    assert split_words("afterok:12_[0-8:4]:13,afterany:1_[2,3]") == [
        "afterok:12_[0-8:4]:13",
        "afterany:1_[2,3]",
    ]
    assert split_words("afterok:12_[0-8:4]:13", ":") == ["afterok", "12_[0-8:4]", "13"]


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 60))
def test_a_list_of_indices_names_its_tasks_and_no_others(indices: set[int], other: int) -> None:
    words = read_job_words([f"5_[{','.join(map(str, sorted(indices)))}]"])
    assert any(word.has_task(f"5_{other}") for word in words) == (other in indices)
    assert not any(word.has_task(f"55_{other}") or word.has_task("5") for word in words)

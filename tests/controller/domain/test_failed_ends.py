"""When two ends in a row are one and the same: then the second is the job's own."""

from __future__ import annotations

import pytest

from cotenant.controller.domain import FailedEnd

PAIRS: dict[str, tuple[tuple[str, int | None, float], tuple[str, int | None, float], bool]] = {
    # name: (rule, exit code, seconds) of both, whether the second repeats the first
    "the same, to the second": (("NCCL", 1, 3600.0), ("NCCL", 1, 3600.0), True),
    "a tenth later": (("NCCL", 1, 3600.0), ("NCCL", 1, 3990.0), True),
    "a tenth earlier": (("NCCL", 1, 3600.0), ("NCCL", 1, 3250.0), True),
    "more than a tenth later": (("NCCL", 1, 3600.0), ("NCCL", 1, 4010.0), False),
    "at the start, which takes longer on a busy host": (("NCCL", 1, 3.0), ("NCCL", 1, 12.5), True),
    "at the start and later": (("NCCL", 1, 3.0), ("NCCL", 1, 13.5), False),
    "another rule": (("NCCL", 1, 60.0), ("lost peer", 1, 60.0), False),
    "another exit code": (("NCCL", 1, 60.0), ("NCCL", 134, 60.0), False),
    "no exit code, twice": (("supervisor gone", None, 60.0), ("supervisor gone", None, 61.0), True),
    "a cause that was seen, twice": (("", None, 60.0), ("", None, 60.0), False),
}


@pytest.mark.parametrize(("first", "second", "repeats"), PAIRS.values(), ids=PAIRS)
def test_an_end_that_repeats_another(
    first: tuple[str, int | None, float], second: tuple[str, int | None, float], repeats: bool
) -> None:
    before, later = (
        FailedEnd(rule=rule, exit_code=code, ran_s=ran_s) for rule, code, ran_s in (first, second)
    )
    assert before.is_repeated_by(later) is repeats

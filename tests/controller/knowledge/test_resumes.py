"""How resumes of a kind are counted: by user, command and code, and no more kinds than are kept."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import Job, ResumeCounts, because
from cotenant.controller.knowledge import Resumes, resumes
from tests.controller.building import spec

HAPPENINGS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60)
"""Which kind was resumed, and whether that was proven."""


def job(name: str, **more: object) -> Job:
    argv = ("python", f"{name}.py")
    return Job(spec=spec(1, argv=argv, **more), number=1, submitted_s=0.0, reason=because("submitted", "ann"))


def test_a_kind_is_one_users_command_with_its_code_whatever_its_seed() -> None:
    known, mine = Resumes(), job("a")
    known.note(mine, is_proven=True)
    seeded = Job(
        spec=spec(2, argv=("python", "a.py", "--seed", "3")),
        number=2,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
    )
    assert known.counts(seeded).proof == "proven"
    others = (job("b"), job("a", user="bob"), job("a", code_sha256="1" * 64))
    assert {known.counts(other) for other in others} == {ResumeCounts()}


@given(happenings=HAPPENINGS)
def test_the_number_of_refuted_kinds_is_that_of_the_table_also_after_it_was_saved(
    happenings: list[tuple[int, bool]],
) -> None:
    known = Resumes()
    for kind, is_proven in happenings:
        known.note(job(str(kind)), is_proven=is_proven)
    assert known.kinds_refuted == sum(bool(each.refuted) for each in known.known.values())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Resumes) == known


def test_the_kind_that_was_resumed_longest_ago_is_forgotten() -> None:
    known = Resumes()
    known.note(job("first"), is_proven=False)
    for number in range(resumes.KINDS_MAX):
        known.note(job(str(number)), is_proven=True)
    assert (known.kinds, known.kinds_refuted) == (resumes.KINDS_MAX, 0)
    assert known.counts(job("first")).proof == "unproven"

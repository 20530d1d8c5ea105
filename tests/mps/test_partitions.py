"""Static partitions: the words of daemons, how a device is divided, and an owner who wants them divided.

The answers are those of the documents, and of programs as others have printed them; the daemons are the
stub's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.mps import commands, process
from cotenant.mps.channel import Channel
from cotenant.mps.daemon import Daemon
from cotenant.mps.environment import ClientLimits, client_environment
from cotenant.mps.partitions import Layout, Partition, created, in_words, layouts, shares
from cotenant.mps.replies import Rejected
from tests.mps.conftest import Place
from tests.mps.test_daemon import UUID, Owner, identity

OTHER = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
DX4 = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
SLASHES = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA"
HEAD = "GPU  Partition  free  used  free  used  clients\n                chunk chunk SM    SM\n"

# --- Words -----------------------------------------------------------------------------------------

TABLES = {
    "with dashes": f"{HEAD}GPU-74d43ed3  -  3  7  24  56  -\nGPU-74d43ed3  {DX4}  -  7  -  56  -\n",
    "without": f"{HEAD}GPU-74d43ed3 3 7 24 56\nGPU-74d43ed3 {DX4} 7 56 No\n",
}


@pytest.mark.parametrize("answer", TABLES.values(), ids=TABLES.keys())
def test_a_table_is_read_in_either_spelling(answer: str) -> None:
    part = Partition(name=f"{OTHER}/{DX4}", chunks=7, multiprocessors=56, in_use=False)
    assert layouts(answer, (UUID, OTHER)) == {OTHER: Layout(free_chunks=3, partitions=(part,))}


def test_partitions_with_clients_with_slashes_and_of_strangers() -> None:
    answer = (
        f"{HEAD}GPU-74d43ed3 - 2 13 36 96 -\nGPU-74d43ed3 Bx4A - 5 - 40 Yes\n"
        f"GPU-74d43ed3 {SLASHES} - 8 - 64 Perhaps\nGPU-99999999 - 1 0 8 0 -\n"
    )
    (layout,) = layouts(answer, (OTHER,)).values()
    assert [each.identifier for each in layout.partitions] == [SLASHES, "Bx4A"], "the largest first"
    assert [each.in_use for each in layout.partitions] == [True, True], (
        "an unknown word is not taken for free"
    )


def test_the_part_that_has_the_rest_of_the_device_may_be_the_largest() -> None:
    answer = (
        f"{HEAD}GPU-74d43ed3 - 0 15 0 132 -\nGPU-74d43ed3 Dx4A - 8 - 64 -\nGPU-74d43ed3 Cx4A - 7 - 68 -\n"
    )
    (layout,) = layouts(answer, (OTHER,)).values()
    assert in_words(layout.partitions) == "static partitions of 68 + 64 multiprocessors"


@pytest.mark.parametrize(
    "answer",
    ['Unknown command "lspart"', "", "No CUDA-capable device is detected", "GPU-74d43ed3 - 3 7\n", HEAD],
)
def test_what_is_no_table_is_refused(answer: str) -> None:
    with pytest.raises(Rejected):
        layouts(answer, (OTHER,))


@given(st.text(alphabet="GPU-74d3 /xADYes\n", max_size=200))
def test_no_answer_is_more_than_refused(answer: str) -> None:
    try:
        found = layouts(answer, (OTHER,))
    except Rejected:
        return
    assert set(found) == {OTHER}


@pytest.mark.parametrize("answer", [f"{OTHER}/{SLASHES}\n", f"Partition {OTHER}/{SLASHES} created\n"])
def test_the_name_of_a_new_partition_is_found(answer: str) -> None:
    assert created(answer) == f"{OTHER}/{SLASHES}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Failed to fulfill the requested SM partition of 9 chunks, error CUDA_ERROR_X", "9 chunks"),
        ('Unknown command "sm_partition"', "does not know static partitions"),
        ("", "no word"),
        ("GPU-74d43ed3/D", "GPU-74d43ed3/D"),
    ],
)
def test_an_answer_without_a_name_made_none(answer: str, why: str) -> None:
    with pytest.raises(Rejected, match=why):
        created(answer)


@given(st.integers(1, 200), st.integers(1, 8))
def test_a_device_is_divided_completely_and_nearly_equally(chunks: int, parts: int) -> None:
    if chunks < parts:
        with pytest.raises(Rejected, match=f"{chunks} free chunks"):
            shares(chunks, parts)
        return
    found = shares(chunks, parts)
    assert (sum(found), len(found)) == (chunks, parts)
    assert min(found) >= 1
    assert max(found) - min(found) <= 1
    assert list(found) == sorted(found, reverse=True)


def test_a_client_of_a_partition_names_it_and_no_percentage(place: Place) -> None:
    name = f"{UUID}/{DX4}"
    pipe = place.channel.pipe_directory
    assert client_environment(pipe, ClientLimits(partition=name))["CUDA_MPS_SM_PARTITION"] == name
    assert "CUDA_MPS_SM_PARTITION" not in client_environment(pipe, ClientLimits())
    with pytest.raises(ValueError, match="means nothing"):
        ClientLimits(partition=name, active_thread_percentage=50.0)
    with pytest.raises(ValueError, match="is no partition"):
        ClientLimits(partition="left")


# --- An owner who wants them -----------------------------------------------------------------------


@pytest.fixture
def divider(place: Place) -> Iterator[Owner]:
    place.tell(partitions=True, gpu=True)
    made = Owner(place, parts=2)
    yield made
    made.daemon.release()


def offers(place: Place, **facts: Any) -> None:
    place.tell(**{"partitions": True, "gpu": True, **facts})


def test_the_first_look_divides_the_device_and_the_second_changes_nothing(
    divider: Owner, place: Place
) -> None:
    first = divider.look()
    assert (first.shares, first.why_not, first.unpartitioned) == (True, "", "")
    (found,) = place.daemons()
    assert found.partitioned
    parts = first.partitions[UUID]
    assert [(each.chunks, each.multiprocessors) for each in parts] == [(8, 64), (7, 56)]
    assert in_words(parts) == "static partitions of 64 + 56 multiprocessors"
    second = divider.look(in_use=True)
    assert (second.daemon, second.partitions, second.said) == (first.daemon, first.partitions, ())
    assert commands.default_percentage(place.channel) == 100.0, "a percentage means nothing here"


def test_the_next_life_goes_on_with_the_partitions_that_there_are(divider: Owner) -> None:
    first = divider.look()
    divider.daemon.release()
    divider.daemon = divider.again()
    again = divider.look(in_use=True)
    assert (again.daemon, again.partitions, again.shares) == (first.daemon, first.partitions, True)


def test_after_a_kill_the_new_daemon_divides_again(divider: Owner, place: Place) -> None:
    first = divider.look()
    assert process.end(identity(first), 10)
    second = divider.look()
    assert second.daemon != first.daemon
    assert len(second.partitions[UUID]) == 2
    assert second.shares


def test_partitions_that_went_are_made_anew_only_when_nobody_is_there_or_may_come(
    divider: Owner, place: Place
) -> None:
    before = divider.look()
    commands.remove_partition(place.channel, UUID, before.partitions[UUID][0].identifier)
    for in_use, offered in ((True, False), (False, True)):
        divider.now_s += 100.0
        seen = divider.daemon.look(in_use=in_use, offered=offered)
        assert not seen.shares
        assert "jobs may be on it" in seen.why_not
        assert seen.daemon == before.daemon
    after = divider.look()
    assert (after.shares, after.daemon) == (True, before.daemon)
    assert [each.chunks for each in after.partitions[UUID]] == [8, 7]


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a program without them": ({"partitions": False}, "did not start"),
    "no GPU for the daemon": ({"gpu": False}, "No CUDA-capable device"),
    "too few chunks": ({"chunks": 1}, "1 free chunks"),
    "said to be made and not made": ({"forgetful": True}, "are not those that are listed"),
}


@pytest.mark.parametrize(("facts", "why"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_said_and_leaves_a_daemon_that_works_as_ever(
    place: Place, facts: dict[str, Any], why: str
) -> None:
    offers(place, **facts)
    owner = Owner(place, parts=2)
    try:
        first = owner.look()
        assert (first.shares, first.why_not, first.partitions) == (True, "", {})
        assert why in first.unpartitioned
        assert sum("static partitions are not used" in line for line in first.said) == 1
        (found,) = place.daemons()
        assert (found.identity, found.partitioned) == (first.daemon, False)
        assert commands.default_percentage(place.channel) == 60.0
        offers(place)
        second = owner.look()
        assert (second.daemon, second.said) == (first.daemon, ()), "it is asked for once in a life"
    finally:
        owner.daemon.release()


class Impatient(Channel):
    """With the one question that is not answered."""

    def ask(self, command: str) -> str:
        self.answer_s = 0.5 if command == commands.PARTITIONS_WORD else 30.0
        return super().ask(command)


def test_a_daemon_that_hangs_when_it_is_asked_for_partitions_is_replaced_by_one_without(place: Place) -> None:
    offers(place, stalls=True)
    owner = Owner(place, parts=2)
    owner.daemon.release()
    channel = Impatient(pipe_directory=owner.spec.pipe_directory, program=place.program)
    owner.daemon = Daemon(owner.spec, clock=lambda: owner.now_s, channel=channel)
    seen = owner.look()
    assert (seen.shares, seen.partitions) == (True, {})
    assert "does not answer when it is asked for them" in seen.unpartitioned
    (found,) = place.daemons()
    assert not found.partitioned
    owner.daemon.release()


def test_a_sentence_for_an_answer_and_a_table_without_dashes_do_as_well(place: Place) -> None:
    offers(place, wordy=True, chunks=4)
    owner = Owner(place, parts=2)
    assert [each.chunks for each in owner.look().partitions[UUID]] == [2, 2]
    owner.daemon.release()


def test_the_wish_for_partitions_waits_for_the_jobs_of_the_daemon_that_is_there(place: Place) -> None:
    offers(place)
    plain = Owner(place)
    first = plain.look()
    plain.daemon.release()
    owner = Owner(place, parts=2)
    try:
        busy = owner.look(in_use=True)
        assert (busy.shares, busy.daemon, busy.partitions) == (True, first.daemon, {})
        assert "replaced when the jobs on it have ended" in busy.unpartitioned
        owner.now_s += 100.0
        withdrawn = owner.daemon.look(in_use=False, offered=True)
        assert (withdrawn.shares, withdrawn.daemon) == (False, first.daemon)
        assert "until nobody can be sent to it" in withdrawn.why_not
        divided = owner.look()
        assert divided.shares
        assert divided.daemon != first.daemon
        assert len(divided.partitions[UUID]) == 2
    finally:
        owner.daemon.release()


def test_taken_back_the_partitions_serve_newcomers_until_their_jobs_have_ended(place: Place) -> None:
    offers(place)
    divider = Owner(place, parts=2)
    before = divider.look()
    divider.daemon.release()
    owner = Owner(place)
    try:
        busy = owner.look(in_use=True)
        assert (busy.shares, busy.partitions) == (True, before.partitions)
        idle = owner.look()
        assert (idle.shares, idle.partitions, idle.unpartitioned) == (True, {}, "")
        assert not place.daemons()[0].partitioned
    finally:
        owner.daemon.release()

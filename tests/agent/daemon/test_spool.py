"""The spool reads back what was written, whatever happened to the file in between."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.notes import AnyNote, Bound, Confirmed, Kept, Obeyed, Reported
from cotenant.agent.daemon.core.remembered import Attempt, StopAsked
from cotenant.agent.daemon.spool import COMPACT_ABOVE, Spool, SpoolProblem
from cotenant.controller.domain import AttemptNo, CommandId, DeviceId, ExitVerdict, HostId, JobId
from cotenant.controller.domain import events as ev


def note(number: int) -> AnyNote:
    """A different kind for each number, with all that a note can hold."""
    attempt = Attempt(
        job_id=JobId(str(number)),
        attempt=AttemptNo(1),
        command_id=CommandId(number),
        devices=(DeviceId("h/cpu0"),),
        stop=StopAsked(save=True, deadline_s=1.5, reason="why"),
        settled_age_s=2.5,
    )
    ended = ev.AttemptEnded(
        job_id=JobId(str(number)),
        attempt=AttemptNo(1),
        host_id=HostId("h"),
        verdict=ExitVerdict(outcome="finished", exit_code=0),
    )
    kinds: list[AnyNote] = [
        Bound(journal=f"j{number}"),
        Kept(attempt=attempt),
        Reported(sequence=number, event=ended, attempt=attempt),
        Obeyed(command_id=CommandId(number)),
        Confirmed(sequence=number),
    ]
    return kinds[number % len(kinds)]


NOTES = [note(number) for number in range(20)]


def written(path: Path, notes: list[AnyNote]) -> Path:
    spool = Spool(path)
    spool.load()
    for each in notes:
        spool.append([each])
    spool.close()
    return path


def read(path: Path) -> tuple[list[AnyNote], int]:
    spool = Spool(path)
    notes = spool.load()
    spool.close()
    return notes, spool.damaged


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = written(tmp_path / "spool", NOTES)
    assert read(path) == (NOTES, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_several_notes_are_one_flush(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.load()
    spool.append(NOTES[:3])
    spool.append([])
    spool.close()
    assert read(spool.path) == (NOTES[:3], 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(cut=st.integers(1, 400))
def test_a_torn_end_costs_only_what_was_torn(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "spool"
    path.unlink(missing_ok=True)
    written(path, NOTES)
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    notes, damaged = read(path)
    assert damaged == 0
    assert notes == NOTES[: len(notes)]
    # And the next note lands right behind them.
    written(path, [note(99)])
    assert read(path)[0] == [*notes, note(99)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_note(tmp_path: Path, place: float, bit: int) -> None:
    path = tmp_path / "spool"
    for each in tmp_path.iterdir():
        each.unlink()
    written(path, NOTES)
    data = bytearray(path.read_bytes())
    index = int(place * len(data))
    if index == 7:  # The version: another one is refused, whatever made it another.
        index = 8
    data[index] ^= 1 << bit
    path.write_bytes(data)
    notes, damaged = read(path)
    assert len(notes) >= len(NOTES) - 1
    assert [each for each in NOTES if each in notes] == notes, "in order, and nothing invented"
    if damaged:
        assert (tmp_path / "spool.damaged-1").read_bytes() == bytes(data)
        assert read(path) == (notes, 0), "the damage is repaired"


def test_garbage_of_any_length_is_survived(tmp_path: Path, seed: int) -> None:
    import random

    generator = random.Random(seed)
    path = written(tmp_path / "spool", NOTES)
    whole = path.read_bytes()
    for _ in range(50):
        middle = generator.randrange(8, len(whole))
        noise = generator.randbytes(generator.randrange(200))
        path.write_bytes(whole[:middle] + noise + whole[middle:])
        notes, _ = read(path)
        assert len(notes) >= len(NOTES) - 1
        assert all(each in NOTES for each in notes)


def test_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path / "spool", NOTES)
    data = bytearray(path.read_bytes())
    data[7] += 1
    path.write_bytes(data)
    with pytest.raises(SpoolProblem, match="upgrade it here"):
        read(path)
    assert path.read_bytes() == bytes(data), "and left as it is"


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_text("this is somebody's letter, not a spool")
    with pytest.raises(SpoolProblem, match="is not an agent's spool"):
        read(path)
    assert path.read_text().startswith("this is")


def test_compaction_keeps_the_memory_and_bounds_the_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.load()
    memory = AgentMemory()
    ended = note(2)
    assert isinstance(ended, Reported)
    biggest = 0
    for number in range(1, 6001):
        notes: list[AnyNote] = [
            Reported(sequence=number, event=ended.event, attempt=ended.attempt),
            Confirmed(sequence=number),
        ]
        for each in notes:
            memory.fold(each)
        if number % 50 == 0:  # Not one by one: each append waits for the disk.
            spool.append(notes * 50)
        if spool.is_bloated:
            spool.compact(memory.as_notes())
        biggest = max(biggest, spool.path.stat().st_size)
    assert biggest < 2 * COMPACT_ABOVE
    spool.compact(memory.as_notes())
    spool.close()
    again = AgentMemory(read(spool.path)[0])
    assert list(again.as_notes()) == list(memory.as_notes())
    assert spool.path.stat().st_size < 10_000


def test_a_full_disk_changes_nothing_and_the_note_can_be_tried_again(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    path = written(tmp_path / "spool", NOTES[:5])
    spool = Spool(path)
    spool.load()
    kept, spool._file = spool._file, os.open(full, os.O_RDWR)
    with pytest.raises(OSError, match=r"No space left|Invalid argument"):
        spool.append(NOTES[5:7])
    os.close(spool._file)
    spool._file = kept
    spool.append(NOTES[5:7])
    spool.close()
    assert read(path) == (NOTES[:7], 0)

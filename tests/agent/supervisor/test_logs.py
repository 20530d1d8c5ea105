"""Bounded logs: whatever is written in whatever pieces, readers see the head, a marker, and the tail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.supervisor.processes.logs import (
    LogWriter,
    cut_marker,
    errors_path,
    log_end,
    log_path,
    read_log,
)


def read_all(folder: Path, *, limit: int = 1000, offset: int = 0) -> bytes:
    data = b""
    while True:
        part = read_log(folder, 0, offset, limit)
        assert part is not None
        if part.next_offset == offset:
            assert part.data == b""
            assert offset == part.end
            return data
        data, offset = data + part.data, part.next_offset


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def write(folder: Path, *pieces: bytes, bytes_max: int) -> None:
    writer = LogWriter(folder, 0, bytes_max)
    for piece in pieces:
        writer.write(piece)
    writer.close()


def test_a_log_within_its_limit_is_one_file_of_raw_bytes(tmp_path: Path) -> None:
    write(tmp_path, b"one\n", b"\xfftwo", bytes_max=1000)
    assert log_path(tmp_path, 0).read_bytes() == b"one\n\xfftwo"
    assert read_all(tmp_path) == b"one\n\xfftwo"


def test_the_middle_is_cut_and_the_reader_is_told_how_much(tmp_path: Path) -> None:
    text = bytes(range(256)) * 40
    write(tmp_path, text, bytes_max=400)
    segments = sorted(int(path.suffix[1:]) for path in tmp_path.iterdir() if path.suffix != ".log")
    assert len(segments) == 2
    assert read_all(tmp_path) == text[:200] + cut_marker(segments[0] - 200) + text[segments[0] :]
    assert len(text) - segments[0] > 100, "at least a quarter of the limit is the end"


@given(
    pieces=st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.booleans()), max_size=30),
    limit=st.integers(1, 50),
)
def test_standard_error_can_be_read_apart_from_one_log(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[bytes, bool]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    writer = LogWriter(folder, 0, 10_000)
    streams = {False: b"", True: b""}
    for data, is_error in pieces:
        writer.write(data, is_error=is_error)
        streams[is_error] += data
    writer.close()
    assert read_all(folder, limit=limit) == b"".join(data for data, _ in pieces)
    found = {False: b"", True: b""}
    offset = 0
    while (part := read_log(folder, 0, offset, limit, errors_apart=True)) and part.next_offset > offset:
        found[part.is_error] += part.data
        offset = part.next_offset
    assert found == streams


def test_so_many_changes_between_the_streams_are_kept_and_no_more(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, 10_000, stretches_max=2)
    for _ in range(4):
        writer.write(b"out\n")
        writer.write(b"err\n", is_error=True)
    writer.close()
    assert errors_path(tmp_path, 0).stat().st_size == 32
    assert read_all(tmp_path) == b"out\nerr\n" * 4
    last = read_log(tmp_path, 0, 28, 100, errors_apart=True)
    assert last is not None and (last.data, last.is_error) == (b"err\n", False)


@given(
    pieces=st.lists(st.binary(max_size=60), max_size=30),
    bytes_max=st.integers(8, 200),
    limit=st.integers(1, 50),
)
def test_head_and_tail_are_always_there_and_the_disk_is_bounded(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], bytes_max: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    writer = LogWriter(folder, 0, bytes_max)
    text = b""
    for piece in pieces:
        writer.write(piece)
        text += piece
        assert disk_bytes(folder) <= bytes_max
        assert log_end(folder, 0) == writer.end == len(text)
    writer.close()
    seen = read_all(folder, limit=limit)
    head, tail = text[: bytes_max // 2], text[len(text) - bytes_max // 4 :]
    assert seen.startswith(head)
    assert seen.endswith(tail)
    if len(text) <= bytes_max // 2:
        assert seen == text


def test_what_a_full_disk_swallowed_is_a_gap_and_nothing_shifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path, 0, 1000)
    writer.write(b"before\n")
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda *_: 0)
        with pytest.raises(OSError, match="No space left"):
            writer.write(b"lost\n")
    writer.write(b"after\n")
    writer.close()
    assert read_all(tmp_path) == b"before\n" + cut_marker(5) + b"after\n"
    assert writer.end == log_end(tmp_path, 0)


def test_following_sees_every_byte_as_it_comes(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, 10_000)
    offset, seen = 0, b""
    for number in range(100):
        writer.write(b"line %d\n" % number)
        part = read_log(tmp_path, 0, offset, 1 << 20)
        assert part is not None
        seen, offset = seen + part.data, part.next_offset
    writer.close()
    assert seen == b"".join(b"line %d\n" % number for number in range(100))


def test_from_the_end(tmp_path: Path) -> None:
    write(tmp_path, b"0123456789", bytes_max=1000)
    part = read_log(tmp_path, 0, -3, 100)
    assert part is not None
    assert part.data == b"789"
    assert read_all(tmp_path, offset=-100 + 90) == b"0123456789"


def test_an_offset_beyond_the_end_waits_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, b"abc", bytes_max=1000)
    part = read_log(tmp_path, 0, 99, 10)
    assert part is not None
    assert (part.data, part.next_offset, part.end) == (b"", 3, 3)


def test_no_log_is_not_an_empty_one(tmp_path: Path) -> None:
    assert read_log(tmp_path, 0, 0, 10) is None
    assert read_log(tmp_path / "nowhere", 0, 0, 10) is None
    assert log_end(tmp_path, 0) == 0


def test_ranks_do_not_mix(tmp_path: Path) -> None:
    for rank in (1, 10, 11):
        writer = LogWriter(tmp_path, rank, 20)
        writer.write(b"%d" % rank * 30)
        writer.close()
    part = read_log(tmp_path, 1, 0, 100)
    assert part is not None
    assert part.data == b"1" * 10


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    write(tmp_path, b"x" * 100, bytes_max=20)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_the_files_to_the_jobs_user(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, 20, owner=(65534, 65534))
    writer.write(b"x" * 100)
    writer.close()
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {65534}

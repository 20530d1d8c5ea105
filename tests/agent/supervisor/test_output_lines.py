"""Two streams of one rank, in one log: neither stands within a line of the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.supervisor.processes.logs import LogWriter, read_log
from cotenant.agent.supervisor.processes.outputs import Output


class Rank:
    """An output, and both ends of its pipes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.output = Output(LogWriter(folder, 0, 100_000), None, errors_apart=True)
        self.out, self.err = os.dup(self.output.rank_end), os.dup(self.output.errors_end)
        self.output.hand_over()

    def log(self) -> bytes:
        piece = read_log(self._folder, 0, 0, 100_000)
        return b"" if piece is None else piece.data

    def end(self) -> None:
        for fd in (self.out, self.err):
            os.close(fd)
        self.output.drain(0.0, final=True)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.output.close()


def test_a_line_that_is_written_in_two_pieces_stays_whole_and_first(rank: Rank) -> None:
    os.write(rank.err, b"err line")
    rank.output.drain(0.0)
    assert (rank.log(), rank.output.has_begun_line) == (b"", True)
    os.write(rank.err, b"\n")
    os.write(rank.out, b"rc 3\n")
    rank.output.drain(0.0)
    assert rank.log() == b"err line\nrc 3\n"
    assert rank.output.tail == "err line\nrc 3\n"
    rank.end()


def test_what_is_no_whole_line_is_shown_at_the_next_look(rank: Rank) -> None:
    os.write(rank.out, b"line\nName: ")
    rank.output.drain(0.0)
    assert rank.log() == b"line\n"
    rank.output.drain(0.0)
    assert (rank.log(), rank.output.has_begun_line) == (b"line\nName: ", False)
    rank.end()


def test_no_byte_is_lost_or_changed_at_the_end(rank: Rank) -> None:
    os.write(rank.out, b"a\xffb")
    os.write(rank.err, b"10%\r20%\r30%" + b"x" * 5000)
    rank.output.drain(0.0)
    rank.end()
    assert sorted(rank.log()) == sorted(b"a\xffb" + b"10%\r20%\r30%" + b"x" * 5000)


def test_one_stream_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    output = Output(LogWriter(tmp_path, 0, 1000), None)
    writer = os.dup(output.rank_end)
    output.hand_over()
    os.write(writer, b"no line yet")
    output.drain(0.0)
    piece = read_log(tmp_path, 0, 0, 100)
    assert piece is not None
    assert piece.data == b"no line yet"
    os.close(writer)
    output.close()

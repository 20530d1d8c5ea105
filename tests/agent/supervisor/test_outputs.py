"""Output that cannot be written: the job goes on, and nothing is dropped without a word."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.ipc.records import LOGS, Order
from cotenant.agent.supervisor.processes.logs import cut_marker, read_log
from cotenant.agent.supervisor.processes.outputs import Outputs
from cotenant.controller.domain import Launch
from tests.building.orders import order_of


def order_with(output: str, *, log_bytes_max: int = 10_000) -> Order:
    return order_of(launch=Launch(argv=("true",), output=output), log_bytes_max=log_bytes_max)


TOLD = b"\n[cotenant: 25 bytes of its output are missing in its log: No space left on device]\n"


class Job:
    """A rank that prints."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = folder
        (folder / LOGS).mkdir(parents=True)
        self._selector = selectors.DefaultSelector()
        self.outputs = Outputs(folder, order, self._selector)
        self._output = self.outputs.open(order.ranks[0])

    def prints(self, data: bytes) -> None:
        os.write(self._output.rank_end, data)
        self.outputs.drain(0, final=True)

    @property
    def log(self) -> bytes:
        """As a reader sees it."""
        data, offset = b"", 0
        while (part := read_log(self.folder / LOGS, 0, offset, 1 << 20)) and part.next_offset > offset:
            data, offset = data + part.data, part.next_offset
        return data

    def close(self) -> None:
        self._output.hand_over()
        self.outputs.close()
        self._selector.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Job]]:
    jobs: list[Job] = []
    yield jobs
    for each in jobs:
        each.close()


def test_an_output_file_that_cannot_be_opened(tmp_path: Path, made: list[Job]) -> None:
    job = Job(tmp_path / "a", order_with(str(tmp_path)))
    made.append(job)
    lost = f"its output could not be written to {tmp_path}: Is a directory"
    assert job.outputs.read_printed().lost == lost
    job.prints(b"hello\n")
    assert job.log == f"\n[cotenant: {lost}; it is in this log]\nhello\n".encode()


def test_a_full_disk_under_the_output_file(tmp_path: Path, made: list[Job]) -> None:
    job = Job(tmp_path / "a", order_with("/dev/full"))
    made.append(job)
    assert job.outputs.read_printed().lost == ""
    job.prints(b"hello\n")
    job.prints(b"again\n")
    lost = "its output could not be written to /dev/full: No space left on device"
    assert job.outputs.read_printed(is_over=True).lost == lost
    assert job.log == f"hello\n\n[cotenant: {lost}; it is in this log]\nagain\n".encode()


def test_a_full_disk_under_the_log_is_counted_and_told_at_its_end(
    tmp_path: Path, made: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own file is on another disk and has all of it."""
    whole = tmp_path / "whole"
    job = Job(tmp_path / "a", order_with(str(whole)))
    made.append(job)
    job.prints(b"before\n")
    fits = os.write

    def write(file: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{file}").startswith(f"{tmp_path}/a/"):
            raise OSError(28, os.strerror(28))
        return fits(file, data)

    with monkeypatch.context() as full:
        full.setattr("os.write", write)
        for _ in range(5):
            job.prints(b"lost\n")
        job.outputs.tell_losses()  # It cannot be told there yet.
    job.prints(b"after\n")
    assert job.log == b"before\n" + cut_marker(25 + len(TOLD)) + b"after\n"
    lost = "25 bytes of its output are missing in its log: No space left on device"
    assert job.outputs.read_printed(is_over=True).lost == lost
    job.outputs.tell_losses()
    assert job.log.endswith(b"after\n" + TOLD)
    assert whole.read_bytes() == b"before\n" + 5 * b"lost\n" + b"after\n"


def test_a_disk_that_stays_full_costs_neither_the_start_nor_the_end_of_a_log(
    tmp_path: Path, made: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path / "a", order_with("", log_bytes_max=400))
    made.append(job)
    for number in range(60):
        job.prints(b"line %04d\n" % number)
    before = job.log
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda file, data: 0 if "/a/" in os.readlink(f"/proc/self/fd/{file}") else 1)
        for _ in range(20):
            job.outputs.write_word("lost")
    assert (job.log[:200], job.log[-60:]) == (before[:200], before[-60:])


def test_what_is_printed_whole_is_no_loss(tmp_path: Path, made: list[Job]) -> None:
    job = Job(tmp_path / "a", order_with(str(tmp_path / "out")))
    made.append(job)
    job.prints(b"hello\n")
    job.outputs.tell_losses()
    assert (job.outputs.read_printed(is_over=True).lost, job.log) == ("", b"hello\n")

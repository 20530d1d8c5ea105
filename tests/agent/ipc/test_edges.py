"""Files that are whole, frames that are bounded, processes that are who they were."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.host.process_identity import (
    children_of,
    identity_of,
    is_alive,
    open_pidfd,
    own_identity,
    stat_of,
)
from cotenant.agent.ipc.channel import (
    FRAME_BYTES_MAX,
    Deframer,
    LeaseNow,
    SaveNow,
    StopNow,
    ToSupervisor,
    connect,
    frame_message,
    read_frame,
    short_address,
    write_message,
)
from cotenant.agent.ipc.files import BadRecord, read_record, write_record
from cotenant.agent.ipc.records import RECORD_VERSION, ProcessIdentity
from cotenant.controller.wire import BadMessage, codec
from tests.building.frames import receive_message, send_message

# --- Files -----------------------------------------------------------------------------------------


def test_a_record_comes_back(tmp_path: Path) -> None:
    write_record(tmp_path / "who.json", own_identity())
    assert read_record(tmp_path / "who.json", ProcessIdentity) == own_identity()
    assert (tmp_path / "who.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["who.json"]


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path / "who.json", ProcessIdentity) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a valid"),
        ("{", "not a valid"),
        ("[]", "not a valid"),
        ('{"version": 1, "pid": "x"}', "not a valid ProcessIdentity"),
        (f'{{"version": {RECORD_VERSION + 1}}}', "upgrade"),
        ('{"version": 0}', "version 0"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "who.json"
    path.write_text(text)
    with pytest.raises(BadRecord, match=why):
        read_record(path, ProcessIdentity)


# --- Frames ----------------------------------------------------------------------------------------

WORDS: list[StopNow | SaveNow | LeaseNow] = [
    StopNow(save=True, deadline_s=3.5, reason="preempted"),
    SaveNow(),
    LeaseNow(left_s=None, full_s=300.0),
]


@given(st.lists(st.sampled_from(WORDS), max_size=8), st.integers(1, 40))
def test_messages_arrive_whole_however_the_stream_is_cut(words: list[msgspec.Struct], size: int) -> None:
    stream = b"".join(frame_message(word) for word in words)
    deframer = Deframer(ToSupervisor)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [message for piece in pieces for message in deframer.feed(piece)] == words


@pytest.mark.parametrize(
    "stream",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02\xc1\xc1",
        frame_message({"m": "ended"}),
        frame_message([1, 2]),
    ],
)
def test_a_bad_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(BadMessage):
        Deframer(ToSupervisor).feed(stream)


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(BadMessage):
        frame_message(StopNow(save=True, deadline_s=1.0, reason="x" * FRAME_BYTES_MAX))


def test_blocking_and_asyncio_ends_understand_each_other_at_a_deep_path(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    path = folder / "control.sock"
    listener = socket.socket(socket.AF_UNIX)
    with short_address(path) as address:
        listener.bind(address)
    listener.listen()

    async def talk() -> object:
        reader, writer = await connect(path)
        write_message(writer, WORDS[0])
        await writer.drain()
        peer, _ = listener.accept()
        with peer:
            assert receive_message(peer, ToSupervisor) == WORDS[0]
            send_message(peer, WORDS[0])
            answer = await read_frame(reader)
            assert answer is not None
        assert await read_frame(reader) is None
        writer.close()
        await writer.wait_closed()
        return codec.decode(answer, ToSupervisor)

    with listener:
        assert asyncio.run(talk()) == WORDS[0]


def test_the_end_of_a_stream_in_the_middle_of_a_message_is_the_end() -> None:
    async def read() -> bytes | None:
        reader = asyncio.StreamReader()
        reader.feed_data(frame_message(WORDS[0])[:-1])
        reader.feed_eof()
        return await read_frame(reader)

    assert asyncio.run(read()) is None


# --- Identities ------------------------------------------------------------------------------------


def a_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_a_process_is_known_until_it_ends() -> None:
    with a_process() as process:
        identity = identity_of(process.pid)
        assert identity is not None
        assert is_alive(identity)
        assert process.pid in children_of(os.getpid())
        descriptor = open_pidfd(identity)
        assert descriptor is not None
        process.send_signal(signal.SIGKILL)
        select.select([descriptor], [], [])
        os.close(descriptor)
        stat = stat_of(process.pid)
        assert stat is not None
        assert stat.state == "Z"
        assert not is_alive(identity), "a zombie is gone"
        assert open_pidfd(identity) is None
    assert identity_of(process.pid) is None


@pytest.mark.parametrize("changed", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_the_same_pid_is_not_the_same_process(changed: dict[str, object]) -> None:
    other = msgspec.structs.replace(own_identity(), **changed)
    assert not is_alive(other)
    assert open_pidfd(other) is None


def test_names_with_spaces_and_parentheses_do_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b 1"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "100"]) as process:
        stat = stat_of(process.pid)
        process.kill()
    assert stat is not None
    assert stat.parent == os.getpid()

"""A socket that accounts of one machine share: each is who the kernel says, whatever it claims to be."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cotenant.controller.router import Router
from cotenant.controller.system.endpoint import BadEndpoint, check_owner, is_system_socket
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.local_users import EVERYBODY, LocalUsers
from tests.building.limits import within_s

NOBODY = pwd.getpwnam("nobody")
GREETING_BYTES = 64
WITHIN_S = within_s(20.0)


@pytest.mark.parametrize(
    "peer",
    [
        "",
        "localhost",
        "localhost:1:2",
        ":x:0:1",
        "localhost:-1:0:1",
        "localhost:0x0:0:1",
        ":٣:0:1",
        "a:4294967294:0:1",
    ],
)
def test_a_peer_that_the_kernel_does_not_name_is_nobody(peer: str) -> None:
    assert LocalUsers(EVERYBODY).admit(peer) == ""


def test_every_account_is_itself_and_only_root_and_the_owner_are_admins() -> None:
    users = LocalUsers(EVERYBODY)
    them = users.get(users.admit(f"localhost:{NOBODY.pw_uid}:{NOBODY.pw_gid}:77"))
    assert them is not None and (them.name, them.role, them.uid) == ("nobody", "user", NOBODY.pw_uid)
    for uid in (0, os.getuid()):
        admin = users.get(users.admit(f"localhost:{uid}:0:77"))
        assert admin is not None and (admin.uid, admin.role) == (uid, "admin")


def test_a_group_lets_its_members_in_and_nobody_else() -> None:
    gid = pwd.getpwnam("daemon").pw_gid
    import grp

    users = LocalUsers(grp.getgrgid(gid).gr_name)
    assert users.admit(f":{pwd.getpwnam('daemon').pw_uid}:{gid}:7") != ""
    assert users.admit(f":{NOBODY.pw_uid}:{gid}:7") == "", (
        "the group that a process says it runs with is no member"
    )
    assert users.admit(":0:0:7") == "0", "root is an admin of every machine"
    with pytest.raises(BadEndpoint, match="no group 'no-such-group'"):
        LocalUsers("no-such-group")


def test_a_shared_socket_lies_where_root_alone_can_have_put_it(tmp_path: Path) -> None:
    assert not is_system_socket(tmp_path / "s.sock") and not is_system_socket(Path("/run/user/7/s.sock"))

    async def opened() -> None:
        with pytest.raises(BadEndpoint, match="lies in /run/NAME"):
            Router(f"ipc://{tmp_path}/s.sock", tmp_path, lambda *_: None, Counter(), EVERYBODY)

    asyncio.run(opened())


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(f"/run/cotenant-test-{os.getpid()}")
    folder.mkdir(mode=0o700)
    yield folder / "s.sock"
    (folder / "s.sock").unlink(missing_ok=True)
    (folder / "s.sock.lock").unlink(missing_ok=True)
    folder.rmdir()


def heard_from(place: Path, users: str, speak: Callable[[], object]) -> list[tuple[Identity, bytes]]:
    """Whom the router hears while `speak` runs as nobody in another process, and what."""
    heard: list[tuple[Identity, bytes]] = []
    go, may_go = os.pipe()
    pid = os.fork()  # Before there is a router, whose threads it must not share.
    if pid == 0:
        try:
            os.read(go, 1)
            become_nobody()
            speak()
            os._exit(0)
        except (AssertionError, OSError):
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)
    descriptor = os.pidfd_open(pid)

    async def hear() -> None:
        done = asyncio.Event()  # A word was heard, or the other process has ended without one.

        def receive(_address: bytes, who: Identity, _is_client: bool, frame: bytes) -> None:
            heard.append((who, frame))
            done.set()

        router = Router(f"ipc://{place}", place.parent, receive, Counter(), users)
        asyncio.get_running_loop().add_reader(descriptor, done.set)
        try:
            os.write(may_go, b"x")
            await asyncio.wait_for(done.wait(), WITHIN_S)
        finally:
            asyncio.get_running_loop().remove_reader(descriptor)
            router.close()

    try:
        asyncio.run(hear())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        for each in (go, may_go, descriptor):
            os.close(each)
    return heard


def become_nobody() -> None:
    os.setgroups([NOBODY.pw_gid])
    os.setresgid(NOBODY.pw_gid, NOBODY.pw_gid, NOBODY.pw_gid)
    os.setresuid(NOBODY.pw_uid, NOBODY.pw_uid, NOBODY.pw_uid)


def command(name: bytes, body: bytes) -> bytes:
    text = bytes([len(name)]) + name + body
    return bytes([4, len(text)]) + text


def metadata(**properties: bytes) -> bytes:
    pairs = ((name.replace("_", "-").encode(), value) for name, value in properties.items())
    return b"".join(bytes([len(n)]) + n + len(v).to_bytes(4, "big") + v for n, v in pairs)


def speak_zmtp(place: Path, properties: bytes, version: bytes = b"\x03\x00") -> bytes:
    """A peer without ZeroMQ that says of itself what it likes; returns what came back until the end."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(WITHIN_S)
        made.connect(os.fspath(place))
        made.sendall(b"\xff" + bytes(8) + b"\x7f" + version + b"NULL".ljust(20, b"\0") + bytes(32))
        back, said = b"", [b"\x00\x05hello", command(b"READY", properties)]
        while b"ERROR" not in back and (more := made.recv(4096)):
            back += more
            if len(back) >= GREETING_BYTES and len(said) == 2:
                made.sendall(said.pop())
            if b"READY" in back and len(said) == 1:
                made.sendall(said.pop())
        return back


@pytest.mark.root
def test_who_says_that_it_is_root_is_still_itself(place: Path) -> None:
    claims = metadata(Socket_Type=b"DEALER", User_Id=b"0", Peer_Address=b"localhost:0:0:1", Identity=b"0")

    def speak() -> None:
        assert b"READY" in speak_zmtp(place, claims)

    heard = heard_from(place, EVERYBODY, speak)
    assert [(who.name, who.role, who.uid, frame) for who, frame in heard] == [
        ("nobody", "user", NOBODY.pw_uid, b"hello")
    ]


@pytest.mark.root
@pytest.mark.parametrize("version", [b"\x00\x00", b"\x01\x00"], ids=["1.0", "2.0"])
def test_a_protocol_that_names_nobody_is_not_spoken(place: Path, version: bytes) -> None:
    def speak() -> None:
        with suppress(ConnectionError):
            assert b"READY" not in speak_zmtp(place, metadata(Socket_Type=b"DEALER"), version)

    assert heard_from(place, EVERYBODY, speak) == []


@pytest.mark.root
def test_who_is_no_member_gets_no_word_in(place: Path) -> None:
    def speak() -> None:
        assert b"READY" not in speak_zmtp(place, metadata(Socket_Type=b"DEALER"))

    assert heard_from(place, "daemon", speak) == []


@pytest.mark.root
def test_a_client_trusts_a_folder_of_run_that_its_owner_alone_can_change(place: Path) -> None:
    place.touch()

    def trusts() -> bool:
        def ask() -> None:
            become_nobody()
            check_owner(place)

        pid = os.fork()
        if pid == 0:
            try:
                ask()
            except BadEndpoint:
                os._exit(7)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    place.parent.chmod(0o755)
    assert trusts()
    place.parent.chmod(0o777)
    assert not trusts(), "anybody may have put a socket there"
    place.parent.chmod(0o755)
    os.chown(place, 1, 1)
    assert not trusts(), "somebody else's socket in a folder of root"

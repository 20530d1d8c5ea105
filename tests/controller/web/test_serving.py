"""Where the page's server listens, and what it prints."""

from __future__ import annotations

import errno
import socket as sockets
from pathlib import Path

import pytest

from cotenant.controller.web.__main__ import Printed, bound


def test_a_socket_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with bound(str(path), 0):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    bound(str(path), 0).close()
    assert path.exists()
    with bound(str(path), 0), pytest.raises(OSError) as refused:
        bound(str(path), 0)
    assert refused.value.errno == errno.EADDRINUSE, "somebody is there"


def test_a_file_of_somebody_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(OSError):
        bound(str(path), 0)
    assert path.read_text() == "x"


def test_a_port_is_on_this_machine_alone() -> None:
    with bound("", 0) as found, sockets.create_connection(found.getsockname()):
        assert found.getsockname()[0] == "127.0.0.1"


def test_the_first_link_comes_with_the_way_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    printed = Printed(("127.0.0.1", 7999), 7999, "ann@login1")
    printed("one")
    printed("two")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith("ssh -N -L 7999:127.0.0.1:7999 ann@login1")
    assert second.endswith("http://127.0.0.1:7999/enter?token=one")
    assert third.startswith("opened;") and third.endswith("token=two")


def test_a_socket_is_forwarded_to_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    Printed("/run/page.sock", 0, "")("one")
    assert "ssh -N -L 7080:/run/page.sock HOST" in capsys.readouterr().out

"""Where the page's server listens, and what it prints."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket as sockets
import sys
import tempfile
from pathlib import Path

import pytest

from cotenant.controller.web.__main__ import (
    HERE,
    PageAddress,
    greeting,
    listen_on_path,
    listen_on_port,
    own_address,
)
from cotenant.controller.web.__main__ import (
    main as serve_page,
)

NO_ADDRESS_OF_OURS = "192.0.2.1"
"""Of documents: no machine has it."""


def test_a_socket_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with listen_on_path(path):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(path))
    with listen_on_path(path):
        with pytest.raises(OSError) as refused, listen_on_path(path):
            pass
        assert refused.value.errno == errno.EADDRINUSE, "somebody is there"
        assert path.exists()


def test_a_file_of_somebody_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(OSError), listen_on_path(path):
        pass
    assert path.read_text() == "x"


def test_a_port_is_on_this_machine_alone() -> None:
    address = own_address()
    with listen_on_port(0, address) as found, sockets.create_connection(found.getsockname()):
        assert found.getsockname()[0] == address
        assert ipaddress.ip_address(address).is_loopback and address != HERE


def test_servers_have_addresses_of_their_own() -> None:
    assert len({own_address() for _ in range(20)}) > 15


def test_where_there_is_no_other_address_the_usual_one_is_taken() -> None:
    with listen_on_port(0, NO_ADDRESS_OF_OURS) as found:
        host, port = found.getsockname()
    assert host == HERE
    assert any(f"this system has {HERE} alone" in line for line in greeting(PageAddress(host, port), ""))


def test_a_folder_for_sockets_that_somebody_made_first_is_no_trouble_with_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / f"cotenant-{os.getuid()}"
    planted.touch()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["web"])
    assert serve_page() == 1
    assert capsys.readouterr().err == (
        f"error[config]: {planted}: not a folder; remove it, or set XDG_RUNTIME_DIR\n"
    )


def test_a_port_that_is_taken_is_said() -> None:
    with listen_on_port(0, HERE) as found, pytest.raises(OSError) as refused:
        listen_on_port(found.getsockname()[1], HERE)
    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("address", "url", "port_forward"),
    [
        (PageAddress("127.8.9.7", 7999), "http://127.8.9.7:7999", None),
        (
            PageAddress("127.8.9.7", 7999, "ann@login1"),
            "http://127.0.0.1:7999",
            "ssh -N -L 7999:127.8.9.7:7999 ann@login1",
        ),
        (PageAddress("/run/page.sock"), "http://127.0.0.1:7080", "ssh -N -L 7080:/run/page.sock HOST"),
    ],
    ids=["here", "over ssh", "a socket"],
)
def test_what_is_printed_says_how_to_get_there(
    address: PageAddress, url: str, port_forward: str | None
) -> None:
    kept = list(greeting(address, ""))
    assert (f"on your own machine:  {port_forward}" in kept) == (port_forward is not None)
    assert any(line.endswith(url) for line in kept), "without a link"
    assert "cotenant web --link" in kept[-1]
    on_a_terminal = list(greeting(address, f"{url}/enter?token=one"))
    assert any(line.endswith(f"{url}/enter?token=one") for line in on_a_terminal)

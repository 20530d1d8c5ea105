"""What is typed at a terminal, and what a job prints there, as far as it means something to us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.cli.jobs.forwarding import LinkFinder, PortPair, port_pair
from cotenant.controller.cli.jobs.terminal_session import Escapes


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        (b"~.", b"", True),
        (b"ls\r~.rest", b"ls\r", True),
        (b"a~.", b"a~.", False),
        (b"\r~~.", b"\r~.", False),
        (b"\r~/x\n", b"\r~/x\n", False),
        (b"\x00\xff\r~\r~.", b"\x00\xff\r~\r", True),
    ],
)
def test_only_a_tilde_and_a_dot_at_the_beginning_of_a_line_leave(
    typed: bytes, passed: bytes, leaves: bool
) -> None:
    assert Escapes().pass_on(typed) == (passed, leaves)
    slowly, pieces = Escapes(), [typed[at : at + 1] for at in range(len(typed))]
    found, is_over = b"", False
    for piece in pieces:
        part, is_over = slowly.pass_on(piece)
        found += part
        if is_over:
            break
    assert (found, is_over) == (passed, leaves)


@given(st.binary())
def test_whatever_has_no_tilde_passes_untouched(typed: bytes) -> None:
    typed = typed.replace(b"~", b"")
    assert Escapes().pass_on(typed) == (typed, False)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_link_is_found_wherever_the_output_is_cut(cut: int) -> None:
    finder = LinkFinder()
    output = (
        b"[I] Jupyter is at:\r\n    http://localhost:8888/lab?token=ab12\r\n or http://127.0.0.1:6006 \r\n"
    )
    found = [link for at in range(0, len(output), cut) for link in finder.find(output[at : at + cut])]
    assert found == [("http://", 8888, "/lab?token=ab12"), ("http://", 6006, "/")]


def test_links_to_other_machines_are_left_alone() -> None:
    assert list(LinkFinder().find(b"https://example.org:8888/x http://localhost:99999/ localhost:80\n")) == []


def test_a_pair_of_ports_is_read() -> None:
    assert port_pair("8888") == PortPair(8888, 8888)
    assert port_pair("8080:80") == PortPair(8080, 80)
    for wrong in ("", "0", "x", "1:2:3", "70000", "80:\u0663"):
        with pytest.raises(ValueError, match="must be PORT or PORT:PORT"):
            port_pair(wrong)

"""What is said for people ends nobody, and leaves nothing that could."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAYS = """
import logging, sys, traceback
from cotenant.controller.system import diagnostics
diagnostics.take_standard_error()
diagnostics.say("one line")
diagnostics.say("ready", diagnostics.STANDARD_OUTPUT)
logging.basicConfig(handlers=[logging.StreamHandler(diagnostics.UnfailingStream())])
logging.warning("a warning")
print("by somebody else", file=sys.stderr, flush=True)
try:
    raise ValueError("shown")
except ValueError:
    traceback.print_exc()
open("/dev/null", "w").write("done")
"""


def ended(code: str, *, output: int, errors: int | None) -> subprocess.CompletedProcess[bytes]:
    close = None if errors is not None else (lambda: os.close(2))
    return subprocess.run([sys.executable, "-c", code], stdout=output, stderr=errors, preexec_fn=close)


def test_a_full_disk_under_the_log_ends_nothing() -> None:
    """What the same lines do to a program that prints them."""
    full = os.open("/dev/full", os.O_WRONLY)
    assert ended(SAYS, output=full, errors=full).returncode == 0
    plain = "import sys\nprint('x', file=sys.stderr, flush=True)"
    assert ended(plain, output=full, errors=full).returncode != 0
    os.close(full)


def test_nobody_reads_it() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    assert ended(SAYS, output=theirs, errors=theirs).returncode == 0
    os.close(theirs)


def test_a_closed_standard_error_is_nobody_elses_file() -> None:
    done = ended(SAYS, output=subprocess.PIPE, errors=None)
    assert (done.returncode, done.stdout) == (0, b"ready\n")


def test_otherwise_all_of_it_comes_out_in_order() -> None:
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True)
    assert done.stdout == "ready\n"
    lines = done.stderr.splitlines()
    assert lines[:3] == ["one line", "WARNING:root:a warning", "by somebody else"]
    assert lines[-1] == "ValueError: shown"


@pytest.mark.parametrize("word", ["ü\udcff", "a\nb"])
def test_any_text_can_be_said(word: str) -> None:
    say = f"from cotenant.controller.system.diagnostics import say\nsay({word!r})"
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, check=True)
    assert done.stderr == f"{word}\n".encode(errors="backslashreplace")

"""What the MPS control program answers. Pure.

Rule: an answer counts only if its sentinel came back. The front end exits 0 on every error, errors are text
on standard output, and under concurrent queries an answer can be empty with exit status 0; an empty answer
is also how "none" is said. So each query is sent with a word the daemon cannot know, and its complaint about
that word proves that everything before it was answered.
"""

from __future__ import annotations

import re
from enum import Enum

_ERROR = re.compile(
    r"^(Server -?\d+ not found|Server not found|Unknown command|Insufficient privileges|Not enough privilege"
    r"|A server PID is required|Invalid |Cannot |An instance of this daemon is already running|Failed "
    r"|Internal error|Server -?\d+ is <busy>)",
    re.IGNORECASE,
)
_SENTINEL = re.compile(r"[a-z][a-z0-9-]{7,63}")
_VERSION = re.compile(r"CUDA MPS Control binary version:\s*(\d+)")
_NUMBER = re.compile(r"[0-9]{1,10}")
_LINES_MAX = 10_000


class Rejected(Exception):
    """The daemon answered, and said no. The text is its own."""


class Incomplete(Exception):
    """The answer was cut or lost: ask again. It says nothing about the daemon's state."""


class ServerState(Enum):
    """INITIALIZING and FAULT refuse new clients (CUDA error 807); in FAULT every client must exit first."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    UNKNOWN = "UNKNOWN"
    """A word this version of ours does not know. Treat as not ready."""


def query(command: str, sentinel: str) -> str:
    """Standard input for the front end. One command a query: answers carry no mark of what they answer."""
    if not _SENTINEL.fullmatch(sentinel):
        raise ValueError(f"{sentinel!r} cannot be a sentinel: 8 to 64 of a-z, 0-9 and -, a letter first")
    if not command.isprintable() or not command.strip():
        raise ValueError(f"{command!r} is no single-line command")
    return f"{command}\n{sentinel}\n"


def answer_before_sentinel(output: str, sentinel: str) -> str:
    """The answer before the sentinel's complaint, or `Incomplete`."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if sentinel in line and line.lstrip().lower().startswith("unknown command"):
            return "\n".join(lines[:number])
    raise Incomplete(f"no end of answer in {len(lines)} lines: {output[:200]!r}")


def unknown_command(answer: str) -> bool:
    """Whether the daemon does not know the word at all: how newer commands are told from older daemons."""
    return any(line.lstrip().lower().startswith("unknown command") for line in answer.splitlines())


def pids(answer: str) -> tuple[int, ...]:
    """`get_server_list`, `get_client_list` and `get_device_client_list`: one per line, none if empty."""
    return tuple(_number(line) for line in _content(answer))


def server_state(answer: str) -> ServerState:
    """The state of a server, from the answer to `get_server_status PID`. Drivers up to 535 do not know the
    command: `Rejected`."""
    lines = _content(answer)
    words = {word.strip(".,:;\"'").upper() for line in lines for word in line.split()}
    named = [state for state in ServerState if state.value in words]
    return named[0] if len(named) == 1 else ServerState.UNKNOWN


def percentage(answer: str) -> float:
    """The percentage in an answer to `get_` or `set_default_active_thread_percentage`: the value in force,
    perhaps not the one asked for."""
    lines = _content(answer)
    if len(lines) != 1 or not re.fullmatch(r"\d{1,3}(\.\d+)?", lines[0]):
        raise Rejected(f"expected a percentage, got {' / '.join(lines)[:200]!r}")
    value = float(lines[0])
    if not 0 < value <= 100:
        raise Rejected(f"expected a percentage in (0, 100], got {value}")
    return value


def refuses_termination(answer: str) -> bool:
    """Whether an answer to `terminate_client SERVER CLIENT` is a no: an error, or another last line than 0 of
    digits. Anything else is no proof of success: look at the client list before any signal."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return any(_ERROR.match(line) for line in lines) or (
        bool(lines) and lines[-1].isdigit() and lines[-1] != "0"
    )


def control_version(output: str) -> tuple[int, int] | None:
    """`-v` prints 13030 for 13.3; older front ends do not know the option: None."""
    match = _VERSION.search(output)
    if match is None:
        return None
    number = int(match[1])
    return number // 1000, number % 1000 // 10


def _content(answer: str) -> list[str]:
    """The lines of an answer without blanks; the daemon's errors become `Rejected`."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    if len(lines) > _LINES_MAX:
        raise Rejected(f"an answer of {len(lines)} lines")
    for line in lines:
        if _ERROR.match(line):
            raise Rejected(line[:200])
    return lines


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise Rejected(f"expected a number, got {text[:200]!r}")
    return int(text)

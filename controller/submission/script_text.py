"""What keeps a script's interpreter from reading it: DOS line ends, a byte order mark, no first line.

Rule: such a script is refused with the cause, as sbatch does, and never repaired: a job runs the file that is
there.
"""

from __future__ import annotations

import shlex
from typing import Final

from cotenant.controller.submission.options import BadSubmission

BOM: Final = b"\xef\xbb\xbf"
NO_FIRST_LINE: Final = "has no first line such as #!/bin/bash"


def unreadable(data: bytes, name: str, *, is_file: bool = True) -> BadSubmission | None:
    """Why an interpreter could not read this text, or None."""
    sed, file = ("sed -i", f" {shlex.quote(name)}") if is_file else ("sed", "")
    if data.startswith(BOM):
        message = f"{name}:1: begins with a byte order mark (BOM), so that nothing sees its #! line"
        return BadSubmission(message, f"remove it: {sed} '1s/^\\xEF\\xBB\\xBF//'{file}")
    at = data.find(b"\r\n")
    if at < 0:
        return None
    line = data.count(b"\n", 0, at) + 1
    message = f"{name}:{line}: ends in a DOS line break (\\r\\n), and the \\r would be read as text"
    return BadSubmission(message, f"remove them: {sed} 's/\\r$//'{file}")


def no_program(data: bytes, name: str) -> BadSubmission | None:
    """Why the kernel could not start this file, of which `data` is the beginning, or None."""
    first, _, _ = data.partition(b"\n")
    if b"\0" in data:  # A program, or what somebody has registered an interpreter for.
        return None
    if data.startswith(b"#!"):
        return unreadable(first + b"\n", name) if first.endswith(b"\r") else None
    runner = "python" if name.endswith(".py") else "bash"
    found = unreadable(first, name) if data.startswith(BOM) else None
    return found or BadSubmission(f"{name} {NO_FIRST_LINE}", f"add one, or start it with {runner} {name}")

"""A job's own output on a terminal: its words and colours, and nothing else that a terminal would obey.

Rule: what a job prints is its user's; an administrator who reads it must not have the screen, the title, the
clipboard or the lines above changed by it. Colours (SGR), tabs, line ends and carriage returns (for progress
bars) pass; other control sequences are left out. Into a pipe or a file go the job's bytes, untouched.
"""

from __future__ import annotations

import codecs
import re
import shutil
import sys
from typing import Final, TextIO

from cotenant.controller.domain import texts
from cotenant.controller.present.screen import RESET, is_terminal, printable

SEQUENCE_MAX: Final = 4096
"""A longer one is no sequence: its characters count as text."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_SEQUENCE: Final = re.compile(
    r"[\x1b]\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"  # CSI: cursor, screen, modes
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # two characters: reset, character sets
)
_UNFINISHED: Final = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*)?|\x1b[ -/]+|\x9b[0-?]*[ -/]*"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*\x1b?)\Z"
)
_PLAIN: Final = "\n\r\t"
_START_OF_LINE: Final = "\r\x1b[K"
"""Empties the line that the cursor is on."""


class TerminalFilter:
    """Takes bytes as they come, cut anywhere; gives what may be shown."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        """The beginning of a sequence whose end has not come."""
        self._is_coloured = False

    def filter_text(self, data: bytes, *, final: bool = False) -> str:
        text = self._held + self._decoder.decode(data, final)
        cut = _UNFINISHED.search(text)
        self._held = ""
        if cut is not None and not final and len(text) - cut.start() <= SEQUENCE_MAX:
            text, self._held = text[: cut.start()], text[cut.start() :]
        return self._replace_hidden(text)

    def _replace_hidden(self, text: str) -> str:
        return "".join(
            piece if _COLOUR.fullmatch(piece) else texts.HIDDEN.sub(_plain, piece)
            for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        """Text and colours, in order."""
        pieces, at = [], 0
        for match in _SEQUENCE.finditer(text):
            pieces.append(text[at : match.start()])
            at = match.end()
            if _COLOUR.fullmatch(match[0]):
                pieces.append(match[0])
                self._is_coloured = True
        return [*pieces, text[at:]]

    def end(self) -> str:
        """What was held back, and the terminal's own colours again."""
        rest = self.filter_text(b"", final=True)
        return rest + RESET if self._is_coloured else rest


def _plain(match: re.Match[str]) -> str:
    return match[0] if match[0] in _PLAIN else ""


def last_words(data: bytes, lines: int, *, colours: bool = True) -> str:
    """The end of a job's output, as a terminal may show it; of a progress bar what it shows last."""
    passing = TerminalFilter()
    text = passing.filter_text(data, final=True)
    kept = text.replace("\r\n", "\n").rstrip("\n").split("\n")[-lines:]
    shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in kept) + passing.end()
    return shown if colours else _COLOUR.sub("", shown)


class JobOutput:
    """Standard output, or another stream of ours, for a job's bytes."""

    def __init__(self, stream: TextIO | None = None, *, raw: bool = False) -> None:
        """Creates the output on `stream`. `raw`: the bytes go out as they are, also on a terminal."""
        self._stream = stream or sys.stdout
        self._filter = TerminalFilter() if is_terminal(self._stream) and not raw else None
        self.ends_line = True
        """The next word begins a line of the terminal; into a pipe or a file that does not matter."""

    def write(self, data: bytes) -> None:
        if self._filter is not None and data:
            self.ends_line = data.endswith(b"\n")
        self._write(data if self._filter is None else _encode_text(self._filter.filter_text(data)))

    def close(self) -> None:
        if self._filter is not None:
            self._write(_encode_text(self._filter.end()))

    def _write(self, data: bytes) -> None:
        self._stream.buffer.write(data)
        self._stream.buffer.flush()


class WaitingLine:
    """A line on a terminal's standard error, written over while a person waits, and gone after it."""

    def __init__(self) -> None:
        self._is_shown = False

    def rewrite(self, text: str) -> None:
        """A text that is longer than the line is cut."""
        columns = shutil.get_terminal_size((80, 24)).columns - 1
        line = printable(text)
        cut = line if len(line) <= columns else f"{line[: columns - 1]}\u2026"
        print(f"{_START_OF_LINE}{cut}", end="", file=sys.stderr, flush=True)
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            print(_START_OF_LINE, end="", file=sys.stderr, flush=True)
            self._is_shown = False


def _encode_text(text: str) -> bytes:
    return text.encode(sys.stdout.encoding or "utf-8", errors="replace")

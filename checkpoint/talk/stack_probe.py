"""Where the training thread is: the sign of life of a job between its steps.

Rule: cheap, and it touches nothing of the script. A thread that waits in a collective stands in one place
for as long as it waits; one that evaluates, loads data or saves is somewhere else a few looks later. The
listener thread asks, so a training thread that holds the interpreter lock for ever is not seen to move
either.
"""

from __future__ import annotations

import sys
import zlib
from typing import Final

FRAMES_MAX: Final = 64
"""From the innermost outwards: what moves is near."""


def place_of(thread: int) -> int:
    """A number for a thread's Python stack: code, and the instruction in each frame. 0 if it is gone."""
    frame = sys._current_frames().get(thread)
    place = 0
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        place = zlib.crc32(f"{id(frame.f_code)}:{frame.f_lasti}".encode(), place)
        frame = frame.f_back
    return place

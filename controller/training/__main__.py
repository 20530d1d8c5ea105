"""The computing child: answers questions from stdin on stdout until stdin ends (with its controller)."""

from __future__ import annotations

import os
from typing import Final

from cotenant.controller.system.child import serve
from cotenant.controller.training.kinds import answer
from cotenant.controller.wire import ComputeQuestion, pack, unpack

NICENESS: Final = 10
"""Niceness: a training takes the CPU time that the machine's jobs leave."""


def main() -> None:
    os.nice(NICENESS)
    serve(lambda frame: pack(answer(unpack(frame, ComputeQuestion))))


if __name__ == "__main__":
    main()

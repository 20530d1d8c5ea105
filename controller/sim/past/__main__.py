"""The child that asks a shadow policy: answers questions from stdin on stdout until stdin ends
(with its controller)."""

from __future__ import annotations

import os

from cotenant.controller.sim.past.shadowing import Shadowing
from cotenant.controller.system.child import serve

NICENESS = 10
"""Niceness: jobs and the controller come first."""


def main() -> None:
    os.nice(NICENESS)
    serve(Shadowing().answer_frame)


if __name__ == "__main__":
    main()

"""Runs a script that goes on from a checkpoint; what Python runs here must not have been imported before."""

from __future__ import annotations

import sys

from cotenant.checkpoint.rerun import marks_of_newest, run

if __name__ == "__main__":
    run(sys.argv[1:], marks_of_newest())

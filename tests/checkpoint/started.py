"""`started.py SCRIPT ARGS`: in a process that has torch already, the start of an interpreter of a job, then
the script. For tests that are not of the start itself."""

from __future__ import annotations

import runpy
import sys

from cotenant.gradaccum.launch import STARTUP

if __name__ == "__main__":
    runpy.run_path(str(STARTUP / "sitecustomize.py"))
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")

"""What a verb loads before it asks its question."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLI = "cotenant.controller.cli"
LATER = {
    "queue": ("tempfile", "calendar", f"{CLI}.submission.options"),
    "submit": (
        "tempfile",
        "calendar",
        f"{CLI}.jobs.arrival",
        f"{CLI}.jobs.eta",
        f"{CLI}.jobs.profile_series",
        f"{CLI}.submission.directives",
        f"{CLI}.submission.slurm",
        "cotenant.controller.wire.clients.jobs",
        "cotenant.controller.wire.views",
    ),
}
PROGRAM = """
import gc, sys
from cotenant.controller.cli.main import main
assert main([sys.argv[1], "--help"]) == 0
assert gc.isenabled() and gc.get_freeze_count() > 1_000
print("loaded:", *sys.modules)
"""


@pytest.mark.parametrize("verb", LATER)
def test_a_verb_loads_no_module_of_a_part_that_was_not_asked_for(verb: str) -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM, verb], capture_output=True, text=True, check=True)
    loaded = said.stdout.rpartition("loaded: ")[2].split()
    assert "cotenant.controller.client.asking" in loaded
    assert not set(LATER[verb]) & set(loaded)

"""One question, in a process of its own: `python -m hwtests.first.ask NAME PLACE NOTES PARENT`.

Rule: what a question learns, it notes at once. When its time is over it is asked to end (SIGTERM), ends what
it started, and what it has noted counts.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path
from typing import Final

from hwtests.first.notes import Notes
from hwtests.first.place import read_place
from hwtests.first.processes import adopt_orphans, end_with_parent

WHERE: Final = {
    "machine": "machine.ask_machine",
    "install": "machine.ask_install",
    "cuda": "machine.ask_cuda",
    "mps-up": "contract.ask_up",
    "mps-limits": "contract.ask_limits",
    "mps-floor": "contract.ask_floor",
    "mps-terminate": "contract.ask_terminate",
    "mps-uid": "strangers.ask_uid",
    "mps-stray": "strangers.ask_stray",
    "mps-devices": "strangers.ask_devices",
    "mps-restart": "contract.ask_restart",
    "doctor": "machine.ask_doctor",
    "share": "product.ask_share",
    "resume": "product.ask_resume",
    "bits": "product.ask_bits",
    "turns": "sharing.ask_turns",
    "together": "sharing.ask_together",
    "torch-limit": "sharing.ask_torch_limit",
    "warm": "product.ask_warm",
    "torch-mps": "sharing.ask_torch_mps",
    "fault": "faults.ask_fault",
}
"""By question: only what it needs is imported, for some run before anything is installed."""


def main() -> int:
    name, place, notes, parent = sys.argv[1:5]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent(int(parent))
    adopt_orphans()
    module, _, function = WHERE[name].partition(".")
    note = Notes(Path(notes))
    try:
        getattr(importlib.import_module(f"hwtests.first.{module}"), function)(note, read_place(place))
    except KeyboardInterrupt:
        return 130
    finally:
        note.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

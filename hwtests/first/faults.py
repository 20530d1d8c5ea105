"""An illegal address beside a client, last of all: the GPU may need a reset afterwards."""

from __future__ import annotations

import subprocess
import time
from typing import Final

from hwtests.first.control import Load, ask_client, daemon, plain_environment, run_words
from hwtests.first.notes import Notes
from hwtests.first.nvml import Nvml, await_true
from hwtests.first.place import Place

NEW_CLIENT_S: Final = 6.0
XIDS: Final = "dmesg --kernel 2>&1 | grep -E 'NVRM|permitted|denied' | tail -5"


def ask_fault(note: Notes, place: Place) -> None:
    """Without MPS the fault is the program's own; under MPS every client has it."""
    nvml = Nvml()
    fenced = plain_environment(place.uuid)
    with Load("open", "busy:1", env=fenced) as other:
        other.until("per_s")
        note("by turns: the culprit meets", ask_client("open", "fault", env=fenced).get("error", "nothing"))
        note("by turns: the other after, kernels a second", other.rate())
        note("by turns: the other meets", other.error() or "nothing")
    before_mib = nvml.used_mib(place.uuid)
    with daemon(place.uuid) as mps:
        env = plain_environment(place.uuid, str(mps.pipe))
        with Load("open", "busy:1", env=env) as neighbour:
            neighbour.until("per_s")
            servers = mps.servers()
            began_s = time.monotonic()
            note("MPS: the culprit meets", ask_client("open", "fault", env=env).get("error", "nothing"))
            await_true(lambda: bool(neighbour.error()), 4.0)
            note("MPS: the neighbour meets", neighbour.error() or "nothing")
            note("MPS: status", [mps.ask(f"get_server_status {server}") for server in servers])
            note("MPS: a new client meanwhile", ask_client("open", env=env, within_s=NEW_CLIENT_S))
            note("MPS: seconds until here", round(time.monotonic() - began_s, 2))
        began_s = time.monotonic()
        note(
            "MPS: a new client after all have left",
            ask_client("open", "info", env=env, within_s=NEW_CLIENT_S),
        )
        note("MPS: it took, s", round(time.monotonic() - began_s, 2))
        note("control.log", mps.log("control"))
    note("memory is back after, s", nvml.await_used(place.uuid, before_mib + 64, 4.0))
    note("a plain program afterwards", ask_client("open", "info", env=fenced))
    note("kernel log", run_words(("sh", "-c", XIDS), 3))
    if afterwards := subprocess.run(
        ("sh", "-c", "command -v nvidia-smi"), capture_output=True, text=True
    ).stdout:
        query = (afterwards.strip(), "--query-gpu=name,ecc.errors.uncorrected.volatile.total", "--format=csv")
        note("nvidia-smi afterwards", run_words(query, 5))

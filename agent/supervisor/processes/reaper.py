"""Who ends an MPS client's processes when its supervisor is killed:
`python -m cotenant.agent.supervisor.processes.reaper FOLDER`.

Rule: ranks of other attempts are killed by the kernel in the moment their supervisor dies
(PR_SET_PDEATHSIG). A client of an MPS daemon must not die that way: killed with work under way it may take
its co-clients with it. So its ranks outlive the supervisor for the seconds that this process needs to do the
same in the right order. It notices the death by the end of a pipe, does nothing where a result was written,
and needs no agent.

It is no child of the supervisor, in no group of the attempt, and holds none of its locks: whoever ends the
attempt does not end the reaper, and an agent that finds the supervisor dead is not kept from cleaning up as
well.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from cotenant.agent.host.identity import open_pidfd
from cotenant.agent.ipc.files import BadRecord, read_record
from cotenant.agent.ipc.folder import ORDER, RESULT, SUPERVISOR
from cotenant.agent.ipc.records import Order, ProcessIdentity, Result
from cotenant.agent.supervisor.processes.leftovers import end_leftovers

ROUNDS: Final = 6
"""Of ten seconds each: then it is for the agent, which tries for ever."""
DYING_S: Final = 10.0
"""From the end of its files to that of the supervisor."""
EXIT_USAGE: Final = 2


def leave_to_reaper(folder: Path) -> int:
    """Start one for this process; returns the descriptor that must stay open, and with us alone, for our
    life.

    To be called before `become_subreaper`, or it would become our child. Raises OSError.
    """
    watched, ours = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            subprocess.Popen(  # Not waited for: the process in between ends, and init takes it over.
                [sys.executable, "-m", "cotenant.agent.supervisor.processes.reaper", str(folder)],
                stdin=watched,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            code = 0
        finally:
            os._exit(code)
    os.close(watched)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        os.close(ours)
        raise OSError("cannot start the reaper")
    return ours


def inherit(folder: Path) -> None:
    """The supervisor is dead: if it has left no result, end what is left."""
    order = read_record(folder / ORDER, Order)
    if order is None or read_record(folder / RESULT, Result) is not None:
        return
    supervisor = read_record(folder / SUPERVISOR, ProcessIdentity)
    if supervisor is not None and not _has_died(supervisor):  # Its pipe alone is gone.
        return
    for _ in range(ROUNDS):
        if not end_leftovers(folder, order, supervisor):
            return
        time.sleep(1.0)


def _has_died(supervisor: ProcessIdentity) -> bool:
    """A process that is killed closes its files first, and is alive for a moment longer."""
    descriptor = open_pidfd(supervisor)
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], DYING_S)[0])
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m cotenant.agent.supervisor.processes.reaper ATTEMPT_FOLDER", file=sys.stderr)
        return EXIT_USAGE
    while os.read(0, 1):
        pass
    try:
        inherit(Path(arguments[0]))
    except (BadRecord, OSError) as error:
        print(f"reaper: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""End the GPU work of processes through their MPS daemon, before they are signalled.

Rule: a client that is killed with work on the GPU may take its co-tenants with it, so it is taken off its
server first. A program of its own, for supervisors: whatever the daemon does, it ends within its time
limit with status 0, and says for each pid what is known.

    python -m cotenant.mps.terminate PIPE_DIRECTORY PID [PID...] [--timeout-s S]

    done       it was a client and is off the list: it may be signalled now
    refused    the daemon said no
    unclear the daemon was told to drop it, and gave no answer, or still lists it
    gone       no server has it as a client: it never was one, or has left
    no-daemon  no daemon listens there
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from cotenant.mps import answers, process
from cotenant.mps.channel import ChannelError, ControlChannel, NoDaemon

TIMEOUT_S = 10.0
DONE = "done"
REFUSED = "refused"
UNCLEAR = "unclear"
GONE = "gone"
NO_DAEMON = "no-daemon"
_LOOK_AGAIN_S = 0.05


def terminate(
    pipe_directory: PurePosixPath,
    pids: Sequence[int],
    timeout_s: float,
    *,
    program: str = process.CONTROL,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, str]:
    """Terminates clients of MPS, and says what became of each. Blocks for up to `timeout_s`, and a second
    more where a process will not die."""
    deadline_s = clock() + timeout_s
    outcome = dict.fromkeys(pids, UNCLEAR)

    def channel() -> ControlChannel:
        """Makes a channel with what is left of the time, shared by waiting for our turn and for the
        answer."""
        left_s = max(0.05, (deadline_s - clock()) / 2)
        return ControlChannel(
            pipe_directory=pipe_directory, program=program, answer_s=left_s, lock_wait_s=left_s
        )

    told: dict[int, tuple[int, int]] = {}
    """By pid: the server, and the pid as that server has it."""
    try:
        found = _clients(channel)
        for pid in pids:
            seat = next((found[name] for name in process.names_inside(pid) if name in found), None)
            if seat is None:
                outcome[pid] = GONE
                continue
            if channel().terminate_client(*seat):
                told[pid] = seat
            else:
                outcome[pid] = REFUSED
        while told and clock() < deadline_s:
            now = _clients(channel)
            for pid in [pid for pid, seat in told.items() if now.get(seat[1]) != seat]:
                outcome[pid] = DONE
                del told[pid]
            if told:
                time.sleep(_LOOK_AGAIN_S)
    except NoDaemon:
        return {
            pid: NO_DAEMON if known == UNCLEAR and pid not in told else known
            for pid, known in outcome.items()
        }
    except (ChannelError, answers.Incomplete, answers.Rejected) as error:
        print(f"MPS: {error}", file=sys.stderr)
    return outcome


def _clients(channel: Callable[[], ControlChannel]) -> dict[int, tuple[int, int]]:
    """Every client of every server: pid -> (server, pid)."""
    found: dict[int, tuple[int, int]] = {}
    for server in channel().server_list():
        try:
            found |= {client: (server, client) for client in channel().client_list(server)}
        except answers.Rejected:  # It has gone since.
            continue
    return found


def main(argv: Sequence[str] | None = None) -> int:
    known = argparse.ArgumentParser(
        prog="python -m cotenant.mps.terminate", description=__doc__.split("\n")[0]
    )
    known.add_argument("pipe_directory", metavar="PIPE_DIRECTORY", type=PurePosixPath)
    known.add_argument("pids", metavar="PID", type=int, nargs="+")
    known.add_argument("--timeout-s", metavar="S", type=float, default=TIMEOUT_S)
    options = known.parse_args(argv)
    outcome = terminate(options.pipe_directory, options.pids, options.timeout_s)
    print(json.dumps({str(pid): said for pid, said in outcome.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env -S python3 -IS
"""A stand-in for `nvidia-cuda-mps-control` (and its server) where the real one is not installed.

FAKE: it drives no GPU and proves nothing about one; its version line and log say so, so that no record made
with it can pass as real. It is our own text, written from observed behaviour. Rule: every answer below
carries the row (R..) of this table that it reproduces, and `test_contract.py` asserts the rows against this
program and against the genuine one alike. Seen on: a = 550.163.01, b = 535.261.03, both without a GPU;
d = only documented.

R1  ab  no daemon: complaint on stderr, status 1; also where its socket is stale
R2  ab  `-d` returns after listening; a second one says so, status 1
R3  ab  every error of a command is text on stdout, status 0; unknown words are complained about
R4  ab  a percentage out of range is not taken: the old one is echoed, the reason is in control.log only
R5  ab  memory limits: always silent; `1500M` is shown as `1G`, none as nothing; bad devices are dropped
R6  ab  priorities other than 0 and 1 are refused in words
R7  ab  a server list without servers is empty; `start_server` is silent, also where the server then dies
R8  ab  parallel front ends lose answers: some with status 1, some empty with status 0 (a `quit` as well)
R9  ab  pipe directories of more than 87 bytes: status 1 and no message; a missing one: named, status 1
R10 ab  SIGKILL leaves sockets and lock files; a new daemon starts there, with default settings
R11 ab  the pipe directory recreated under a live daemon: it is not found, and a second one starts
R12 ab  a log that cannot be written does not keep it from starting
R13 ab  `quit` without `-t` waits for clients, with it ends the servers; the `log` pipe goes, sockets stay
R14 ab  `terminate_client` of an unknown server: two lines of complaint, then `1`; success is `0` (d)
R15 a   `get_server_status` names INITIALIZING, ACTIVE or FAULT; b does not know the word
R16 d   in FAULT new clients are refused until every client has gone
R17 ab  another uid: refused in words, status 0
R18 ab  `-v` of newer drivers prints the version; older ones take it for a question to the daemon
R20 d   a server that takes clients is told of in control.log: `NEW SERVER PID: Ready` (the text is in b)
R19 a   a pid file without a line end; b writes none. Both lock `control_lock` while they live

A test controls the world by a JSON file named in MPS_STUB_WORLD, read before each command: `driver` (550
or 535), `gpu` (true; false: servers die at once), `clients` (pids of processes that are its clients),
`claims` (a folder: each file `ANY.PID.ANY` that says `M` and this pipe directory is a client while it
lives), `fault` (true, or the pipe directories of those it is true for), `stuck` (FAULT stays without
clients), `starts` (servers are INITIALIZING), `termination` (what success says), `stubborn` (terminated
clients stay on the list), `version` (what `-v` says), `foreign` (to whatever is asked it says this:
another control interface).
"""

import _socket  # The bare one: tests start hundreds of front ends, and `socket` is half of a start.
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # For `daemon.py`, and for nothing else.
FAKE = "fake: cotenant's stub, not NVIDIA's program"
PATH_BYTES_MAX = 87
PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
LOGS = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")


def start() -> int:
    """`-d`."""
    if not os.path.isdir(PIPE):
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={PIPE}", file=sys.stderr)  # R9.
        return 1
    if len(os.fsencode(PIPE)) > PATH_BYTES_MAX:
        return 1  # R9.
    if connected() is not None:
        print("An instance of this daemon is already running", file=sys.stderr)  # R2.
        return 1
    if not os.access(LOGS, os.W_OK):
        print(f"Cannot write to CUDA_MPS_LOG_DIRECTORY={LOGS}", file=sys.stderr)  # R12.
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    import daemon  # type: ignore[import-not-found]

    daemon.Daemon(PIPE, LOGS, FAKE).run(writer)
    return 0


def world() -> dict[str, object]:
    """Only read where a switch needs it: it costs a start of the front end a third."""
    import json

    path = os.environ.get("MPS_STUB_WORLD", "")
    if not path or not os.path.exists(path):
        return {}
    with open(path) as file:
        return dict(json.load(file))


def connected() -> _socket.socket | None:
    """R1, R11: found by its socket alone."""
    ui = _socket.socket(_socket.AF_UNIX)
    try:
        ui.connect(f"{PIPE}/control")
    except OSError:
        ui.close()
        return None
    return ui


def ask() -> int:
    """The front end: a command a line, answered in order."""
    ui = connected()
    if ui is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)  # R1.
        return 1
    if (place := ui.recv(1)) != b"+":
        if place == b"e":
            return 0  # R8: nothing said, and all is well.
        print("Cannot send command to MPS control daemon process", file=sys.stderr)
        return 1
    for line in sys.stdin:
        ui.sendall(line.encode() if line.endswith("\n") else f"{line}\n".encode())
        size = int.from_bytes(exactly(ui, 4), sys.byteorder)
        if size >= 0xFFFFFFFE:
            return size == 0xFFFFFFFE
        print(exactly(ui, size).decode(), end="", flush=True)
    return 0


def exactly(ui: _socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = ui.recv(size - len(data))
        if not part:
            print("Cannot send command to MPS control daemon process", file=sys.stderr)
            sys.exit(1)
        data += part
    return data


def main() -> int:
    if os.path.basename(sys.argv[0]) == "nvidia-cuda-mps-server":
        import signal

        while True:
            signal.pause()
    if sys.argv[1:2] == ["-v"]:
        print(f"CUDA MPS Control binary version: {world().get('version', 0)} ({FAKE})")  # R18, and the mark.
        return 0
    return start() if "-d" in sys.argv[1:] else ask()


if __name__ == "__main__":
    sys.exit(main())

"""The stub's daemon; the rows (R..) are those of `control.py`, which starts it and asks it."""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time

POLL_S = 0.05
WORLD = os.environ.get("MPS_STUB_WORLD", "")
PID_FILE = "nvidia-cuda-mps-control.pid"
UNKNOWN = 'Unknown command "{}"'


class World:
    """What the test says of it; see `control.py`."""

    def __init__(self, pipe: str) -> None:
        told = {}
        if WORLD and os.path.exists(WORLD):
            with open(WORLD) as file:
                told = json.load(file)
        self.driver = int(told.get("driver", 550))
        self.gpu = bool(told.get("gpu", True))
        self.clients = [int(pid) for pid in told.get("clients", [])] + claimants(told.get("claims", ""), pipe)
        fault = told.get("fault", False)
        self.fault = pipe in fault if isinstance(fault, list) else bool(fault)
        self.stuck = bool(told.get("stuck", False))
        self.starts = bool(told.get("starts", False))
        self.termination = str(told.get("termination", "0"))
        self.stubborn = bool(told.get("stubborn", False))
        self.foreign = str(told.get("foreign", ""))


def claimants(folder: str, pipe: str) -> list[int]:
    found = []
    for name in sorted(os.listdir(folder)) if folder else ():
        with open(f"{folder}/{name}") as file:
            if file.read() == f"M {pipe}":
                found.append(int(name.split(".")[1]))
    return [pid for pid in found if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Server:
    """A process of its own, so that its identity and its death are real."""

    def __init__(self, uid: int, percentage: float, limits: dict[int, str]) -> None:
        self.uid, self.percentage, self.limits = uid, percentage, dict(limits)
        program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "nvidia-cuda-mps-server")
        self.pid = os.posix_spawn(program, (program,), os.environ)


class Daemon:
    def __init__(self, pipe: str, logs: str, mark: str) -> None:
        self.pipe, self.logs, self.mark = pipe, logs, mark
        self.world = World(self.pipe)
        asked = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
        self.percentage = float(asked) if asked and 0 < float(asked) <= 100 else 100.0  # R10, R4.
        self.limits: dict[int, str] = {}
        self.priority = 0
        self.servers: dict[int, Server] = {}
        self.terminated: set[int] = set()
        self.losses = 0

    # --- Its life ----------------------------------------------------------------------------------

    def run(self, ready: int) -> None:
        """Listen for ever. R2: `ready` is written to when somebody may connect."""
        lock = os.open(f"{self.pipe}/control_lock", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # R19.
        if self.world.driver >= 550:
            with open(f"{self.pipe}/{PID_FILE}", "w") as file:
                file.write(str(os.getpid()))  # R19: no line end.
        listener = listen(f"{self.pipe}/control", 0o666)
        privileged = listen(f"{self.pipe}/control_privileged", 0o755)
        assert privileged.fileno() >= 0
        if not os.path.exists(f"{self.pipe}/log"):
            os.mkfifo(f"{self.pipe}/log")
        self.log(self.mark)
        self.log(f"Starting control daemon using socket {self.pipe}/control")
        os.write(ready, b"1")
        os.close(ready)
        while True:
            if select.select([listener], [], [], POLL_S)[0]:
                with listener.accept()[0] as ui:
                    try:
                        self.serve(ui, listener)
                    except OSError:  # The front end was killed.
                        self.log("UI closed")
            self.look()

    def serve(self, ui: socket.socket, listener: socket.socket) -> None:
        """One front end until it closes. R8: who else connects meanwhile loses its answer."""
        self.log("NEW UI")
        ui.sendall(b"+")
        data = b""
        while True:
            for ready in select.select([ui, listener], [], [], POLL_S)[0]:
                if ready is listener:
                    self.losses += 1
                    other = listener.accept()[0]
                    other.sendall(b"eb"[self.losses % 2 :][:1])
                    other.close()
                    continue
                part = ui.recv(65536)
                if not part:
                    return
                data += part
                while b"\n" in data:
                    line, _, data = data.partition(b"\n")
                    self.look()
                    answer = self.answer(line.decode(), uid_of(ui), ui)
                    ui.sendall(struct.pack("I", len(answer)) + answer.encode())

    def look(self) -> None:
        """Read the world, bury dead servers, start one for a first client."""
        self.world = World(self.pipe)
        for pid in list(self.servers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.log(f"Server {pid} exited with status 1")
                del self.servers[pid]
        if self.clients and not self.servers and self.world.gpu:
            self.start_server(os.stat(f"/proc/{self.clients[0]}").st_uid)

    def start_server(self, uid: int) -> None:
        server = Server(uid, self.percentage, self.limits)
        self.servers[server.pid] = server
        self.log(f"Starting new server {server.pid} for user {uid}")
        if self.world.gpu:
            self.log(f"NEW SERVER {server.pid}: Ready")  # R20.
        else:
            self.log("Server encountered a fatal exception. Shutting down")  # R7.
            self.log("Failed to start : no CUDA-capable device is detected", "server", server.pid)
            os.kill(server.pid, signal.SIGKILL)

    def log(self, text: str, name: str = "control", pid: int = 0) -> None:
        who = f"{'Control' if name == 'control' else 'Other'} {pid or os.getpid():5}"
        try:
            with open(f"{self.logs}/{name}.log", "a") as file:
                file.write(f"[{time.strftime('%F %T')}.000 {who}] {text}\n")
        except OSError:  # R12.
            pass

    @property
    def clients(self) -> list[int]:
        gone = () if self.world.stubborn else self.terminated
        return [pid for pid in self.world.clients if pid not in gone and is_running(pid)]

    # --- Its answers -------------------------------------------------------------------------------

    def answer(self, line: str, uid: int, ui: socket.socket) -> str:
        self.log(f"Cmd:{line}")
        word, *rest = line.split() or [""]
        if self.world.foreign:
            return f"{self.world.foreign}\n"
        if uid not in (0, os.getuid()) and word in ("quit", "start_server"):  # R17.
            if word == "quit":
                return "Not enough privilege to execute quit command\n"
            return f"Insufficient privileges for UID {uid}\n"
        known = getattr(self, f"do_{word}", None)
        missing = word == "get_server_status" and self.world.driver < 550  # R15.
        if known is None or missing:
            return UNKNOWN.format(word) + "\n"  # R3.
        if word == "quit":
            self.quit(rest, ui)
        lines: list[str] = known(*rest)
        for each in lines:
            self.log(each)
        return "".join(f"{each}\n" for each in lines)

    def quit(self, rest: list[str], ui: socket.socket) -> None:
        """R13: waits for clients, for ever or as long as it was told to."""
        limit_s = float(rest[1]) if rest[:1] == ["-t"] else float("inf")
        end_s = time.monotonic() + limit_s
        while self.clients and time.monotonic() < end_s:
            time.sleep(0.01)
            self.look()
        graceful = not self.clients
        for server in self.servers.values():
            os.kill(server.pid, signal.SIGKILL)
        for name in ("log", PID_FILE):
            if os.path.exists(f"{self.pipe}/{name}"):
                os.unlink(f"{self.pipe}/{name}")
        ui.sendall(struct.pack("I", 0xFFFFFFFF if graceful else 0xFFFFFFFE))
        os._exit(0)

    def do_quit(self) -> list[str]:
        raise AssertionError("quit has ended the process")

    def do_get_server_list(self) -> list[str]:
        return [str(pid) for pid in self.servers]  # R7.

    def do_start_server(self, _flag: str = "", uid: str = "0") -> list[str]:
        self.start_server(int(uid))
        return []  # R7.

    def do_get_server_status(self, pid: str = "") -> list[str]:
        if not pid:
            return ["A server PID is required"]
        if int(pid) not in self.servers:
            return [f"Server {pid} not found"]
        if self.world.starts:
            return ["INITIALIZING"]
        in_fault = self.world.stuck or (self.world.fault and self.clients)  # R16.
        return ["FAULT" if in_fault else "ACTIVE"]

    def do_get_client_list(self, pid: str = "0") -> list[str]:
        return [str(each) for each in self.clients] if int(pid) in self.servers else self.no_server(pid)

    def do_get_device_client_list(self, pid: str = "") -> list[str]:
        return self.do_get_client_list(pid) if pid else []

    def do_ps(self, _flag: str = "", pid: str = "") -> list[str]:
        if pid and int(pid) not in self.servers:
            return [*self.no_server(pid), *self.no_server(pid), ""]
        if not self.servers:
            return ["Server not found"]
        names = ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
        head = "{:10}{:10}{:15}{:20}{:15}{:15}".format(*names)
        server = next(iter(self.servers))
        rows = [
            f"{each:<10}{no:<10}{server:<15}{'GPU-11111111':20}{'4026531836':15}{'python':15}"
            for no, each in enumerate(self.clients)
        ]
        return [head, *rows]

    def do_get_default_active_thread_percentage(self) -> list[str]:
        return [f"{self.percentage:.1f}"]

    def do_set_default_active_thread_percentage(self, value: str = "0") -> list[str]:
        if 0 < float(value) <= 100:
            self.percentage = float(value)
        else:
            self.log("Invalid percentage, expected between (0.0, 100.0]")  # R4: not in the answer.
        return [f"{self.percentage:.1f}"]

    def do_get_active_thread_percentage(self, pid: str = "0") -> list[str]:
        server = self.servers.get(int(pid))
        return self.no_server(pid) if server is None else [f"{server.percentage:.1f}"]

    def do_set_active_thread_percentage(self, pid: str = "0", value: str = "0") -> list[str]:
        server = self.servers.get(int(pid))
        if server is None:
            return self.no_server(pid)
        if 0 < float(value) <= 100:
            server.percentage = float(value)
        return [f"{server.percentage:.1f}"]

    def do_set_default_device_pinned_mem_limit(self, device: str = "0", value: str = "") -> list[str]:
        if device.isdecimal():
            self.limits[int(device)] = value
        return []  # R5: also where the device is not a number, as a UUID is not.

    def do_get_default_device_pinned_mem_limit(self, device: str = "0") -> list[str]:
        """What is no number is read as C reads it: as 0."""
        number = int(device) if device.lstrip("-").isdecimal() else 0
        return shown(self.limits.get(number, ""))

    def do_set_device_pinned_mem_limit(self, pid: str = "0", device: str = "0", value: str = "") -> list[str]:
        server = self.servers.get(int(pid))
        if server is None:
            return self.no_server(pid)
        server.limits[int(device)] = value
        return []

    def do_get_device_pinned_mem_limit(self, pid: str = "0", device: str = "0") -> list[str]:
        server = self.servers.get(int(pid))
        return self.no_server(pid) if server is None else shown(server.limits.get(int(device), ""))

    def do_get_default_client_priority(self) -> list[str]:
        return [str(self.priority)]

    def do_set_default_client_priority(self, value: str = "0") -> list[str]:
        if value not in ("0", "1"):
            return ["Invalid priority value - must be 0 or 1!"]  # R6.
        self.priority = int(value)
        return []

    def do_terminate_client(self, pid: str = "0", client: str = "0") -> list[str]:
        if int(pid) not in self.servers:
            return [f"Server {pid} not found", f"Server {pid} not found!", "1"]  # R14.
        if int(client) not in self.clients:
            return [f"Invalid process {client}!", "1"]
        self.terminated.add(int(client))
        return [self.world.termination]

    def do_shutdown_server(self, pid: str = "0", flag: str = "") -> list[str]:
        if int(pid) not in self.servers:
            return self.no_server(pid)
        if flag == "-f" or not self.clients:
            os.kill(int(pid), signal.SIGKILL)
        return []

    @staticmethod
    def no_server(pid: str) -> list[str]:
        return [f"Server {pid} not found"]


def shown(limit: str) -> list[str]:
    """R5: whole gigabytes from one on."""
    if not limit[:-1].isdigit():
        return []
    size_mib = int(limit[:-1]) * (1024 if limit.endswith("G") else 1)
    return [f"{size_mib // 1024}G" if size_mib >= 1024 else f"{size_mib}M"]


def listen(path: str, mode: int) -> socket.socket:
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, mode)
    listener.listen(64)
    return listener


def uid_of(ui: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", ui.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)

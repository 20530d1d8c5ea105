"""A stand-in for `systemctl` that a test puts on PATH: it notes what it was asked, and can do it.

It reads the units that are there and starts their ExecStart lines as their User=, with the folders that they
ask for. What is asked goes to `asked` in the folder SYSTEMCTL_STATE, a line each; `NAME.pid` there is a
service that runs.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil


def state() -> Path:
    return Path(os.environ["SYSTEMCTL_STATE"])


def main(words: list[str]) -> int:
    is_system = "--user" not in words
    verb, *names = [word for word in words if not word.startswith("--")]
    with (state() / "asked").open("a") as asked:
        asked.write(shlex.join(words) + "\n")
    if verb not in ("start", "stop", "restart", "disable"):
        return 0
    for name in (f"{each.removesuffix('.service')}.service" for each in names):
        if verb != "start":
            stop(name)
        if verb in ("start", "restart"):
            start(name, is_system)
    return 0


def settings_of(name: str, is_system: bool) -> dict[str, list[str]]:
    folder = Path("/etc/systemd/system") if is_system else Path(os.environ["XDG_CONFIG_HOME"], "systemd/user")
    found: dict[str, list[str]] = {}
    for line in (folder / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def start(name: str, is_system: bool) -> None:
    if pid_of(name):
        return
    unit = settings_of(name, is_system)
    account = pwd.getpwnam(unit["User"][0]) if "User" in unit else None
    for kind, base in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")):
        for folder in unit.get(kind, ()):
            path = Path(base, folder)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(int(unit[f"{kind}Mode"][0], 8))
            if account is not None:
                os.chown(path, account.pw_uid, account.pw_gid)
    env = {key: os.environ[key] for key in ("PATH", "COTENANT_LOCK_DIR") if key in os.environ}
    if not is_system:
        env |= {key: value for key, value in os.environ.items() if key.startswith(("XDG_", "HOME"))}
    env |= dict(
        word.partition("=")[::2] for line in unit.get("Environment", ()) for word in shlex.split(line)
    )
    with (state() / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(
            shlex.split(unit["ExecStart"][0]),
            cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, umask=int(unit.get("UMask", ["0022"])[0], 8),
            user=account.pw_uid if account else None, group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )  # fmt: skip
    (state() / f"{name}.pid").write_text(str(started.pid))


def pid_of(name: str) -> int:
    try:
        pid = int((state() / f"{name}.pid").read_text())
        return pid if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else 0
    except (OSError, psutil.NoSuchProcess):
        return 0


def stop(name: str) -> None:
    """Ends its own process alone, as with KillMode=process."""
    if pid := pid_of(name):
        os.kill(pid, signal.SIGTERM)
    while pid and pid_of(name):
        time.sleep(0.02)
    (state() / f"{name}.pid").unlink(missing_ok=True)


def put_on_path(folder: Path) -> Path:
    """A folder for PATH with this program as `systemctl`, and `sudo` for who is root already."""
    folder.mkdir()
    source = Path(__file__).resolve()
    for name, line in (
        ("systemctl", f'exec {shlex.quote(sys.executable)} {shlex.quote(str(source))} "$@"'),
        ("sudo", 'exec "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A machine with root's agent, its controller and three accounts: every path that they share is as the table
in docs/operating.md has it. `shared_places.py WORK`.

Rule: it runs as root in namespaces of its own, as `one_box.py` does, and what `cotenant service install
--system` has written. Before that an account puts in place whatever it can.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.building.systemctl import put_on_path  # noqa: E402
from tests.live.one_box import follow, mount, separate  # noqa: E402

PAGE = ROOT / "docs" / "operating.md"
PEOPLE = ("ann", "bob", "eve")
OWNERS = {"user": ("ann", "bob"), "account": ("eve", "root")}
LOCKS = Path("/run/lock/cotenant")
PLACES = ("/run", "/tmp", "/etc/cotenant", "/var/lib/cotenant-agent", "/var/lib/cotenant-controller")
NOT_OURS = re.compile(r"/run/lock|/run/mount(/utab.*)?|/tmp/torchinductor_.*")
NOT_MET = re.compile(
    r"/run/cotenant/mps.*|/var/lib/cotenant-agent/(mps|devices.json)|/etc/cotenant/keys|/run/user.*|/tmp/.*[?].*"
)
"""Rows of GPUs with MPS, of TCP, of sessions of logind, and of deep state folders: none is here."""
STRAY = """
import fcntl, glob, sys
held = [open(path) for path in sorted(glob.glob("/run/lock/cotenant/*.*"))]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
print("holds", len(held), flush=True)
sys.stdin.read()
"""
TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
adam = torch.optim.Adam(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
for epoch in range(3):
    for batch in data:
        adam.zero_grad()
        model(batch).sum().backward()
        adam.step()
"""


class Row(NamedTuple):
    pattern: str
    owner: str
    modes: frozenset[int]

    def names(self, path: Path) -> bool:
        parts = re.split(r"(\*\*|\*|\?)", self.pattern)
        wild = {"**": ".+", "*": "[^/]+", "?": "[^/]"}
        return re.fullmatch("".join(wild.get(each, re.escape(each)) for each in parts), str(path)) is not None

    @property
    def exactness(self) -> tuple[int, int]:
        return len(re.sub(r"[*?]", "", self.pattern)), self.pattern.count("?")


def rows() -> list[Row]:
    """The table; a name that is no path lies in the folder of the first one of its row, or is a path from the
    agent's state folder on."""
    found = []
    text = PAGE.read_text().partition("## Shared paths\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`([^`]+)`", cells[0]) if line.startswith("| `") else []
        for name in names:
            above = Path(names[0]).parent
            while name.partition("/")[0] == above.name:
                above = above.parent
            path = name if name.startswith("/") else f"{above}/{name}"
            found.append(Row(path, cells[1], frozenset(int(mode, 8) for mode in cells[2].split(", "))))
    assert len(found) > 40, "the table was not found"
    return sorted(found, key=lambda row: row.exactness, reverse=True)


def ways() -> tuple[Path, ...]:
    """What every account has to reach."""
    return Path(sys.executable), Path(sys.executable).resolve(), Path(sys.base_prefix).resolve(), ROOT


def why_not_ours() -> str:
    """Why root would not run this interpreter for others."""
    found = {each for way in ways() for each in (way, *way.parents)}
    of_others = [each for each in found if each.stat().st_uid != 0 or is_open(each)]
    return f"others than root may change {min(of_others)}, where this Python is" if of_others else ""


def is_open(path: Path) -> bool:
    mode = path.stat().st_mode
    return bool(mode & 0o022) and not mode & 0o1000


def open_way(work: Path) -> None:
    """Lets every account reach this interpreter, as it reaches an installed one: a layer over each folder
    that is closed to others."""
    over = work / "way"
    over.mkdir()
    mount("-t", "tmpfs", "way", str(over))
    for found in ways():
        for folder in reversed(found.parents):
            if folder.stat().st_mode & 0o001:
                continue
            number = len(list(over.iterdir()))
            upper, scratch = over / f"{number}", over / f"{number}.work"
            upper.mkdir(mode=0o755)
            scratch.mkdir()
            where = f"lowerdir={folder},upperdir={upper},workdir={scratch}"
            mount("-t", "overlay", "way", "-o", where, str(folder))


def walk(folder: Path, known: list[Row], skipped: tuple[Path, ...]) -> Iterator[Path]:
    """What several accounts can reach below a folder; of one that its owner alone enters what a row names."""
    is_closed = not folder.stat().st_mode & 0o077
    for each in sorted(folder.iterdir()):
        if is_closed and not any(row.names(each) for row in known):
            continue
        if not any(kept.is_relative_to(each) for kept in skipped):
            yield each
            if each.is_dir() and not each.is_symlink():
                yield from walk(each, known, skipped)


def compare(paths: list[Path], known: list[Row]) -> set[Row]:
    """Checks every path against the table; returns the rows that were met."""
    wrong, met = [], set()
    for path in paths:
        row = next((each for each in known if each.names(path)), None)
        try:
            found = path.lstat()
        except FileNotFoundError:  # A record's new text, which has its name by now.
            continue
        owner, mode = pwd.getpwuid(found.st_uid).pw_name, stat.S_IMODE(found.st_mode)
        if row is None or mode not in row.modes or owner not in OWNERS.get(row.owner, (row.owner,)):
            wrong.append(f"{path}: {owner} {mode:04o}, and the table has {row}")
        else:
            met.add(row)
    assert not wrong, "\n".join(wrong)
    return met


def as_user(who: str, act: Callable[[], list[str]]) -> list[str]:
    """What a process of theirs returns."""
    account = pwd.getpwnam(who)
    out, into = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
            os.write(into, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as said:
        answer: list[str] = json.loads(said.read())
    os.wait()
    return answer


def locked_inodes() -> set[int]:
    return {int(line.split()[-3].split(":")[2]) for line in Path("/proc/locks").read_text().splitlines()}


def try_everything(who: str, paths: list[Path]) -> list[str]:
    """What this account can do to paths that are not its own. In the folder that agents of accounts share, it
    may make files, and lock theirs."""
    locked = locked_inodes()

    def act() -> list[str]:
        done: list[str] = []
        for path in paths:
            with suppress(OSError):
                found = path.lstat()
                if os.getuid() in (found.st_uid, path.parent.lstat().st_uid):
                    continue
                done += tried(partial(path.rename, path.with_name("away")), f"renames {path}")
                done += tried(partial(path.chmod, 0o777), f"opens {path}")
                if stat.S_ISDIR(found.st_mode) and path != LOCKS:
                    done += tried((path / f"of-{who}").mkdir, f"makes a folder in {path}")
                elif stat.S_ISREG(found.st_mode):
                    done += tried(partial(os.open, path, os.O_WRONLY), f"writes to {path}")
                    if found.st_ino in locked and path.parent != LOCKS:
                        done += tried(partial(os.open, path, os.O_RDONLY), f"locks {path}")
        return done

    return as_user(who, act)


def tried(act: Callable[[], object], name: str) -> list[str]:
    try:
        act()
    except OSError:
        return []
    return [name]


def plant() -> list[str]:
    """What earlier versions left, or an account can put there before root's agent has come."""
    LOCKS.mkdir()
    LOCKS.chmod(0o1777)
    for core in range(os.cpu_count() or 1):
        for end in ("agent", "jobs"):
            file = LOCKS / f"core-{core}.{end}"
            file.write_text('{"pid": 1, "uid": 7, "user": "bob", "host": "bobs", "since": "", "token": ""}')
            file.chmod(0o666)
    (LOCKS / "root").mkdir()
    (LOCKS / "root" / "core-0.agent").touch()
    return []


class Machine:
    """Its commands, as root and as its people."""

    def __init__(self, work: Path) -> None:
        self.work = work
        programs = str(Path(sys.executable).parent)
        common = {"LANG": "C.UTF-8"}
        shims = put_on_path(work / "shims")
        self.roots = {"PATH": f"{shims}:{programs}:/usr/bin:/usr/sbin:/bin:/sbin", **common}
        self.roots["SYSTEMCTL_STATE"] = str(work)
        self.persons = {"PATH": f"{programs}:/usr/bin:/bin", **common}

    def __call__(self, commands: str, who: str = "root") -> str:
        env = self.roots if who == "root" else self.persons
        return follow(commands, env, who, "/" if who == "root" else pwd.getpwnam(who).pw_dir)

    def devices(self) -> list[str]:
        """The notes of devices that are not offered."""
        (node,) = json.loads(self("cotenant nodes -o json"))["nodes"]
        return [device["note"] for device in node["devices"] if not device["healthy"]]

    def run_jobs(self) -> None:
        """One of each that runs on, from a snapshot, and one that has trained."""
        for who in ("ann", "bob"):
            self("cotenant submit --snapshot copy -- sh -c 'echo $$ >~/pid; exec sleep 1000'", who)
            self("until [ -s ~/pid ]; do sleep 0.1; done", who)
        Path(pwd.getpwnam("ann").pw_dir, "train.py").write_text(TRAINING)
        self(f"cotenant wait $(cotenant submit -- {sys.executable} train.py)", "ann")

    def show_root_s_devices_to_an_agent(self) -> None:
        """An account's own agent, beside root's, is told whose the devices are."""
        Path(pwd.getpwnam("eve").pw_dir, "own.toml").touch()
        own = "export COTENANT_CONFIG=~/own.toml"
        up = "setsid cotenant up --devices cpu:1 --oversubscribe >up.log 2>&1 &"
        self(f"{own}; {up} until grep -q 'agent ready' up.log; do sleep 0.1; done", "eve")
        said = self(f"{own}; cotenant nodes -o json", "eve")
        assert "taken: in use by the agent of root (pid " in said, said


def main(work: Path) -> None:
    separate(work)
    open_way(work)
    Path("/run/lock").mkdir()
    Path("/run/lock").chmod(0o1777)
    for who in PEOPLE:
        subprocess.run(["useradd", "--create-home", who], check=True)
    Path("/etc/cotenant").mkdir()
    Path("/etc/cotenant/slots.toml").write_text('[agent]\ndevices = "cpu:4"\noversubscribe = true\n')
    machine = Machine(work)
    as_user("eve", plant)
    eve = pwd.getpwnam("eve").pw_uid
    with subprocess.Popen(
        [sys.executable, "-c", STRAY], user=eve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stray:
        assert stray.stdout is not None and stray.stdout.readline().startswith("holds")
        machine("cotenant service install --system")
        assert machine.devices() == [], "a process that holds locks keeps root's agent from nothing"
        machine.run_jobs()
        log = work / "cotenant-agent.service.log"
        machine(f"kill -9 $(cat {log.with_suffix('.pid')}); systemctl restart cotenant-agent")
        machine(f"until [ $(grep -c 'ready: 4 devices' {log}) = 2 ]; do sleep 0.1; done")
        stray.kill()
    for path in LOCKS.iterdir():
        if path.stat().st_uid == eve:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    machine.show_root_s_devices_to_an_agent()
    known = rows()
    found = [each for place in PLACES for each in walk(Path(place), known, (work, ROOT))]
    paths = [each for each in found if not NOT_OURS.fullmatch(str(each))] + [*map(Path, PLACES[2:])]
    met = compare(paths, known)
    assert [row.pattern for row in known if row not in met and not NOT_MET.fullmatch(row.pattern)] == []
    for who in PEOPLE:
        done = try_everything(who, paths)
        assert done == [], f"{who} {done}"
    print("the table is true")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

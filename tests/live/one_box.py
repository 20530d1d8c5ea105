"""The page docs/one-box.md, followed to the letter in a machine of its own: `one_box.py WHEEL UV WORK`.

Rule: it runs as root in namespaces of its own (mounts and processes), made by its test. All that it changes
(accounts, homes, units, /opt) lies on layers above the real folders, and goes with the namespaces.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.building.limits import within_s  # noqa: E402
from tests.building.systemctl import put_on_path  # noqa: E402

PAGE = ROOT / "docs" / "one-box.md"
PEOPLE = ("ann", "bob", "cem", "dia", "eva")
LAYERED = ("/etc", "/home", "/opt", "/usr/local", "/var")
EMPTY = ("/run", "/tmp")
TRAINING = """
import os, pathlib, torch_of_mine
pathlib.Path("done").write_text(f"{os.getuid()} {os.getcwd()} {torch_of_mine.__file__}")
"""
"""Imports something that only the person's own folder has."""


APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def why_no_machine() -> str:
    """Why there can be no machine of its own here."""
    if os.geteuid() != 0:
        return "making users needs root"
    lacking = [name for name in ("useradd", "unshare", "mount") if shutil.which(name) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)} here"
    layers = (
        "mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w",
        "mount -t overlay o -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc",
    )
    tried = subprocess.run([*APART, "sh", "-c", " && ".join(layers)], capture_output=True, text=True)
    return f"no layers can be mounted here: {tried.stderr.strip()}" if tried.returncode else ""


def run_apart(program: Path, work: Path, *words: str | Path) -> str:
    """What a program prints on a machine of its own. Its shell is process 1 there, and reaps orphans."""
    shell = f'{sys.executable} {program} "$@"; exit $?'
    done = subprocess.run(
        [*APART, "sh", "-c", shell, "sh", *words, work],
        capture_output=True,
        text=True,
        timeout=within_s(400),
        check=False,
    )
    logs = "".join(f"\n== {log.name}\n{log.read_text()[-3000:]}" for log in work.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def separate(work: Path) -> None:
    """Puts a layer over each folder that the page changes."""
    over = work / "layers"
    over.mkdir()
    mount("-t", "tmpfs", "layers", str(over))
    for name in LAYERED:
        upper, scratch = over / name.replace("/", "_"), over / f"{name.replace('/', '_')}.work"
        upper.mkdir()
        scratch.mkdir()
        options = f"lowerdir={name},upperdir={upper},workdir={scratch}"
        mount("-t", "overlay", "layer", "-o", options, name)
    kept = [work, *([ROOT] if any(ROOT.is_relative_to(name) for name in EMPTY) else [])]
    mount("-t", "tmpfs", "kept", "/mnt")
    places = [Path("/mnt", str(number)) for number in range(len(kept))]
    for place, folder in zip(places, kept, strict=True):
        place.mkdir()
        mount("--bind", str(folder), str(place))
    for name in EMPTY:
        mount("-t", "tmpfs", "empty", name)
        os.chmod(name, 0o1777 if name == "/tmp" else 0o755)
    for place, folder in zip(places, kept, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        mount("--move", str(place), str(folder))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def follow(commands: str, env: dict[str, str], who: str = "root", cwd: str = "/") -> str:
    """One shell, as that person; each command must do."""
    account = pwd.getpwnam(who)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", commands],
        cwd=cwd,
        env={**env, "HOME": account.pw_dir, "USER": who},
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=os.getgrouplist(who, account.pw_gid),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s(120),
        check=False,
    )
    print(f"== {who}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0, f"{who}: {done.returncode}\n{commands}"
    return done.stdout


def refused(commands: str, env: dict[str, str], who: str, *says: str) -> None:
    said = follow(f"if {commands} 2>&1; then exit 9; fi", env, who, pwd.getpwnam(who).pw_dir)
    assert all(words in said for words in says), said


def main(wheel: Path, uv: Path, work: Path) -> None:
    separate(work)
    install, use, limit = blocks()
    root = {
        "PATH": f"{put_on_path(work / 'shims')}:{uv.parent}:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin"
    }
    root |= {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_", "http"))}
    root |= {"SYSTEMCTL_STATE": str(work), "UV_CACHE_DIR": str(work / "cache"), "LANG": "C.UTF-8"}
    person = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    for who in PEOPLE:
        subprocess.run(["useradd", "--create-home", who], check=True)
        home = Path(pwd.getpwnam(who).pw_dir)
        for name, text in (("train.py", TRAINING), ("torch_of_mine.py", "")):
            (home / name).write_text(text)
        home.chmod(0o700)
        os.chown(home, pwd.getpwnam(who).pw_uid, pwd.getpwnam(who).pw_gid)

    Path("/etc/cotenant").mkdir()
    Path("/etc/cotenant/slots.toml").write_text('[agent]\ndevices = "cpu:6"\noversubscribe = true\n')
    assert "ok" in follow(install, root, cwd=str(wheel.parent))
    jobs = {}
    for who in PEOPLE:
        said = follow(use, person, who, pwd.getpwnam(who).pw_dir)
        jobs[who] = said.splitlines()[0].strip()
    for who, job in jobs.items():
        follow(f"cotenant wait {job} && cotenant logs {job}", person, who)
        account = pwd.getpwnam(who)
        done = Path(account.pw_dir, "done")
        wanted = f"{account.pw_uid} {account.pw_dir} {account.pw_dir}/torch_of_mine.py"
        assert done.read_text() == wanted and done.stat().st_uid == account.pw_uid
    usage = follow("cotenant usage", person, "eva")
    assert all(who in usage for who in PEOPLE), usage
    check_rights(jobs, root, person)
    of_ann = pwd.getpwnam("ann").pw_dir
    job = follow("cotenant submit -- sh -c 'echo $$ > pid; exec sleep 1000'", person, "ann", of_ann).strip()
    follow("until [ -s pid ]; do sleep 0.1; done", person, "ann", of_ann)
    before = follow("sudo systemctl show; cat *.pid", root, cwd=str(work)).split()
    follow(limit, root)
    assert not set(before) & set(follow("cat *.pid", root, cwd=str(work)).split()), "both are new processes"
    follow(
        f'until cotenant show {job} -o json | grep \'"state": "running"\'; do sleep 0.1; done', person, "bob"
    )
    refused("cotenant submit -g 5 -- true", person, "bob", "may hold 4 at once")
    said = follow("sudo cotenant service install --system", root)
    assert said.count("unchanged") == 2 and "wrote" not in said, "it is idempotent"
    follow("sudo cotenant service uninstall", root)
    os.kill(int(Path(of_ann, "pid").read_text()), 0)  # Jobs run on.
    assert not list(Path("/etc/systemd/system").glob("cotenant-*"))
    print("the page is true")


def check_rights(jobs: dict[str, str], root: dict[str, str], person: dict[str, str]) -> None:
    """A person changes own jobs only; root changes all; nobody else may be root."""
    job = follow("cotenant submit -- sleep 1000", person, "ann", "/tmp").strip()
    refused(f"cotenant cancel {job}", person, "bob", "not-allowed", "belongs to ann")
    refused("cotenant policy set fifo", person, "bob", "only admins")
    refused("cotenant service uninstall --system", person, "bob", "only root may")
    assert "error" in follow("cotenant up 2>&1 || true", person, "bob"), "the machine's answers"
    follow(f"sudo cotenant cancel {job}", root)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

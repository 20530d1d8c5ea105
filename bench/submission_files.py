"""Through how many files one submission goes: those of ours that run a function for the first time in their
process between `cotenant submit` and the started worker.

    python bench/submission_files.py [--devices cpu:1] [--idle-s 12]

A private cluster is left idle first, so that what runs also without a job (heartbeats, samples) is not
counted. Code that runs while a module is imported is left out. A file that two processes enter counts once
in the sum. The worker's own process is not looked at.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0
HOOK = """
import os, sys, threading, time
FOLDER, ROOT, seen, out = os.environ.get("COTENANT_BENCH_FILES", ""), {root!r}, set(), {{}}
def note(frame, event, argument):
    code = frame.f_code
    name = code.co_filename
    if event != "call" or name in seen or not name.startswith(ROOT) or "/.venv/" in name:
        return
    if not code.co_flags & 2:  # The body of a module or a class has no locals of its own.
        return
    caller = frame.f_back
    while caller is not None:
        if "importlib" in caller.f_code.co_filename:
            return
        caller = caller.f_back
    seen.add(name)
    with open(f"{{FOLDER}}/{{os.getpid()}}", "a") as file:
        file.write(f"{{time.time()}} {{name.removeprefix(ROOT)}}\\n")
if os.path.isdir(FOLDER):
    sys.setprofile(note)
    threading.setprofile(note)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="cpu:1")
    parser.add_argument("--idle-s", type=float, default=12.0, help="how long the cluster idles first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        folder = Path(name)
        begun_s, started_s = run_one_job(folder, options.devices, options.idle_s)
        files = {
            process.name: files_between(process, begun_s, started_s)
            for process in sorted((folder / "files").iterdir())
        }
    for process, found in files.items():
        if found:
            print(f"process {process}: {len(found)} files, such as {', '.join(sorted(found)[:3])}")
    print(f"together {len(set().union(*files.values()))} files")


def run_one_job(folder: Path, devices: str, idle_s: float) -> tuple[float, float]:
    """When a job was submitted to an idle cluster, and when its worker began (Unix seconds)."""
    for part in ("files", "home/run", "hook"):
        (folder / part).mkdir(parents=True)
    (folder / "home/run").chmod(0o700)
    (folder / "hook/sitecustomize.py").write_text(HOOK.format(root=f"{ROOT}/"))
    worker = folder / "worker.sh"
    worker.write_text(f"date +%s.%N > {folder}/started.new && mv {folder}/started.new {folder}/started\n")
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "home/run"),
        "PYTHONPATH": str(folder / "hook"),
        "COTENANT_BENCH_FILES": str(folder / "files"),
    }
    command = (sys.executable, "-m", "cotenant.controller.cli.main")
    with (folder / "up.log").open("wb") as log:
        cluster = subprocess.Popen(
            (*command, "up", "--devices", devices), env=environment, stdout=log, stderr=log, cwd=folder
        )
        try:
            time.sleep(idle_s)
            begun_s = time.time()
            submit = (*command, "submit", "--", "sh", str(worker))
            subprocess.run(submit, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            until_s = time.monotonic() + START_TIMEOUT_S
            while not (folder / "started").exists():
                if time.monotonic() > until_s or cluster.poll() is not None:
                    sys.exit(f"no worker started:\n{(folder / 'up.log').read_text()}")
                time.sleep(0.05)
            return begun_s, float((folder / "started").read_text())
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait()


def files_between(process: Path, begun_s: float, started_s: float) -> set[str]:
    """What a process entered first in that time."""
    entries = (line.split(" ", 1) for line in process.read_text().splitlines())
    return {name for when, name in entries if begun_s <= float(when) <= started_s}


if __name__ == "__main__":
    main()

"""What a number depends on: the machine, the versions, the commit. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def facts(**versions: str) -> dict[str, str | int | float]:
    """For a JSON result; `versions` are those of the libraries that matter to it."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "processor": _processor(),
        "linux": platform.release().partition("-")[0],
        "load_1_min": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
        "commit": _COMMIT,
    }


def sentences(**versions: str) -> str:
    """The same for a page."""
    known = facts(**versions)
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Machine: {known['cores']} cores ({known['processor']}), {known['memory_gib']} GiB, "
        f"Linux {known['linux']}, load {known['load_1_min']} at the end.\n"
        f"Python {known['python']}{', ' if libraries else ''}{libraries}. Commit: {known['commit']}."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Marked "-dirty" where files are not as they were committed: then nobody can run it again."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


_COMMIT = _commit()
"""As the run began: a commit that is made while it goes on is not the one that is measured."""

"""`scontrol` inside a job: the hosts of the job one by one, what is known of the job, and its way back to the
queue.

Rule: a host is named so that it can be reached: scripts take the first one's name for MASTER_ADDR.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .hostlist import address, hostnames

LEAVING_S = 60.0
"""A requeue ends this script; returning before that would look like the script's own end."""
KNOWN = "show hostnames [LIST], show job, requeue JOB"


def main(words: list[str]) -> int:
    env = dict(os.environ)
    words = [word for word in words if word not in ("-o", "--oneliner", "-Q", "--quiet")]
    if words[:2] in (["show", "hostnames"], ["show", "hostname"]):
        names = hostnames(words[2] if len(words) > 2 else env.get("SLURM_JOB_NODELIST", ""))
        print("\n".join(address(name, env) for name in names))
        return 0
    if words[:2] == ["show", "hostlist"] and len(words) == 3:
        print(words[2])
        return 0
    if words[:2] == ["show", "job"]:
        return show_job(env, words[2:])
    if words[:1] == ["requeue"]:
        return requeue(env, words[1:])
    print(f"scontrol: error: {' '.join(words)!r} is not possible here; known are {KNOWN}", file=sys.stderr)
    return 1


def is_own(env: os._Environ[str] | dict[str, str], name: str) -> bool:
    return name in (env.get("SLURM_JOB_ID"), env.get("COTENANT_JOB"))


def show_job(env: dict[str, str], names: list[str]) -> int:
    if names and not is_own(env, names[0]):
        return ask("cotenant.controller.slurm.aliases.programs", "scontrol", "show", "job", *names, env=env)
    end = env.get("SLURM_JOB_END_TIME")
    print(f"JobId={env.get('SLURM_JOB_ID', '')} JobName={env.get('SLURM_JOB_NAME', '')}")
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    print(f"   UserId={env.get('SLURM_JOB_USER', '')} JobState=RUNNING Restarts={restarts}")
    ends = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(end))) if end else "Unknown"
    print(f"   TimeLimit={time_limit(env)} EndTime={ends} WorkDir={os.getcwd()}")
    print(f"   NodeList={env.get('SLURM_JOB_NODELIST', '')} NumNodes={env.get('SLURM_JOB_NUM_NODES', '')}")
    return 0


def time_limit(env: dict[str, str]) -> str:
    """What this attempt may take, as Slurm writes it."""
    if "SLURM_JOB_END_TIME" not in env:
        return "UNLIMITED"
    minutes, seconds = divmod(int(env["SLURM_JOB_END_TIME"]) - int(env["SLURM_JOB_START_TIME"]), 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes % 60:02}:{seconds:02}"


def ask(module: str, *words: str, env: dict[str, str]) -> int:
    """The exit code of a program of ours outside the job, which speaks with the controller."""
    env = {name: value for name, value in env.items() if name != "PYTHONPATH"}  # There is a part of us on it.
    return subprocess.run([sys.executable, "-m", module, *words], env=env).returncode


def requeue(env: dict[str, str], names: list[str]) -> int:
    jobs = [env.get("COTENANT_JOB", "") if is_own(env, name) else name for name in names]
    if not jobs:
        print("scontrol: error: requeue which job?", file=sys.stderr)
        return 1
    code = ask("cotenant.controller.cli.main", "requeue", *jobs, env=env)
    if code == 0 and env.get("COTENANT_JOB") in jobs:
        time.sleep(LEAVING_S)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Slurm's own programs, asked and told: squeue, sinfo, sacct, scontrol, sbatch, scancel.

Rule: every call has a limit in time and in text, runs in the C locale without the caller's SQUEUE_*, SACCT_*
and SINFO_* (they would filter what is seen), and in a group of its own, so that Ctrl-C does not end it half
way. Nothing here decides.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.steer.core.estimates import PAST_FIELDS, PastRun, runs_in
from cotenant.controller.slurm.steer.core.queue import (
    JOB_FIELDS,
    MARK_FIELDS,
    MARK_NAME,
    NODE_FIELDS,
    Mark,
    QueueJob,
    SlurmQueue,
    columns,
    jobs_in,
    marks_in,
    nodes_in,
)
from cotenant.controller.submission.recording import user_name

ANSWER_S: Final = 60.0
"""A slurmctld that restarts is waited for by its clients, up to a minute."""
TEXT_BYTES_MAX: Final = 64 << 20
"""Some 300,000 rows."""
ERROR_CHARS_MAX: Final = 300
FILTERS: Final = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SBATCH_", "SCANCEL_")
OTHERS: Final = ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
UNKNOWN_JOB: Final = "Invalid job id"

_CONFIG: Final = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_ERROR: Final = re.compile(r"^\w+: error: ", re.MULTILINE)
"""squeue ends well after it has left a column out."""
_NO_ACCOUNTS: Final = ("accounting storage is disabled", "not running a supported accounting_storage")


class SlurmProblem(Problem):
    """Says in one line why Slurm could not be asked, or refused."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message, "is this a host of the cluster? try `sinfo`")


class NoAccounting(SlurmProblem):
    """Says that this cluster keeps no accounts of jobs that have ended."""


class SlurmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of `scontrol show config`."""

    cluster: str
    version: str
    priority_type: str
    slurm_user: str
    slurm_uid: int


class Slurm:
    """The cluster of Slurm that the environment chooses."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        kept = {
            name: value
            for name, value in environ.items()
            if not name.startswith(FILTERS) and name not in OTHERS
        }
        self._env = {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}

    # --- Asking ------------------------------------------------------------------------------------

    def config(self) -> SlurmConfig:
        said = dict(_CONFIG.findall(self._ask("scontrol", "show", "config")))
        name, _, rest = said.get("SlurmUser", "").partition("(")
        uid = rest.rstrip(") ")
        return SlurmConfig(
            cluster=said.get("ClusterName", "").strip(),
            version=said.get("SLURM_VERSION", "").strip(),
            priority_type=said.get("PriorityType", "").strip(),
            slurm_user=name,
            slurm_uid=int(uid) if uid.isascii() and uid.isdigit() else -1,
        )

    def may_operate(self, config: SlurmConfig) -> bool:
        """Whether we may set the priorities of other people's jobs."""
        if os.geteuid() in (0, config.slurm_uid):
            return True
        try:
            who = f"name={user_name(os.geteuid())}"
            level = self._ask("sacctmgr", "-n", "-P", "show", "user", who, "format=adminlevel")
        except SlurmProblem:
            return False
        return level.strip() in ("Administrator", "Operator")

    def queue(self, now_s: float) -> SlurmQueue:
        """Asks for the queue and the nodes, nodes first: a job that starts in between is seen as started, and
        its place as free."""
        end = _end()
        nodes = self._ask("sinfo", "-a", "-h", "-N", "-O", columns(NODE_FIELDS, end))
        jobs = self._ask("squeue", "-a", "-h", "-O", columns(JOB_FIELDS, end))
        return SlurmQueue(now_s=now_s, jobs=tuple(jobs_in(jobs, end)), nodes=nodes_in(nodes, end))

    def past_runs(self, from_s: float, to_s: float) -> list[PastRun]:
        """Jobs that ended well, or at their limit, in this time.

        Raises:
            NoAccounting: nobody counts them.
        """
        delimiter = f"|{_end()}|"
        states = ("-s", "CD,TO", "-S", _moment(from_s), "-E", _moment(to_s))
        fields = ("-P", f"--delimiter={delimiter}", "-o", ",".join(PAST_FIELDS))
        return list(runs_in(self._ask("sacct", "-a", "-X", "-n", *states, *fields), delimiter))

    def marks(self) -> list[Mark]:
        end = _end()
        text = self._ask("squeue", "-a", "-h", "-n", MARK_NAME, "-O", columns(MARK_FIELDS, end))
        return list(marks_in(text, end))

    # --- Telling -----------------------------------------------------------------------------------

    def set_priorities(self, priorities: Mapping[int, int]) -> list[str]:
        """What was refused, in Slurm's words; a job that has gone meanwhile is no refusal."""
        return self._tell(
            [f"update jobid={job_id} priority={priority}" for job_id, priority in priorities.items()]
        )

    def release(self, jobs: Iterable[QueueJob]) -> list[str]:
        """Gives these jobs back: their priorities are Slurm's own again."""
        return self._tell([f"release {job.job_id}" for job in jobs])

    def put_mark(self) -> int:
        """A new mark's number; it does not count before it has its comment."""
        words = ("--parsable", "--hold", f"--job-name={MARK_NAME}", "--output=/dev/null", "--chdir=/")
        said = self._ask("sbatch", *words, "--time=1", "--ntasks=1", text="#!/bin/sh\n:\n")
        number = said.strip().partition(";")[0]
        if not (number.isascii() and number.isdecimal()):
            raise SlurmProblem(f"sbatch: no job's number in {said[:80]!r}")
        return int(number)

    def sign_mark(self, mark: Mark) -> None:
        refused = self._tell([f"update jobid={mark.job_id} admincomment={mark.comment}"])
        if refused:
            raise SlurmProblem(f"the mark, job {mark.job_id}: {refused[0]}")

    def remove_mark(self, job_id: int) -> None:
        """Removes a mark; one that is gone is no problem."""
        code, _, said = self._run(("scancel", str(job_id)), "")
        if code and UNKNOWN_JOB not in said:
            raise SlurmProblem(f"scancel {job_id}: {said.strip()[:ERROR_CHARS_MAX]}")

    def _tell(self, lines: Sequence[str]) -> list[str]:
        if not lines:
            return []
        _, _, said = self._run(("scontrol", "--quiet"), "".join(f"{line}\n" for line in lines))
        found = (line.strip() for line in said.splitlines())
        return [line[:ERROR_CHARS_MAX] for line in found if line and UNKNOWN_JOB not in line]

    def _ask(self, *words: str, text: str = "") -> str:
        code, out, said = self._run(words, text)
        if code or _ERROR.search(said):
            line = next((each.strip() for each in said.splitlines() if each.strip()), f"exit code {code}")
            kind = NoAccounting if any(each in said for each in _NO_ACCOUNTS) else SlurmProblem
            raise kind(f"{words[0]}: {line[:ERROR_CHARS_MAX]}")
        return out

    def _run(self, words: Sequence[str], text: str) -> tuple[int, str, str]:
        """Its answer goes by way of files: one that does not fit is an error, never half an answer."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            try:
                code = subprocess.run(
                    words,
                    input=text.encode(),
                    stdout=out,
                    stderr=said,
                    env=self._env,
                    timeout=ANSWER_S,
                    check=False,
                    start_new_session=True,
                ).returncode
            except FileNotFoundError:
                raise SlurmProblem(f"{words[0]} is not on PATH: run this where Slurm's clients are") from None
            except subprocess.TimeoutExpired:
                raise SlurmProblem(f"{words[0]} did not answer within {ANSWER_S:.0f} s") from None
            if out.tell() > TEXT_BYTES_MAX:
                raise SlurmProblem(f"{words[0]} said more than {TEXT_BYTES_MAX >> 20} MiB")
            out.seek(0)
            said.seek(0)
            return (
                code,
                out.read().decode(errors="replace"),
                said.read(TEXT_BYTES_MAX).decode(errors="replace"),
            )


def _end() -> str:
    """A word that nobody can have put into a job's name."""
    return f"end-{secrets.token_hex(8)}"


def _moment(at_s: float) -> str:
    """Formats a time as sacct takes it, in local time."""
    return datetime.fromtimestamp(at_s).strftime("%Y-%m-%dT%H:%M:%S")

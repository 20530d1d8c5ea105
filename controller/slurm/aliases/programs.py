"""`sbatch`, `srun`, `squeue`, `scancel`, `sinfo`, `sacct`, `seff`, `scontrol`: started as
`python -m ...programs NAME WORDS`, by the small programs that `cotenant slurm-aliases DIR` writes; so this
module keeps its name.

Rule: what they print on standard output is what Slurm's print, since scripts read it; notes and errors are
ours, on standard error. They take or refuse an option that narrows what is shown or changed, and never ignore
it; they ignore options of a site, or of how a table looks. What `scontrol` may do here stands in tables, and
the rest is refused by name; inside a job another `scontrol` answers (`agent/slurm/`). `slurm-aliases` never
replaces a file that is not ours: on a machine with Slurm it may be Slurm's.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.output import JsonFlag, write_json, write_lines
from cotenant.controller.cli.jobs.change import wait_until_ended
from cotenant.controller.cli.jobs.run import RunWatch, request_with_streams
from cotenant.controller.cli.jobs.submit import SUBMIT_TIMEOUT_S, prepared_submission, whole_array
from cotenant.controller.cli.main import open_streams, run_guarded
from cotenant.controller.cli.verbs import NOT_HERE
from cotenant.controller.client.asking import PATIENCE_S, asking
from cotenant.controller.client.connection import Refusal
from cotenant.controller.client.pages import pages
from cotenant.controller.domain import ENDED, JobId, Phase, texts
from cotenant.controller.present.interruption import listening
from cotenant.controller.present.problem import FAILED, OK, Problem, suggestion
from cotenant.controller.present.screen import hint, say, tell
from cotenant.controller.slurm.aliases.listings import (
    JOB_FIELDS,
    NODE_FIELDS,
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    device_time_s,
    line,
    long_clock,
    nodes_by_state,
    parse_format,
    record,
    slurm_state,
    table,
)
from cotenant.controller.slurm.sbatch import SWITCHES
from cotenant.controller.submission.build import Sbatch
from cotenant.controller.submission.recording import user_name
from cotenant.controller.submission.settings import setting
from cotenant.controller.wire import clients as wire

MARK: Final = "# Written by `cotenant slurm-aliases`."

VERBS: Final[dict[str, Literal["hold", "release", "requeue"]]] = {
    "hold": "hold",
    "uhold": "hold",
    "release": "release",
    "requeue": "requeue",
}
SETTINGS: Final = {
    "timelimit": "time",
    "priority": "priority",
    "jobname": "name",
    "name": "name",
    "account": "organisation",
    "minmemorynode": "host_mem",
    "mincpusnode": "cpus",
}
"""Slurm's name of what may be updated, and ours."""

SCRIPT_BYTES_MAX: Final = 1 << 20


def slurm_aliases(
    folder: Annotated[str, argument(metavar="DIR", help="A folder on your PATH, such as ~/bin.")],
    as_json: JsonFlag = False,
) -> None:
    """Write sbatch, srun, squeue, scancel, sinfo, sacct, seff and scontrol into a folder: they speak with
    cotenant, and salloc says what is here in its place.

    They take the options that scripts use most; any other is refused by name. A file of such a name that is
    not from here stays as it is, and nothing is written.

    For example:

      cotenant slurm-aliases ~/bin && sbatch train.sbatch
    """
    where = Path(folder).expanduser()
    others = [name for name in PROGRAMS if _is_other(where / name)]
    if others:
        raise Problem("refused", f"{where / others[0]} is there and is not from here", "give another folder")
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            words = shlex.join((sys.executable, "-m", "cotenant.controller.slurm.aliases.programs", name))
            path = where / name
            path.write_text(f'#!/bin/sh\n{MARK}\nexec {words} "$@"\n')
            path.chmod(0o755)
    except OSError as error:
        raise Problem("failed", f"{error.filename or where}: {error.strerror}") from None
    if as_json:
        write_json({"schema": "slurm-aliases/1", "folder": str(where), "programs": list(PROGRAMS)})
        return
    say(f"{', '.join(PROGRAMS)} are in {where}")
    if str(where.absolute()) not in os.environ.get("PATH", "").split(os.pathsep):
        hint(f"it is not on your PATH: export PATH={shlex.quote(str(where.absolute()))}:$PATH")


def _is_other(path: Path) -> bool:
    try:
        return MARK not in path.read_text(errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True


class Flags(NamedTuple):
    """A program's options, each as `-s --long --other`; the first long name is its key."""

    values: tuple[str, ...]
    switches: tuple[str, ...]
    left_out: tuple[str, ...]
    left_out_switches: tuple[str, ...]


class GivenWords(NamedTuple):
    flags: dict[str, str]
    rest: list[str]
    """Words that are no options."""


def read_words(program: str, words: Sequence[str], known: Flags) -> GivenWords:
    """Reads the words of a command line by the flags that a program knows. Raises Problem: an option that is
    not known."""
    takes = {name: _long(each) for each in (*known.values, *known.left_out) for name in each.split()}
    alone = {
        name: _long(each) for each in (*known.switches, *known.left_out_switches) for name in each.split()
    }
    flags: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in alone:
            flags[alone[name]] = "yes"
            if equals and not word.startswith("--"):  # `-hP` is two of them.
                left.insert(0, f"-{value}")
        elif name in takes:
            if not equals and not left:
                raise Problem("usage", f"{program}: {name} needs a value")
            flags[takes[name]] = value if equals else left.pop(0)
        else:
            near = suggestion(name, [*takes, *alone])
            raise Problem("usage", f"{program}: the option {name} is not known here", near)
    return GivenWords(flags, rest)


def _long(names: str) -> str:
    return next(name for name in names.split() if name.startswith("--"))


def scontrol(words: list[str]) -> int:
    """Changes jobs; says nothing where all went well, as Slurm's does."""
    verb, *rest = [word for word in words if word not in ("-Q", "--quiet")] or [""]
    if verb == "update":
        return _update(rest)
    if verb == "show" and rest[:1] in (["job"], ["jobs"]):
        return _show_jobs(rest[1:])
    if verb not in VERBS:
        known = ", ".join((*VERBS, "update", "show job"))
        raise Problem(
            "usage", f"scontrol {verb} is not possible here".replace("  ", " "), f"known are {known}"
        )
    jobs = [each.partition("=")[2] or each for word in rest for each in word.split(",")]
    if not jobs:
        raise Problem("usage", f"scontrol {verb}: no job was named", f"scontrol {verb} JOB")
    with asking() as client:
        reply = client.ask(wire.ChangeJobs(verb=VERBS[verb], job_ids=tuple(map(JobId, jobs))))
    for text in reply.lines:
        tell(text)
    return OK


def _show_jobs(words: list[str]) -> int:
    """The jobs that are named, also those that have ended; all that have not where none is."""
    ids = [each for word in words if not word.startswith("-") for each in word.split(",")]
    found = _jobs(GivenWords({}, []), everything=bool(ids), ids=ids)
    write_lines([record(job) for job in found])
    return OK if found or not ids else FAILED


def _update(words: list[str]) -> int:
    """`JobId=7 TimeLimit=4:00:00 Priority=5`."""
    given = dict(_pair(word) for word in words)
    jobs = given.pop("jobid", "")
    if not jobs or not given:
        raise Problem("usage", "scontrol update: JobId=JOB and what is to be changed", "see docs/slurm.md")
    for key in given:
        if key not in SETTINGS:
            raise Problem(
                "usage", f"scontrol update: {key} is not known here", f"known are {', '.join(SETTINGS)}"
            )
    changes = dict(setting(f"{SETTINGS[key]}={value}") for key, value in given.items())
    with asking() as client:
        reply = client.ask(wire.SetJobs(job_ids=tuple(map(JobId, jobs.split(","))), changes=changes))
    for text in reply.lines:
        tell(text)
    return OK


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise Problem("usage", f"scontrol update: {word!r} is not KEY=VALUE")
    return key.lower(), value


def sbatch(words: list[str]) -> int:
    """Submits a script and says its number."""
    options, rest, wrapped = sbatch_words(words)
    ours = {"--parsable", "-W", "--wait", "--test-only", "-Q", "--quiet"}
    given = {word for word in options if word in ours}
    sent = Sbatch(options=tuple(word for word in options if word not in ours))
    if wrapped is not None:
        sent = msgspec.structs.replace(sent, text=f"#!/bin/sh\n{wrapped}\n")
        rest = ["wrap"]
    elif not rest or rest[0] == "-":
        sent = msgspec.structs.replace(sent, text=sys.stdin.read(SCRIPT_BYTES_MAX))
        rest = ["sbatch", *rest[1:]]
    made = prepared_submission(rest, {}, None, command_only=False, sbatch=sent)
    request = made.request
    if "--test-only" in given:
        request = msgspec.structs.replace(request, dry_run=True)
    with asking(patience_s=PATIENCE_S if {"-W", "--wait"} & given else 0.0) as client:
        reply = client.ask(request, timeout_s=SUBMIT_TIMEOUT_S)
        for note in reply.notes:
            tell(f"note: {note}")
        if request.dry_run:
            tell("sbatch: it would be accepted; nothing was changed")
            return OK
        number = whole_array([str(each) for each in reply.job_ids])[0]
        write_lines([number if "--parsable" in given else f"Submitted batch job {number}"])
        sys.stdout.flush()
        if not {"-W", "--wait"} & given:
            return OK
        jobs = wait_until_ended(client, reply.job_ids, None).jobs
    return max((job.exit_code or (OK if job.phase is Phase.DONE else FAILED) for job in jobs), default=OK)


def sbatch_words(words: Sequence[str]) -> tuple[list[str], list[str], str | None]:
    """Options, the script with its arguments, and what `--wrap` says."""
    rest = list(words)
    options: list[str] = []
    wrapped: str | None = None
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--wrap" or word.startswith("--wrap="):
            wrapped = word[7:] if "=" in word else rest.pop(0) if rest else ""
            continue
        options.append(word)
        has_value = "=" in word or (not word.startswith("--") and len(word) > 2)
        if not has_value and word not in SWITCHES and rest:
            options.append(rest.pop(0))
    return options, rest, wrapped


def srun(words: list[str]) -> int:
    """Runs a command as a job, with the tasks that the options ask for, and shows its output."""
    options, rest, _ = sbatch_words(words)
    if "--pty" in options or not rest:
        raise Problem("usage", "srun: a command without a terminal is needed", "cotenant shell -- CMD")
    text = f"#!/bin/sh\nexec srun {shlex.join(rest)}\n"
    sent = Sbatch(options=tuple(options), text=text)
    made = prepared_submission([Path(rest[0]).name], {}, None, command_only=False, sbatch=sent)
    with asking(patience_s=PATIENCE_S) as client:
        reply = client.ask(request_with_streams(made.request, None), timeout_s=SUBMIT_TIMEOUT_S)
        return RunWatch(client, reply.job_ids[0], True, reply.notes).to_the_end()


def salloc(words: list[str]) -> int:
    """There is none here: says what is."""
    raise Problem("usage", "salloc: there are no allocations to sit in here", NOT_HERE["salloc"])


def seff(words: list[str]) -> int:
    """What is known of how jobs used what they had."""
    found = _jobs(GivenWords({}, []), everything=True, ids=words) if words else []
    for job in found:
        lines = (
            f"Job ID: {job.job_id}",
            f"User: {job.user}",
            f"State: {slurm_state(job)[0]} (exit code {job.exit_code or 0})",
            f"Devices: {job.gpus}",
            f"Job Wall-clock time: {long_clock(device_time_s(job))}",
            f"Of which training: {long_clock(job.run_s)}",
        )
        write_lines(lines)
    return OK if found else FAILED


SQUEUE: Final = Flags(
    values=("-u --user", "-j --jobs", "-n --name", "-t --states", "-o --format"),
    switches=("--me", "-h --noheader"),
    left_out=("-p --partition", "-A --account", "-q --qos", "-S --sort", "-w --nodelist"),
    left_out_switches=("-r --array", "-a --all", "-l --long"),
)


def squeue(words: list[str]) -> int:
    """Lists the jobs that wait and run; with --states also those that have ended."""
    given = read_words("squeue", words, SQUEUE)
    jobs = _jobs(given, everything="--states" in given.flags)
    form = parse_format(given.flags.get("--format", SQUEUE_FORMAT), JOB_FIELDS, "squeue")
    lines = [line(form, job) for job in jobs]
    write_lines([*([] if "--noheader" in given.flags else [line(form, None)]), *lines])
    return OK


SCANCEL: Final = Flags(
    values=("-u --user", "-n --name --jobname", "-t --state", "-s --signal"),
    switches=("--me",),
    left_out=("-p --partition", "-A --account", "-q --qos", "-w --nodelist"),
    left_out_switches=("-Q --quiet", "-v --verbose", "-f --full", "-b --batch", "-i --interactive", "--ctld"),
)


def scancel(words: list[str]) -> int:
    """Ends jobs by number, owner, name or state."""
    given = read_words("scancel", words, SCANCEL)
    wanted = given.flags.get("--signal", "KILL").upper().removeprefix("SIG")
    if wanted not in ("KILL", "TERM", "9", "15"):
        raise Problem(
            "usage", f"scancel --signal={wanted}: a job is ended as a whole", "leave the signal out"
        )
    flags = dict(given.flags)
    if "--state" in flags:
        flags["--states"] = flags.pop("--state")
    if not given.rest and not {"--user", "--me", "--name", "--states"} & set(flags):
        raise Problem("usage", "scancel: no job was named", "scancel JOB, or scancel --me")
    found = [job.job_id for job in _jobs(given._replace(flags=flags), everything=False, ids=given.rest)]
    if not found:
        return OK
    with asking() as client:
        client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(found)))
    return OK


SACCT: Final = Flags(
    values=("-j --jobs", "-u --user", "-o --format", "--name", "-s --state"),
    switches=("-P --parsable2", "-p --parsable", "-n --noheader"),
    left_out=("-S --starttime", "-E --endtime", "-r --partition", "-A --account", "--units", "-N --nodelist"),
    left_out_switches=("-X --allocations", "-a --allusers", "-l --long", "-b --brief", "-D --duplicates"),
)
SACCT_FORMAT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


def sacct(words: list[str]) -> int:
    """All jobs that the controller knows, ended or not; steps are not kept."""
    given = read_words("sacct", words, SACCT)
    flags = {{"--state": "--states"}.get(name, name): value for name, value in given.flags.items()}
    jobs = _jobs(given._replace(flags=flags), everything=True)
    names = [each.partition("%") for each in flags.get("--format", SACCT_FORMAT).split(",")]
    known = {name.lower(): name for name in SACCT_FIELDS}
    unknown = [name for name, _, _ in names if name.lower() not in known]
    if unknown:
        raise Problem(
            "usage", f"sacct: there is no field {unknown[0]}", f"known are {', '.join(SACCT_FIELDS)}"
        )
    columns = [(known[name.lower()], int(width or 0)) for name, _, width in names]
    rows = [[SACCT_FIELDS[name](job) for name, _ in columns] for job in jobs]
    if "--noheader" not in flags:
        rows.insert(0, [name for name, _ in columns])
    if "--parsable" in flags or "--parsable2" in flags:
        end = "|" if "--parsable" in flags else ""
        write_lines(["|".join(row) + end for row in rows])
    else:
        write_lines(table(rows, [width for _, width in columns]))
    return OK


SINFO: Final = Flags(
    values=("-o --format",),
    switches=("-h --noheader", "-N --Node"),
    left_out=("-p --partition", "-n --nodes", "-t --states"),
    left_out_switches=("-l --long", "-a --all", "-s --summarize", "-e --exact", "-r --responding"),
)
SINFO_FORMAT: Final = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo(words: list[str]) -> int:
    """Hosts by state, or one by one."""
    given = read_words("sinfo", words, SINFO)
    with asking() as client:
        nodes = texts.escape_texts(client.ask(wire.ListNodes())).nodes
    form = parse_format(given.flags.get("--format", SINFO_FORMAT), NODE_FIELDS, "sinfo")
    groups = [(node,) for node in nodes] if "--Node" in given.flags else nodes_by_state(nodes)
    lines = [line(form, group) for group in groups]
    write_lines([*([] if "--noheader" in given.flags else [line(form, None)]), *lines])
    return OK


def _jobs(given: GivenWords, *, everything: bool, ids: Sequence[str] = ()) -> list[wire.JobView]:
    """Returns the jobs that the options name. A number that nobody knows (any more) is no error, as with
    Slurm."""
    flags = given.flags
    named = [*ids, *filter(None, flags.get("--jobs", "").split(","))]
    users = {user_name()} if "--me" in flags else set(filter(None, flags.get("--user", "").split(",")))
    names = set(filter(None, flags.get("--name", "").split(",")))
    states = {each.upper() for each in filter(None, flags.get("--states", "").split(","))} - {"ALL"}
    wanted = tuple(JobId(each.partition(".")[0]) for each in named)
    request = wire.ListJobs(
        job_ids=wanted, include_ended=everything, user=min(users) if len(users) == 1 else ""
    )
    with asking() as client:
        try:
            found = [job for reply in pages(client, request) for job in texts.escape_texts(reply).jobs]
        except Refusal as refusal:
            if refusal.failure.code != "not-found":
                raise
            tell(f"{refusal.failure.message}")
            return []
    return [
        job
        for job in found
        if (everything or job.phase not in ENDED)
        and (not users or job.user in users)
        and (not names or job.name in names)
        and (not states or states & set(slurm_state(job)))
    ]


PROGRAMS: Final[dict[str, Callable[[list[str]], int]]] = {
    "sbatch": sbatch,
    "squeue": squeue,
    "scancel": scancel,
    "sinfo": sinfo,
    "sacct": sacct,
    "scontrol": scontrol,
    "srun": srun,
    "salloc": salloc,
    "seff": seff,
}


def main() -> int:
    name, *words = sys.argv[1:]
    open_streams()
    with listening():
        return run_guarded(lambda: PROGRAMS[name](words))


if __name__ == "__main__":
    sys.exit(main())

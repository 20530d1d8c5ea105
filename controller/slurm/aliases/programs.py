"""`sbatch`, `srun`, `salloc`, `squeue`, `scancel`, `sinfo`, `sacct`, `seff`, `scontrol`: started as
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import structs

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.output import JsonFlag, write_json, write_lines
from cotenant.controller.cli.main import open_streams, run_guarded
from cotenant.controller.cli.setup.config import own_version
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.client.pages import pages
from cotenant.controller.domain import ENDED, JobId, JobWord, texts
from cotenant.controller.present.interruption import listening
from cotenant.controller.present.problem import EXIT_CODES, FAILED, OK, Problem, suggestion
from cotenant.controller.present.screen import hint, say, tell
from cotenant.controller.slurm.aliases import listings
from cotenant.controller.slurm.aliases.launches import salloc, sbatch, srun
from cotenant.controller.slurm.aliases.words import Flags, GivenWords, jobs_and_steps, read_words
from cotenant.controller.slurm.sbatch import limit_word
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

SLURM_VERSION: Final = "23.11.0"
"""The Slurm whose options and formats these programs have."""


def slurm_aliases(
    folder: Annotated[str, argument(metavar="DIR", help="A folder on your PATH, such as ~/bin.")],
    as_json: JsonFlag = False,
) -> None:
    """Write sbatch, srun, salloc, squeue, scancel, sinfo, sacct, seff and scontrol into a folder: they speak
    with cotenant; sacctmgr and sshare list nothing.

    They take the options that scripts and clients of Slurm (submitit, dask-jobqueue, Snakemake, Parsl) use
    most; any other is refused by name. A file of such a name that is not from here stays as it is, and
    nothing is written.

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


def scontrol(words: list[str]) -> int:
    """Changes jobs; says nothing where all went well, as Slurm's does."""
    in_one = bool({"-o", "--oneliner"} & set(words))
    quiet = ("-Q", "--quiet", "-o", "--oneliner")
    verb, *rest = [word for word in words if word not in quiet] or [""]
    if verb == "update":
        return _update(rest)
    entity, _, first = rest[0].partition("=") if rest else ("", "", "")
    if verb == "show" and entity.lower() in ("job", "jobs", "jobid"):
        return _show_jobs([*filter(None, [first]), *rest[1:]], in_one)
    if verb not in VERBS:
        known = ", ".join((*VERBS, "update", "show job"))
        asked = " ".join(("scontrol", verb, *(rest[:1] if verb == "show" else ()))).strip()
        raise Problem("usage", f"{asked} is not possible here", f"known are {known}")
    jobs = jobs_and_steps(f"scontrol {verb}", [word.partition("=")[2] or word for word in rest])
    if not jobs:
        raise Problem("usage", f"scontrol {verb}: no job was named", f"scontrol {verb} JOB")
    with asking() as client:
        reply = client.ask(wire.ChangeJobs(verb=VERBS[verb], job_ids=_ids(jobs)))
    return _tell(reply)


def _tell(reply: wire.Done) -> int:
    for text in reply.lines:
        tell(text)
    return OK


SHOW_JOB: Final = Flags(
    values=("-u --user",),
    switches=("-a --all --allusers",),
    left_out=("-M --clusters",),
    left_out_switches=("-d --details", "--hide", "-v --verbose"),
)


def _show_jobs(words: list[str], in_one: bool) -> int:
    """The jobs that are named, also those that have ended; one's own that have not where none is."""
    given = read_words("scontrol show job", words, SHOW_JOB)
    ids = given.rest
    found = _jobs("scontrol show job", _own_by_default(given, ids), everything=bool(ids), ids=ids)
    records = [listings.record(job) for job in found]
    write_lines([" ".join(text.split()) for text in records] if in_one else records)
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
    if "timelimit" in given:
        given["timelimit"] = limit_word(given["timelimit"])
    changes = dict(setting(f"{SETTINGS[key]}={value}") for key, value in given.items())
    with asking() as client:
        named = _ids(jobs_and_steps("scontrol update", [jobs]))
        reply = client.ask(wire.SetJobs(job_ids=named, changes=changes))
    return _tell(reply)


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise Problem("usage", f"scontrol update: {word!r} is not KEY=VALUE")
    return key.lower(), value


def seff(words: list[str]) -> int:
    """What is known of how jobs used what they had."""
    found = _jobs("seff", GivenWords({}, []), everything=True, ids=words) if words else []
    for job in found:
        lines = (
            f"Job ID: {job.job_id}",
            f"User: {job.user}",
            f"State: {listings.slurm_state(job)[0]} (exit code {job.exit_code or 0})",
            f"Devices: {job.gpus}",
            f"Job Wall-clock time: {listings.long_clock(listings.device_time_s(job))}",
            f"Of which training: {listings.long_clock(job.run_s)}",
        )
        write_lines(lines)
    return OK if found else FAILED


SQUEUE: Final = Flags(
    values=("-u --user", "-j --jobs", "-n --name", "-t --states", "-o --format", "-O --Format"),
    switches=("--me", "-h --noheader"),
    left_out=("-p --partition", "-A --account", "-q --qos", "-S --sort", "-w --nodelist", "-M --clusters"),
    left_out_switches=("-r --array", "-a --all", "-l --long", "--only-job-state"),
)


def squeue(words: list[str]) -> int:
    """Lists the jobs that wait and run; with --states also those that have ended."""
    given = read_words("squeue", words, SQUEUE)
    long = given.flags.get("--Format")
    text = (
        given.flags.get("--format", listings.SQUEUE_FORMAT) if long is None else listings.short_format(long)
    )
    form = listings.parse_format(text, listings.JOB_FIELDS, "squeue")
    return _list(form, _jobs("squeue", given, everything="--states" in given.flags), given)


def _list(form: Sequence[listings.FormatPart], rows: Sequence[object], given: GivenWords) -> int:
    titles = [] if "--noheader" in given.flags else [None]
    write_lines([listings.line(form, row) for row in (*titles, *rows)])
    return OK


SCANCEL: Final = Flags(
    values=("-u --user", "-n --name --jobname", "-t --state", "-s --signal"),
    switches=("--me",),
    left_out=("-p --partition", "-A --account", "-q --qos", "-w --nodelist", "-M --clusters"),
    left_out_switches=("-Q --quiet", "-v --verbose", "-f --full", "-b --batch", "-i --interactive", "--ctld"),
)


def scancel(words: list[str]) -> int:
    """Ends jobs by number, owner, name or state. Of others' jobs a filter finds those that one may end; one
    that was named is an error of its own, and the others are ended."""
    given = read_words("scancel", words, SCANCEL)
    wanted = given.flags.get("--signal", "KILL").upper().removeprefix("SIG")
    if wanted not in ("KILL", "TERM", "9", "15"):
        raise Problem(
            "usage", f"scancel --signal={wanted}: a job is ended as a whole", "leave the signal out"
        )
    flags = given.flags
    if not given.rest and not {"--user", "--me", "--name", "--state"} & set(flags):
        raise Problem("usage", "scancel: no job was named", "scancel JOB, or scancel --me")
    if steps := [each for each in given.rest if "." in each]:
        raise Problem("usage", f"scancel {steps[0]}: a step alone is not ended", "name the job")
    found = _jobs("scancel", given, everything=False, ids=given.rest)
    me = user_name()
    own = tuple(job.job_id for job in found if job.user == me)
    others = {job.job_id: job.user for job in found if job.user != me}
    with asking() as client:
        if own:
            client.ask(wire.ChangeJobs(verb="cancel", job_ids=own))
        try:
            if others:
                client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(others)))
        except Refusal as refusal:
            if refusal.failure.code != "not-allowed":
                raise
            if not given.rest and "--user" not in flags:
                return OK
            for job_id, owner in others.items():
                tell(f"scancel: you cannot cancel job {job_id}: it belongs to {owner}")
            return EXIT_CODES["not-allowed"]
    return OK


SACCT: Final = Flags(
    values=("-j --jobs", "-u --user", "-o --format", "--name", "-s --state"),
    switches=("-P --parsable2", "-p --parsable", "-n --noheader", "-a --allusers"),
    left_out=(
        "-S --starttime",
        "-E --endtime",
        "-r --partition",
        "-A --account",
        "--units",
        "-N --nodelist",
        "-M --clusters",
    ),
    left_out_switches=("-X --allocations", "-l --long", "-b --brief", "-D --duplicates"),
)
SACCT_FORMAT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


def sacct(words: list[str]) -> int:
    """One's own jobs (root: all) that the controller knows, ended or not; steps are not kept."""
    given = read_words("sacct", words, SACCT)
    given = _own_by_default(given, given.flags.get("--jobs", ""))
    flags, jobs = given.flags, _jobs("sacct", given, everything=True)
    names = [each.partition("%") for each in flags.get("--format", SACCT_FORMAT).split(",")]
    known = {name.lower(): name for name in listings.SACCT_FIELDS}
    unknown = [name for name, _, _ in names if name.lower() not in known]
    if unknown:
        raise Problem(
            "usage", f"sacct: there is no field {unknown[0]}", f"known are {', '.join(listings.SACCT_FIELDS)}"
        )
    columns = [(known[name.lower()], int(width or 0)) for name, _, width in names]
    rows = [[listings.SACCT_FIELDS[name](job) for name, _ in columns] for job in jobs]
    if "--noheader" not in flags:
        rows.insert(0, [name for name, _ in columns])
    if "--parsable" in flags or "--parsable2" in flags:
        end = "|" if "--parsable" in flags else ""
        write_lines(["|".join(row) + end for row in rows])
    else:
        write_lines(listings.table(rows, [width for _, width in columns]))
    return OK


def accounts(words: list[str]) -> int:
    """`sacctmgr` and `sshare`: there is no database of accounts, so their lists are empty, and an account is
    taken as it is given."""
    if {"add", "create", "delete", "modify", "remove"} & set(words):
        raise Problem("usage", "there is no database of accounts here", "[organisations] of the settings")
    return OK


SINFO: Final = Flags(
    values=("-o --format",),
    switches=("-h --noheader", "-N --Node"),
    left_out=("-p --partition", "-n --nodes", "-t --states", "-M --clusters"),
    left_out_switches=("-l --long", "-a --all", "-s --summarize", "-e --exact", "-r --responding"),
)
SINFO_FORMAT: Final = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo(words: list[str]) -> int:
    """Hosts by state, or one by one."""
    given = read_words("sinfo", words, SINFO)
    with asking() as client:
        nodes = texts.escape_texts(client.ask(wire.ListNodes())).nodes
    form = listings.parse_format(given.flags.get("--format", SINFO_FORMAT), listings.NODE_FIELDS, "sinfo")
    groups = [(node,) for node in nodes] if "--Node" in given.flags else listings.nodes_by_state(nodes)
    return _list(form, groups, given)


def _ids(words: Iterable[JobWord]) -> tuple[JobId, ...]:
    return tuple(JobId(str(word)) for word in words)


def _own_by_default(given: GivenWords, named: Sequence[str]) -> GivenWords:
    """The options, with `--me` where neither jobs nor users are named, unless it is root who asks."""
    if named or {"--user", "--allusers", "--all"} & set(given.flags) or os.geteuid() == 0:
        return given
    return given._replace(flags={**given.flags, "--me": "yes"})


def _jobs(
    program: str, given: GivenWords, *, everything: bool, ids: Sequence[str] = ()
) -> list[wire.JobView]:
    """Returns the jobs that the options name. A number that nobody knows (any more) is no error, as with
    Slurm. Raises Problem: a word is no job's, or no state's."""
    flags = given.flags
    named = [*ids, *filter(None, [flags.get("--jobs", "")])]
    users = {user_name()} if "--me" in flags else set(filter(None, flags.get("--user", "").split(",")))
    names = set(filter(None, flags.get("--name", "").split(",")))
    stated = flags.get("--states") or flags.get("--state", "")
    states = {each.strip().upper() for each in filter(None, stated.split(","))}
    if unknown := sorted(states - listings.STATE_NAMES):
        raise Problem(
            "usage",
            f"{program}: there is no state {unknown[0]}",
            suggestion(unknown[0], listings.STATE_NAMES),
        )
    states -= {"ALL"}
    wanted = jobs_and_steps(program, named)
    if named and not wanted:
        return []
    user = min(users) if len(users) == 1 else ""
    with asking() as client:
        found = _known(client, wire.ListJobs(include_ended=everything, user=user), wanted)
    return [
        job
        for job in found
        if (everything or job.phase not in ENDED)
        and (not users or job.user in users)
        and (not names or job.name in names)
        and (not states or states & set(listings.slurm_state(job)))
    ]


def _known(client: Client, request: wire.ListJobs, words: Sequence[JobWord]) -> list[wire.JobView]:
    """The jobs of these words, or all. Of one that nobody knows it says so, and goes on with the others.
    Raises Refusal: nobody knows any task of a range."""
    asked = structs.replace(request, job_ids=_ids(words))
    try:
        return [job for reply in pages(client, asked) for job in texts.escape_texts(reply).jobs]
    except Refusal as refusal:
        if refusal.failure.code != "not-found" or (len(words) == 1 and "[" in str(words[0])):
            raise
        if len(words) == 1:
            tell(refusal.failure.message)
            return []
    found = (job for word in words for job in _known(client, request, [word]))
    return list({job.job_id: job for job in found}.values())


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
    "sacctmgr": accounts,
    "sshare": accounts,
}


def main() -> int:
    name, *words = sys.argv[1:]
    open_streams()
    if words[:1] in (["--version"], ["-V"]):
        say(f"slurm {SLURM_VERSION} (cotenant {own_version()})")
        return OK
    with listening():
        return run_guarded(lambda: PROGRAMS[name](words))


if __name__ == "__main__":
    sys.exit(main())

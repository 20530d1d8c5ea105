"""From options and a command to the `Submit` that goes to the controller.

Rule: pure but for a look at the files the command names. Ids are placeholders (`new-0`); the
controller gives the real ones.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from cotenant.checkpoint.talk.protocol import ENV_KEY
from cotenant.controller import domain
from cotenant.controller.domain import job_spec, texts
from cotenant.controller.submission import commands, directives, grids, recording
from cotenant.controller.submission.containers import container_of
from cotenant.controller.submission.options import BY_KEY, BadSubmission, Options, merge_options, read
from cotenant.controller.submission.quantities import GpuRange
from cotenant.controller.submission.recording import code_sha256
from cotenant.controller.submission.script_text import unreadable
from cotenant.controller.submission.starts import Start, start_of
from cotenant.controller.wire import clients as wire

YAML_SUFFIXES = (".yaml", ".yml")

NAME_SHOWN_MAX = 80
FULL_PROFILE = "full"
ARRAY_VARIABLE = "COTENANT_ARRAY_INDEX"
SLURM_ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
FIELDS = {
    "class": "job_class",
    "constraint": "features",
    "mem": "memory_mib",
    "host_mem": "host_memory_mib",
    "expect": "expected_s",
    "time": "time_limit_s",
    "budget": "budget_s",
    "requeue_at_limit": "requeues",
}
"""Fields of a specification that have another name than their option."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Ready to send, and what its author should know."""

    request: wire.Submit
    notes: tuple[str, ...] = ()
    full_profile: bool = False
    """Run the series of `cotenant profile` first."""


class Submitter(msgspec.Struct, frozen=True, kw_only=True):
    """The folder, shell and machine that a job is submitted from."""

    folder: Path
    environ: Mapping[str, str]
    key_file: str = ""
    """With the submitter's key, which jobs that ask the controller need; empty: they need none."""
    same_machine: bool = True
    """The controller is this user's own: a command that cannot start here cannot start at all."""
    snapshots: Path = Path("snapshots")
    """Where `--snapshot` leaves packed trees until they are sent."""
    snapshot_size_max_mib: int = 256
    saves_scripts: bool = True
    """Whether scripts are saved and resumed without changing them where nothing is said about it."""
    notify: tuple[str, ...] = ()
    """Of what and at which address the submitter is told where nothing is said about it."""
    webhook: str = ""
    """The submitter's own, which is a secret."""


class Sbatch(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of an `sbatch` command line."""

    options: tuple[str, ...] = ()
    text: str | None = None
    """The script's text, if it is no file; its first word is then its name."""
    is_shown: bool = False
    """Its output is shown, and goes to no file that the options do not name."""


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """A command with its options, from a file, a script or a command line."""

    argv: tuple[str, ...]
    options: Options
    notes: tuple[str, ...] = ()
    slurm: domain.SlurmScript | None = None
    start: Start | None = None
    """How it is started; None: as its command says."""


def submission(
    words: Sequence[str],
    flags: Options,
    where: Submitter,
    *,
    command_only: bool = False,
    sbatch: Sbatch | None = None,
    start: Start | None = None,
) -> Submission:
    """Builds the submission that `submit WORDS` means: a YAML file, a script with directives, or a command.

    Flags win over what a file says. `command_only` (after `--`, and for `run`) takes words as a command;
    `sbatch` takes them as a script and its arguments, as that command does. `start`: how a command is started
    whose words do not tell that.

    Raises:
        BadSubmission: something in the submission is wrong.
    """
    if not words:
        raise BadSubmission("no command was given", "put it behind `--`, as in: -- python train.py")
    try:
        if sbatch is not None:
            return _submission(_slurm_source(words, sbatch), flags, where)
        source = _Source(argv=tuple(words), options={}, start=start) if command_only else _source(words)
        return _submission(source, flags, where)
    except OSError as error:  # A name too long for a file, a folder that may not be looked into.
        raise BadSubmission(f"{_file_name(error)}: {error.strerror}", "check the names in it") from None


def _file_name(error: OSError) -> str:
    name = str(error.filename or "a file")
    return name if len(name) <= NAME_SHOWN_MAX else name[:NAME_SHOWN_MAX] + "..."


def _umask() -> int:
    """This process's umask, which can only be set to be read by a call."""
    now = os.umask(0o077)
    os.umask(now)
    return now


def _submission(source: _Source, flags: Options, where: Submitter) -> Submission:
    if any("\0" in word for word in source.argv):
        raise BadSubmission("the command has a NUL in it", "no program can be given one")
    options = merge_options(source.options, flags)
    values = {key: given.value for key, given in options.items()}
    workdir = where.folder / _expand_path(values.get("workdir", "."), "workdir")
    container = container_of(values, workdir, source.slurm)
    environment = _record(values, where, of_host=container is None)
    if (notify := _notify(values.get("notify"), where.notify)) and where.webhook:
        environment.secrets[domain.WEBHOOK_VARIABLE] = where.webhook
    notes = list(source.notes)
    sweep = grids.grids_of(values, source.argv, workdir)
    first = msgspec.structs.replace(source, argv=sweep.fill(source.argv))
    path = environment.open.get("PATH", os.defpath)
    notes += _check_command(values, first.argv, workdir, path if container is None else None, where)
    argv, snapshot = _take_snapshot(values, source.argv, workdir, where, notes)
    start = _start(values, source, sweep, workdir, environment.open.get("PYTHONPATH", ""))
    if (gpus := _gpus(values)).most > 1 and start.why:
        notes.append(start.note("-".join(map(str, sorted({gpus.least, gpus.most})))))
    starts_deepspeed = (
        domain.launcher_of(domain.own_command(source.argv)) == "deepspeed"
    )  # It reads no UUIDs.
    launch = domain.Launch(
        argv=argv,
        workdir=os.path.abspath(workdir),
        env=environment.open,
        secrets=tuple(environment.secrets),
        output=_output(values.get("output"), workdir if snapshot is None else Path()),
        mode=start.mode,
        ranked_alone=start.ranked_alone,
        uid=os.getuid(),
        gid=os.getgid(),
        groups=tuple(sorted(os.getgroups())),
        umask=_umask(),
        zero_code=_zero_code(values, where),
        watchdog_s=values.get("watchdog"),
        warm=not values.get("cold", False),
        devices_as=values.get("devices_as") or ("index" if starts_deepspeed else ""),
        slurm=_add_submit_variables(source.slurm, where) if source.slurm is not None else None,
        snapshot=snapshot,
        container=container,
    )
    values |= {"notify": notify} | ({"array": sweep.array} if sweep.tasks else {})
    files = (each for each, word in zip(first.argv, source.argv, strict=True) if each != word)
    has_one_code = container is None and not any((workdir / each).is_file() for each in files)
    spec = _spec(values, launch, code_sha256(argv, Path(launch.workdir), path) if has_one_code else "")
    indices = values["array"].indices if "array" in values else ()
    env = [name for name, _ in values.get("env", ())]
    request = wire.Submit(
        specs=tuple(sweep.task(_task(spec, at, indices), at, env) for at in range(len(indices))) or (spec,),
        array_indices=indices,
        secrets=environment.secrets,
        idempotency_key=uuid.uuid4().hex,
        default_class="class" not in values,
        promise=_promise(values),
    )
    return Submission(request=request, notes=tuple(notes), full_profile=values.get("profile") == FULL_PROFILE)


def _check_command(
    values: dict[str, Any], argv: tuple[str, ...], workdir: Path, path: str | None, where: Submitter
) -> Iterator[str]:
    """What is to be said of a command that would fail on this machine. `path` None: it runs in an image, and
    what that has is not known here.

    Raises:
        BadSubmission: it would fail, and starts on this machine; or it starts a container.
    """
    commands.refuse_container(argv)
    doubt = commands.workdir_doubt(workdir) if path is None else commands.doubt_of(argv, workdir, path)
    doubt = doubt or commands.output_doubt(_output(values.get("output"), workdir))
    if doubt is not None and where.same_machine:
        raise doubt
    if doubt is not None:
        yield f"on this machine {doubt.message}"


def _record(values: dict[str, Any], where: Submitter, *, of_host: bool) -> recording.RecordedEnvironment:
    """The job's variables, with that of the key that it shows the controller."""
    given = values.get("export", ()), values.get("env", ())
    environment = recording.record(where.environ, *given, of_host=of_host)
    if where.key_file:
        environment.secrets.setdefault(ENV_KEY, where.key_file)
    return environment


def _notify(given: tuple[str, ...] | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The words that were given, with the submitter's usual kinds or address where they have none."""
    if given == ():
        return ()
    words = usual if given is None else given
    kinds = [word for word in words if "@" not in word]
    if given and not kinds:
        kinds = [word for word in usual if "@" not in word] or ["end"]
    addresses = [word for word in (given or ()) if "@" in word] or [word for word in usual if "@" in word]
    return (*kinds, *addresses) if kinds else ()


def _take_snapshot(
    values: dict[str, Any], argv: tuple[str, ...], workdir: Path, where: Submitter, notes: list[str]
) -> tuple[tuple[str, ...], job_spec.CodeSnapshot | None]:
    """The command and the tree that it runs in, where `--snapshot` asks for one. Adds to the notes."""
    if "snapshot" not in values:
        if "snapshot_add" in values:
            raise BadSubmission("--snapshot-add alone takes nothing", "give --snapshot git as well")
        return argv, None
    from cotenant.controller.present.snapshots import describe_snapshot, untracked_in_words
    from cotenant.controller.submission import packing  # Few submissions need git, tar and gzip.

    more = [where.folder / _expand_path(each, "snapshot-add") for each in values.get("snapshot_add", ())]
    tree = packing.pack_tree(values["snapshot"], workdir, more, where.snapshots, where.snapshot_size_max_mib)
    notes.append(
        f"it runs in its own copy of this tree ({describe_snapshot(tree.snapshot)}) on its host, and what it "
        f"writes under relative names stays there; $COTENANT_SUBMIT_DIR is {os.path.abspath(workdir)}"
    )
    words = packing.words_in_tree(argv, workdir, tree)
    if tree.untracked:
        notes.append(
            f"{untracked_in_words(tree.untracked)}; git add what the job needs, or --snapshot-add PATH"
        )
    return words, tree.snapshot


def _promise(values: dict[str, Any]) -> wire.PromiseAsked | None:
    """Times that have passed since it was written are the controller's to refuse."""
    by, is_optional = values.get("by"), bool(values.get("if_possible"))
    if by is None and not values.get("promise"):
        if is_optional:
            raise BadSubmission("--if-possible alone promises nothing", "give --by TIME or --promise as well")
        return None
    if by is None:
        return wire.PromiseAsked(is_optional=is_optional)
    if values.get("promise"):
        raise BadSubmission("--promise takes the earliest end, --by names one", "leave one of them out")
    within_s = (by - datetime.now().astimezone()).total_seconds()
    return wire.PromiseAsked(within_s=max(0.0, within_s), is_optional=is_optional)


def _start(
    values: dict[str, Any], source: _Source, sweep: grids.Grids, workdir: Path, python_path: str
) -> Start:
    """The start that was asked for, else the one that suits the command. Adds to the values that it has one
    host where that is so.

    Raises:
        BadSubmission: it is one process and asks for what only several can have.
    """
    if given := values.get("launch"):
        start = Start(mode=given)
    else:
        start = source.start or _start_of_tasks(source.argv, sweep, workdir, python_path)
    gpus, nodes = _gpus(values), values.get("nodes", 0)
    if gpus.most > gpus.least:  # On one GPU it may be what it was on several.
        start = msgspec.structs.replace(start, ranked_alone=True)
    why = f": {start.why}" if start.why else ""
    if start.mode == "process" and gpus.most > gpus.least:
        message = f"--gpus {gpus.least}-{gpus.most}: one process cannot be elastic{why}"
        raise BadSubmission(message, "--launch worker starts one process per GPU")
    if start.has_one_host and nodes > 1:
        message = f"--nodes {nodes}: one process uses the GPUs of one host{why}"
        raise BadSubmission(message, "--launch worker starts one per GPU, --launch host one per host")
    if start.has_one_host and gpus.most > 1:
        values["nodes"] = 1
    return start


def _start_of_tasks(argv: tuple[str, ...], sweep: grids.Grids, workdir: Path, python_path: str) -> Start:
    """The start that suits all tasks of a sweep, whose scripts may be others."""
    filled = [sweep.fill(argv, task) for task in range(max(1, len(sweep.tasks)))]
    programs = {domain.python_program(domain.own_command(each)): each for each in filled}
    starts = [start_of(each, workdir, python_path) for each in programs.values()]
    if len({(each.mode, each.ranked_alone) for each in starts}) > 1:
        raise BadSubmission("the scripts of this sweep do not start alike", "say how: --launch")
    return starts[0]


def _source(words: Sequence[str]) -> _Source:
    path = Path(words[0])
    if path.suffix in YAML_SUFFIXES:
        if len(words) > 1:
            raise BadSubmission(
                f"{words[1]!r} stands behind the job file", f"flags go before it: cotenant submit ... {path}"
            )
        if path.is_dir():
            raise BadSubmission(f"{path} is a folder, not a job file", "give a file in it")
        if not path.is_file():
            near = commands.near_file(str(path), Path())
            raise BadSubmission(f"{path} does not exist", near, missing=True)
        from cotenant.controller.submission import yaml_file  # YAML takes a while to load

        command, options = yaml_file.read_job_file(path)
        return _Source(argv=command, options=options)
    if directives.is_script(path):
        return _script_source(directives.read_script(path), (os.path.abspath(path), *words[1:]))
    return _Source(argv=tuple(words), options={})


def _script_source(script: directives.Script, words: Sequence[str]) -> _Source:
    """A script whose interpreter is given these words."""
    return _Source(
        argv=(*script.interpreter, *words),
        options=script.options,
        notes=script.notes,
        slurm=script.slurm,
        start=Start(mode="host") if script.runs_per_host else None,
    )


def _slurm_source(words: Sequence[str], sbatch: Sbatch) -> _Source:
    """A script, whatever its file is called; its output goes where Slurm's would."""
    path, text = Path(words[0]), sbatch.text
    if text is None and not path.is_file():
        raise BadSubmission(f"{path} does not exist", commands.near_file(str(path), Path()), missing=True)
    if text is None:
        script = directives.read_script(path, sbatch.options)
        source = _script_source(script, (os.path.abspath(path), *words[1:]))
    else:
        if problem := unreadable(text.encode(errors="surrogateescape"), path.name, is_file=False):
            raise problem
        script = directives.script_of(text.splitlines(), path, sbatch.options)
        source = _script_source(script, ("-c", text, *words))
    name = "slurm-%A_%i.out" if {"array", "grid"} & source.options.keys() else "slurm-%j.out"
    usual = {
        key: read(BY_KEY[key], (text,), "sbatch") for key, text in (("output", name), ("name", path.name))
    }
    if sbatch.is_shown:
        del usual["output"]
    return msgspec.structs.replace(source, options=usual | source.options)


def _spec(values: dict[str, Any], launch: domain.Launch, code: str) -> domain.JobSpec:
    """The specification: an option is the field that is called like it, or that `FIELDS` names, unless the
    field is worked out from several."""
    profile = values.get("profile")
    gpus = _gpus(values)
    if gpus.most > gpus.least and "batch_size" not in values:
        raise BadSubmission(
            f"--gpus {gpus.least}-{gpus.most}: an elastic job must say its batch",
            f"add --batch-size N, per worker on {gpus.most} GPUs: a step keeps it on fewer",
        )
    given = {FIELDS.get(key, key): value for key, value in values.items()}
    made = {
        "job_id": domain.JobId("new-0"),
        "name": values.get("name") or _name(launch.argv),
        "user": recording.user_name(),
        "gpus_min": gpus.least,
        "gpus_max": gpus.most,
        "gpu_fraction": gpus.fraction,
        "after": tuple(each for group in values.get("after", ()) for each in group),
        "array_limit": values["array"].limit if "array" in values else 0,
        "begin_s": values["begin"].timestamp() if "begin" in values else None,
        "profile": None if isinstance(profile, str) else profile,
        "profiling": "never" if profile == "never" else "auto",
        "code_sha256": code,
        "launch": launch,
    }
    as_given = {name: given[name] for name in domain.JobSpec.__struct_fields__ if name in given}
    try:
        return domain.JobSpec(**{**as_given, **made})
    except ValueError as error:
        raise BadSubmission(str(error).removeprefix("job new-0: ")) from None


def _gpus(values: dict[str, Any]) -> GpuRange:
    number = values.get("nodes") or 1
    found: GpuRange = values.get("gpus") or GpuRange(number, number)
    return found


def _zero_code(values: dict[str, Any], where: Submitter) -> tuple[str, ...]:
    """What the hook is asked to do. The batches of a job that never shares are never split. A job that is not
    to be watched, or that saves by itself (`--resumable yes`), is not saved unless that is asked for; one
    that is not to be watched is not split either."""
    how, counts = values.get("accumulate", "auto"), values.get("progress") != "never"
    resumes = values.get("resumable")
    default = "leave" if where.saves_scripts and counts and not resumes else "never"
    saves = values.get("checkpoint", default)
    if resumes is False:
        saves = "never"
    is_asked = bool(values.keys() & {"accumulate", "batch_size"})
    splits = how != "never" and values.get("share") != "never" and (counts or is_asked)
    words = {
        "accumulate": splits,
        "mean": splits and "mean" in how,
        "equivalent": splits and "equivalent" in how,
        "quiet": splits and not is_asked,
        "checkpoint": saves == "auto",
        "leave": saves == "leave",
        "progress": counts,
    }
    return tuple(word for word, wanted in words.items() if wanted)


def _name(argv: Sequence[str]) -> str:
    """The script's name, or the program's: what one would call the job."""
    scripts = [word for word in argv if word.endswith((".py", ".sh", ".slurm", ".sbatch"))]
    named = os.path.basename(scripts[0] if scripts else argv[0])
    return texts.one_line(os.path.splitext(named)[0])[:64] or "job"


def _add_submit_variables(slurm: domain.SlurmScript, where: Submitter) -> domain.SlurmScript:
    """The script with the variables that say where it was submitted."""
    said = {
        "SLURM_SUBMIT_DIR": str(where.folder),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
    }
    return msgspec.structs.replace(slurm, variables={**slurm.variables, **said})


def _task(spec: domain.JobSpec, at: int, indices: Sequence[int]) -> domain.JobSpec:
    launch = spec.launch
    env = {**launch.env, ARRAY_VARIABLE: str(indices[at])}
    slurm = launch.slurm
    if slurm:
        env[SLURM_ARRAY_VARIABLE] = str(indices[at])
        step = indices[1] - indices[0] if len(indices) > 1 else 1
        said = {
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(step),
        }
        slurm = msgspec.structs.replace(slurm, variables={**slurm.variables, **said}, array_position=at)
    launch = msgspec.structs.replace(launch, env=env, slurm=slurm)
    return msgspec.structs.replace(spec, job_id=domain.JobId(f"new-{at}"), launch=launch)


def _output(pattern: str | None, workdir: Path) -> str:
    """Absolute; below `Path()`, which stands for a copy on the job's host, as it was written."""
    if not pattern:
        return ""
    path = workdir / _expand_path(pattern, "output")
    return str(path) if workdir == Path() else os.path.abspath(path)


def _expand_path(path: str, option: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # `~name` of nobody.
        raise BadSubmission(f"--{option} {path}: there is no such user", "give the folder itself") from None

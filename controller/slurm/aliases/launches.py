"""`sbatch`, `srun` and `salloc`: what a script or a command becomes here.

Rule: a script is copied when it is submitted, as Slurm does: clients delete or move theirs right afterwards.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.frame.output import write_lines
from cotenant.controller.cli.jobs import run
from cotenant.controller.cli.jobs.change import wait_until_ended
from cotenant.controller.cli.jobs.login_shell import login_shell
from cotenant.controller.cli.jobs.shell import OF_SHELLS, tell_how_it_ends
from cotenant.controller.cli.jobs.submit import SUBMIT_TIMEOUT_S, prepared_submission, whole_array
from cotenant.controller.client.asking import PATIENCE_S, asking, loaded_settings
from cotenant.controller.domain import Phase
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.slurm.aliases.words import sbatch_words
from cotenant.controller.submission.build import Sbatch
from cotenant.controller.submission.options import Given
from cotenant.controller.system import paths
from cotenant.controller.wire import clients as wire

SCRIPT_BYTES_MAX: Final = 4 << 20
TEXT_BYTES_MAX: Final = 100_000
"""A longer text is no word of a command line any more, so it becomes a file."""
SCRIPTS_KEPT_S: Final = 90 * 86_400.0


def sbatch(words: list[str]) -> int:
    """Submits a script and says its number."""
    options, rest, wrapped = sbatch_words(words)
    ours = {"--parsable", "-W", "--wait", "--test-only", "-Q", "--quiet"}
    given = {word for word in options if word in ours}
    sent = Sbatch(options=tuple(word for word in options if word not in ours))
    if wrapped is not None:
        rest, text = ["wrap"], f"#!/bin/sh\n{wrapped}\n"
    elif not rest or rest[0] in ("-", "/dev/stdin"):
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(newline="")  # DOS line breaks are to be seen.
        rest, text = ["sbatch", *rest[1:]], sys.stdin.read(SCRIPT_BYTES_MAX)
    else:
        text = None
    if text is not None and len(text) > TEXT_BYTES_MAX:
        rest[0], text = str(keep_script(rest[0], text.encode())), None
    sent = msgspec.structs.replace(sent, text=text)
    request = prepared_submission(rest, {}, None, command_only=False, sbatch=sent).request
    if text is None:
        request = request_with_copy(request, Path(os.path.abspath(rest[0])))
    if "--test-only" in given:
        request = msgspec.structs.replace(request, dry_run=True)
    with asking(patience_s=PATIENCE_S) as client:
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


def request_with_copy(request: wire.Submit, script: Path) -> wire.Submit:
    """The request whose jobs run a copy of the script; one in a packed tree is a copy already."""
    own = str(script)
    if all(own not in spec.launch.argv for spec in request.specs):
        return request
    copy = str(keep_script(script.name, script.read_bytes()))
    specs = []
    for spec in request.specs:
        argv = tuple(copy if word == own else word for word in spec.launch.argv)
        launch = msgspec.structs.replace(spec.launch, argv=argv)
        specs.append(msgspec.structs.replace(spec, launch=launch))
    return msgspec.structs.replace(request, specs=tuple(specs))


def keep_script(name: str, text: bytes) -> Path:
    """Writes a copy of a script for the jobs that run it, and removes those of long ago."""
    scripts = paths.submitted_scripts()
    folder = scripts / time.strftime("%Y-%m-%d") / hashlib.sha256(text).hexdigest()[:16]
    try:
        paths.private_dir(folder)
        for day in scripts.iterdir():
            if day.stat().st_mtime < time.time() - SCRIPTS_KEPT_S:
                shutil.rmtree(day, ignore_errors=True)
        fresh = folder / f".{name}-{os.getpid()}"
        fresh.write_bytes(text)
        return fresh.rename(folder / name)
    except OSError as error:
        raise Problem("failed", f"the script's copy {folder / name}: {error.strerror or error}") from None


def srun(words: list[str]) -> int:
    """Runs a command as a job, with the tasks that the options ask for, and shows its output."""
    options, rest, _ = sbatch_words(words)
    if not rest:
        raise Problem("usage", "srun: no command was given", "srun CMD")
    if "--pty" in options:
        return _on_terminal([word for word in options if word != "--pty"], rest, Path(rest[0]).name)
    return _watched(options, ["srun", *rest], Path(rest[0]).name)


def salloc(words: list[str]) -> int:
    """Runs a command on what was asked for, where it is; without a command, opens a shell there."""
    options, rest, _ = sbatch_words(words)
    if "--no-shell" in options:
        raise Problem("usage", "salloc: what is allocated ends with its command", "cotenant reserve")
    if rest:
        return _watched(options, rest, Path(rest[0]).name)
    name, shell = login_shell()
    return _on_terminal(options, shell, name)


def _watched(options: Sequence[str], command: Sequence[str], name: str) -> int:
    request = run.request_with_streams(_request(options, command, name, {}), None)
    with asking(patience_s=PATIENCE_S) as client:
        reply = client.ask(request, timeout_s=SUBMIT_TIMEOUT_S)
        return run.RunWatch(client, reply.job_ids[0], True, reply.notes).to_the_end()


def _on_terminal(options: Sequence[str], command: Sequence[str], name: str) -> int:
    """As `cotenant shell` does: it ends at its time limit, and nothing of it is saved. No script stands
    between: a plain sh drops the functions by which a login shell finds our `srun`."""
    request = _request(options, command, name, OF_SHELLS)
    (spec,) = request.specs
    limit_s = spec.time_limit_s or loaded_settings(None).settings.shell.time_limit_s
    launch = msgspec.structs.replace(spec.launch, argv=tuple(command))
    spec = msgspec.structs.replace(spec, time_limit_s=limit_s, launch=launch)
    tell_how_it_ends(limit_s)
    request = msgspec.structs.replace(request, specs=(spec,))
    return run.watch_terminal(run.request_with_terminal(request), False, None)


def _request(
    options: Sequence[str], command: Sequence[str], name: str, said: dict[str, object]
) -> wire.Submit:
    sent = Sbatch(options=tuple(options), text=f"#!/bin/sh\nexec {shlex.join(command)}\n", is_shown=True)
    flags = {key: Given(value=value, where=name) for key, value in said.items()}
    return prepared_submission([name], flags, None, command_only=False, sbatch=sent).request

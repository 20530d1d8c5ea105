"""What a submission takes along from where the user stands: variables, folder, who they are.

Rule: the job sees what was recorded and nothing of the agent's own environment. Values whose names
look like secrets travel apart: they never enter journal, logs or `show`.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cotenant.controller.cli.submission.problems import BadSubmission

ALWAYS: Final = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
NEVER: Final = re.compile(r"_|PWD|OLDPWD|SHLVL|XDG_RUNTIME_DIR|COTENANT_.*|SLURM_.*")
"""Of this shell, not of the job; left out even by `--export ALL`."""
SECRET: Final = re.compile(r"TOKEN|SECRET|KEY|PASSWORD", re.IGNORECASE)
ENVIRONMENT_BYTES_MAX: Final = 512 * 1024


class RecordedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    open: dict[str, str]
    secrets: dict[str, str]


def is_secret(name: str) -> bool:
    return SECRET.search(name) is not None


def record(
    environ: Mapping[str, str], export: Iterable[str] = (), env: Iterable[tuple[str, str | None]] = ()
) -> RecordedEnvironment:
    """The job's variables: the usual ones, those exported, and those set for it (strongest).

    Raises:
        BadSubmission: a variable to copy does not exist, or all together are too large.
    """
    names = set(export)
    everything = "ALL" in names
    taken = {
        name: value
        for name, value in environ.items()
        if (name in ALWAYS and "NONE" not in names) or (everything and not NEVER.fullmatch(name))
    }
    for name in sorted(names - {"ALL", "NONE"}):
        taken[name] = _own(environ, name, "--export")
    for name, value in env:
        taken[name] = _own(environ, name, "--env") if value is None else value
    size = sum(len(name) + len(value.encode(errors="replace")) for name, value in taken.items())
    if size > ENVIRONMENT_BYTES_MAX:
        raise BadSubmission(f"the job's variables take {size} bytes; {ENVIRONMENT_BYTES_MAX} are possible")
    return RecordedEnvironment(
        open={name: value for name, value in sorted(taken.items()) if not is_secret(name)},
        secrets={name: value for name, value in sorted(taken.items()) if is_secret(name)},
    )


def _own(environ: Mapping[str, str], name: str, flag: str) -> str:
    value = environ.get(name)
    if value is None:
        raise BadSubmission(
            f"{flag} {name}: you have no variable {name}", f"give it a value: --env {name}=VALUE"
        )
    return value


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

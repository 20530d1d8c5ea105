"""`cotenant slurm-aliases DIR`: small programs that are called as Slurm's are.

Rule: it never replaces a file that is not ours: on a machine with Slurm it may be Slurm's.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.output import JsonFlag, write_json
from cotenant.controller.cli.frame.parameters import argument
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import hint, say
from cotenant.controller.cli.slurm.programs import PROGRAMS

MARK: Final = "# Written by `cotenant slurm-aliases`."


def slurm_aliases(
    folder: Annotated[str, argument(metavar="DIR", help="A folder on your PATH, such as ~/bin.")],
    as_json: JsonFlag = False,
) -> None:
    """Write sbatch, squeue, scancel, sinfo, sacct and scontrol into a folder: they speak with cotenant.

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
            words = shlex.join((sys.executable, "-m", "cotenant.controller.cli.slurm.programs", name))
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

"""An end for daemons that their owner has no use for any more: another mode, MPS switched off, a GPU gone.

Every daemon that we ever started has an owner's file beside its pipe directory, so `sweep` finds them all. It
is called when no job is on the host.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from cotenant.mps.daemon import Daemon
from cotenant.mps.ownership import SUFFIX, Owned, Spec
from cotenant.mps.process import CONTROL

QUIT_S = 5.0
_NONE = ("none",)


def sweep(
    folder: PurePosixPath,
    owner: str,
    keep: Collection[PurePosixPath],
    program: str = CONTROL,
) -> list[str]:
    """End this owner's daemons in pipe directories of `folder` but those to keep; what was done, in lines."""
    said = []
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        pipe = PurePosixPath(folder) / path.name.removesuffix(SUFFIX)
        if pipe in keep:
            continue
        spec = Spec(pipe_directory=pipe, log_directory=pipe, devices=_NONE, owner=owner, program=program)
        try:
            daemon = Daemon(spec)
        except Owned:  # By a live owner.
            continue
        try:
            if daemon.was_ours:
                left = daemon.stop(QUIT_S)
                said.append(left or f"ended the MPS daemon of {pipe}: it is not needed any more")
                if not left:
                    path.unlink()
        finally:
            daemon.release()
    return said

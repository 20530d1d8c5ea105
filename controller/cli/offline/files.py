"""Where results of simulations are written, and whether plots can be made here."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.problem import Problem

MATPLOTLIB_HINT: Final = 'no plots without matplotlib; to have them: pip install "cotenant[sim]"'


def writable(out: str | None) -> Path | None:
    """The folder for results, made now: nobody wants to learn of it after an hour.

    Raises:
        Problem: it cannot be made.
    """
    if out is None:
        return None
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".written-by-cotenant").touch()
        (folder / ".written-by-cotenant").unlink()
    except OSError as error:
        text = f"{folder} cannot be written to: {error.strerror}"
        raise Problem("refused", text, "choose another --out") from None
    return folder


def matplotlib_or_hint() -> ModuleType | None:
    """The plots; None, and a word on how to get them, where matplotlib is missing."""
    try:
        from cotenant.controller.sim.results import plots
    except ImportError:
        screen.tell(MATPLOTLIB_HINT)
        return None
    return plots

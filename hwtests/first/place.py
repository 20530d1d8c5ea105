"""Where a question is asked: the GPU, the folder, what is allowed. The same for all questions of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Place(NamedTuple):
    """What every question is given."""

    folder: Path
    """Where the run keeps its results."""
    uuid: str
    """Of the GPU that is asked about; empty before one is known."""
    default_pipe: str
    """Where CUDA looks for a daemon of MPS if nobody names a folder."""
    device: str
    """`cuda`; `cpu` in a rehearsal: jobs of torch train on a CPU slot."""
    allow_faults: bool

    @property
    def work(self) -> Path:
        """For files that one question leaves to the next."""
        path = self.folder / "work"
        path.mkdir(exist_ok=True)
        return path


def write_place(place: Place) -> str:
    return json.dumps({**place._asdict(), "folder": str(place.folder)})


def read_place(text: str) -> Place:
    fields: dict[str, Any] = json.loads(text)
    return Place(**{**fields, "folder": Path(fields["folder"])})

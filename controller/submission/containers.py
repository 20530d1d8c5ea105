"""The container of a submission, from `--image` and `--mount`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cotenant.controller.domain import FILE_SUFFIXES, Container, Mount, SlurmScript
from cotenant.controller.submission.options import BadSubmission


def container_of(values: dict[str, Any], workdir: Path, slurm: SlurmScript | None) -> Container | None:
    """The container that the options ask for. Relative paths are below the working directory.

    Raises:
        BadSubmission: the options contradict each other, or would hide what a container needs.
    """
    image: str | None = values.get("image")
    if image is None:
        if "mount" in values:
            raise BadSubmission("--mount alone mounts nothing", "give the image with --image as well")
        return None
    if slurm is not None:
        raise BadSubmission(
            "--image: a script with #SBATCH lines needs srun, which no image has",
            "use #COTENANT lines alone, as in docs/containers.md",
        )
    is_file = image.startswith(("/", "./", "../", "~")) or image.endswith(FILE_SUFFIXES)
    try:
        return Container(
            image=_absolute(image, workdir) if is_file else image.removeprefix("docker://"),
            mounts=tuple(_mount(text, workdir) for text in values.get("mount", ())),
        )
    except (ValueError, RuntimeError) as error:  # RuntimeError: `~name` of nobody.
        raise BadSubmission(f"--image, --mount: {error}") from None


def _mount(text: str, workdir: Path) -> Mount:
    """Reads `SRC[:DST[:ro]]`."""
    words = text.split(":")
    flag = words.pop() if len(words) > 1 and words[-1] in ("ro", "rw") else "rw"
    if not 1 <= len(words) <= 2 or not all(words):
        raise ValueError(f"{text[:80]!r} is not SRC[:DST[:ro]]")
    source = _absolute(words[0], workdir)
    return Mount(source=source, target=words[1] if len(words) > 1 else source, read_only=flag == "ro")


def _absolute(path: str, workdir: Path) -> str:
    return os.path.abspath(workdir / Path(path).expanduser())

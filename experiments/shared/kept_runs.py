"""Runs behind a results page, kept on disk one by one: a stop loses nothing that was finished.

Rule: nothing here knows what is run; a cell is whatever `load` and `run` understand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import machine
import msgspec

C = TypeVar("C")
R = TypeVar("R")


def keep(result: msgspec.Struct, file: Path) -> None:
    """It appears whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.stem}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(result))
    fresh.replace(file)


def read_kept(file: Path, kind: type[R]) -> R | None:
    """Returns a result from the disk; None where it was not run, or its file is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def complete(
    cells: Sequence[C],
    load: Callable[[C], object | None],
    run: Callable[[C, str], None],
    *,
    workers: int,
    minutes: float,
) -> bool:
    """Runs what is not on disk yet, in order, until the time is over; whether all is there afterwards. `load`
    finds a result that is on disk, `run` makes one, with the commit."""
    missing = [cell for cell in cells if load(cell) is None]
    if not missing:
        return True
    commit, began_s = str(machine.facts()["commit"]), time.monotonic()
    upcoming, failed, done = iter(missing), 0, 0
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=200) as pool:
        waiting: dict[Future[None], C] = {}
        while True:
            in_time = time.monotonic() - began_s < 60.0 * minutes
            while in_time and len(waiting) < 2 * workers and (cell := next(upcoming, None)) is not None:
                waiting[pool.submit(run, cell, commit)] = cell
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                cell = waiting.pop(future)
                done += 1
                if (error := future.exception()) is not None:
                    failed += 1
                    print(f"\nfailed: {cell}: {type(error).__name__}: {error}", flush=True)
            _tell(len(missing), done, began_s)
    print()
    return failed == 0 and all(load(cell) is not None for cell in cells)


def _tell(total: int, done: int, began_s: float) -> None:
    spent_s = time.monotonic() - began_s
    left_s = spent_s / done * (total - done) if done else 0.0
    text = f"\r{done}/{total} runs, {spent_s / 60:.1f} min, {left_s / 60:.0f} min left if nothing stops it "
    print(text, end="", flush=True)

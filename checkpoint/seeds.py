"""Seeds that a script does not name: each attempt of a job draws what its first one drew before its loop.

Rule: a script that seeds its generators by a number of its own is left alone. One that seeds them by nothing
gets a number of the job's, and one that seeds them by a number that is another one in each process (the
time's) gets in a later attempt what it got in the first. Standard library only: this may run before torch.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable
from typing import Any, Final

from cotenant.checkpoint.guard import SAVING, door, leave_out_frame
from cotenant.checkpoint.rerun import SEEDS, facts_of_all

SEEDED: Final = {"random": "seed", "numpy.random": "seed", "torch": "manual_seed"}
"""By module with generators that all of the process share: what seeds them."""
ASKED: Final = {
    "random": ("seed",),
    "numpy.random": ("seed", "default_rng"),
    "torch": ("manual_seed",),
}
"""By module, the functions that a script seeds by."""
NUMBERS_MAX: Final = 1000
ENV_SEEDED: Final = "COTENANT_SEEDED"
"""The place in the job of the process that was seeded: those that it starts draw as they would without us."""
_PLACE: Final = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK")


class Seeds:
    """The numbers that one process seeds by, in their order."""

    def __init__(self, job: str, given: list[list[Any]]) -> None:
        """`given`: what the first attempt seeded by."""
        self.used: list[list[Any]] = []
        self._job, self._given = job, given
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        """Module, name, what stands there now and what stood there."""

    def watch(self, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Begin with each module once it is there; its shared generators begin with a number of the job's."""
        for name in ASKED:
            when_imported(name, functools.partial(self._begin, name))

    def end(self) -> None:
        """The loop has begun: from now on nothing is noted and nothing replaced."""
        self._job = ""
        for module, word, ours, original in self._replaced:
            if getattr(module, word, None) is ours:
                setattr(module, word, original)
        self._replaced.clear()

    def _begin(self, name: str, module: Any) -> None:
        seed = getattr(module, SEEDED[name], None)
        if seed is None:  # A module of that name may be somebody else's.
            return
        seed(self._number(0))
        for word in ASKED[name]:
            original = getattr(module, word, None)
            if callable(original):
                ours = self._asking(f"{name}.{word}", original)
                setattr(module, word, ours)
                self._replaced.append((module, word, ours, original))

    def _asking(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @door
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            number = SAVING.run(self._replacement, name, args, kwargs)
            try:
                return original(*args, **kwargs) if number is None else original(number)
            except BaseException as error:
                leave_out_frame(error)
                raise

        return seed

    def _replacement(self, name: str, args: Any, kwargs: Any) -> int | None:
        """The number to seed by in place of what the script says; None: what it says."""
        if not self._job or len(args) + len(kwargs) > 1 or len(self.used) >= NUMBERS_MAX:
            return None
        said = next(iter((*args, *kwargs.values())), None)
        if said is not None and type(said) is not int:
            return None
        at = len(self.used)
        before = self._given[at] if at < len(self._given) else None
        number = self._number(at + 1) if said is None else said
        if before is not None and before[0] == name:
            number = before[1]
        self.used.append([name, number])
        return None if number == said else number

    def _number(self, at: int) -> int:
        rank = os.environ.get("RANK", "0")
        return zlib.crc32(f"{self._job}/{rank}{f'/{at}' if at else ''}".encode())


_watched: list[Seeds] = []


def watch_seeds(job: str, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Begin for this process. Called once, before its script."""
    place = "/".join(os.environ.get(name, "") for name in _PLACE)
    if os.environ.get(ENV_SEEDED) == place:
        return
    os.environ[ENV_SEEDED] = place
    given: Any = next((facts[SEEDS] for facts in facts_of_all() if SEEDS in facts), [])
    _watched.append(Seeds(job, given))
    _watched[0].watch(when_imported)


def seeds_used() -> list[list[Any]]:
    return _watched[0].used if _watched else []


def end_seeds() -> None:
    """The loop has begun."""
    for each in _watched:
        each.end()

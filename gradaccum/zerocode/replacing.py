"""Functions of torch that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replacements:
    """What stands in place of torch's functions. What others have put on top of it stays there; it passes
    everything on then."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any, Any]] = []

    def replace(self, holder: Any, name: str, around: Callable[[Any], Any]) -> None:
        """`around(original)` stands in place of `holder.name`."""
        ours = around(getattr(holder, name))
        own = vars(holder).get(name)  # None: a class that inherits it
        setattr(holder, name, ours)
        self._originals.append((holder, name, ours, own))

    def restore(self, *names: str) -> None:
        """Put the originals back; of these names only, if there are any."""
        for holder, name, ours, own in self._originals:
            if (names and name not in names) or vars(holder).get(name) is not ours:
                continue
            if own is None:
                delattr(holder, name)
            else:
                setattr(holder, name, own)

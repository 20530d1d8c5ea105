"""Which of several controllers to ask: one leads, and the others say who does. Pure.

Rule: the one that answered last comes first, then the others in the order of the setting. A redirect is
followed only to an endpoint of the setting that has not been tried since the last answer, so two controllers
that name each other are not asked in circles.
"""

from __future__ import annotations


class Route:
    """The way from endpoint to endpoint until a controller answers that leads."""

    def __init__(self, endpoints: tuple[str, ...], first: str = "") -> None:
        """Begins with `first` where it is one of the endpoints."""
        assert endpoints
        self.endpoints = endpoints
        self.current = first if first in endpoints else endpoints[0]
        self._tried: set[str] = set()
        """In this round: since the last answer, or since all of them had been tried."""

    @property
    def is_only(self) -> bool:
        return len(self.endpoints) == 1

    def note_answer(self) -> None:
        """The current one has answered and leads."""
        self._tried.clear()

    @property
    def is_round_over(self) -> bool:
        """Whether all others have been tried: before the next round it is time for a rest."""
        return self._tried.union((self.current,)).issuperset(self.endpoints)

    def move_on(self) -> None:
        """Goes to the next one."""
        self._tried.add(self.current)
        if self.is_round_over:
            self._tried.clear()
        at = self.endpoints.index(self.current)
        later = (*self.endpoints[at + 1 :], *self.endpoints[: at + 1])
        self.current = next(each for each in later if each not in self._tried)

    def follow(self, leader: str) -> bool:
        """Goes to the leader that the current one names. False: it stays where it is."""
        self._tried.add(self.current)
        if leader not in self.endpoints or leader in self._tried:
            return False
        self.current = leader
        return True

"""Why a script cannot be saved and resumed."""

from __future__ import annotations


class NotResumable(Exception):
    """The text says why, with the line where there is one."""


class NotYet(NotResumable):
    """It cannot be saved before some more steps are made."""

"""Whose the keywords of a call are, the job's or its function's; and Python's values as the command line's.

Rule: an option of `cotenant submit` is the job's, any other name the function's. Nothing is guessed: a name
that could be both is refused, and so is one that neither of them knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.python.errors import BadCall
from cotenant.controller.python.packing import name_of
from cotenant.controller.submission.options import BY_KEY
from cotenant.controller.submission.settings import NONE, setting


def check_function(function: object) -> None:
    """Checks that `function` is a function. Raises BadCall: it is none, with the call that was meant where
    that can be told."""
    if callable(function):
        return
    words = function.split() if isinstance(function, str) else function
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words):
        words = [*(["python"] if words[0].endswith(".py") else []), *words]
        raise BadCall(f"{function!r} is no function", f"a command is submitted as submit(command={words!r})")
    raise BadCall(f"{function!r} is no function")


class AskedFor(NamedTuple):
    """The keywords of a call, told apart."""

    options: dict[str, Any]
    named: dict[str, Any]
    """Arguments of the function."""


def asked_for(
    function: Callable[..., Any],
    positional: int,
    keywords: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None,
) -> AskedFor:
    """Sorts the keywords of a call into the job's options and the function's arguments. Raises BadCall: a
    keyword is nobody's, or could be both's."""
    free, takes_any = _parameters(function, positional)
    found = AskedFor(dict(options or {}), dict(kwargs))
    for name, value in keywords.items():
        is_option = options is None and name.removesuffix("_") in BY_KEY
        is_named = name in free or (takes_any and not is_option)
        if is_option and is_named and name not in kwargs:
            raise BadCall(
                f"{name}= is an option of submit() and a parameter of {name_of(function)}()",
                f"say which: kwargs={{{name!r}: ...}} is the function's, options={{{name!r}: ...}} the job's",
            )
        if is_option:
            found.options[name] = value
        elif not is_named:
            if options is not None:
                raise BadCall(f"{name_of(function)}() has no parameter {name!r}", "options= has all options")
            what = f"submit() has no option {name!r}, and {name_of(function)}() no such parameter"
            raise BadCall(what, suggestion(name, [*free, *BY_KEY]))
        elif name in kwargs:
            raise BadCall(f"{name}= is given twice: also in kwargs=")
        else:
            found.named[name] = value
    return found


def _parameters(function: Callable[..., Any], positional: int) -> tuple[list[str], bool]:
    """Names that no argument by position has taken; and whether it takes any other name."""
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Of some functions in C nobody can tell.
        return [], True
    by_place = [each for each in known if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    taken = {each.name for each in by_place[:positional]}
    by_name = [each.name for each in known if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in known)
    return [name for name in by_name if name not in taken], takes_any


# --- Values ----------------------------------------------------------------------------------------


def changes_of(given: Mapping[str, object]) -> dict[str, str | int | float | None]:
    """The changes of options as `cotenant set` has them; None takes an option back.

    Raises:
        BadCall: there is no such option, or a value does not fit.
    """
    try:
        return dict(
            setting(f"{name.removesuffix('_')}={NONE if value is None else typed_text(value)}")
            for name, value in given.items()
        )
    except Problem as problem:
        raise BadCall(problem.message, problem.hint) from None


def typed_text(value: object) -> str:
    """The value as a user of the command line would have typed it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    return str(getattr(value, "after_text", value))  # A job, for `after=`.

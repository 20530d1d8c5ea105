"""Keywords of a call, as options of a job.

Rule: the command line's table alone says which there are, what they mean and how to check them; here a Python
value becomes the text that a user would have typed. `class` is no name in Python: `class_` is it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from cotenant.controller.cli.frame.problem import suggestion
from cotenant.controller.cli.submission.options import BY_KEY, OPTIONS, BadSubmission, Option, Options, read
from cotenant.controller.python.errors import BadCall

WHERE: Final = "submit()"


def options_of(given: Mapping[str, object]) -> Options:
    """What was given, parsed and checked; None is the same as not given.

    Raises:
        BadCall: an unknown keyword, or a value that does not fit.
    """
    found: Options = {}
    for name, value in given.items():
        option = BY_KEY.get(name.removesuffix("_"))
        if option is None:
            near = suggestion(name, BY_KEY)
            raise BadCall(f"{WHERE} has no option {name!r}", near or f"options are {', '.join(BY_KEY)}")
        texts = _texts(option, value)
        if texts:
            try:
                found[option.key] = read(option, texts, WHERE)
            except BadSubmission as error:
                raise BadCall(error.message, error.hint) from None
    return found


def _texts(option: Option, value: object) -> tuple[str, ...]:
    """As it would have been typed; none: it was not given."""
    if value is None or (option.switch and value is False):
        return ()
    if isinstance(value, Mapping):  # env={"A": "1"}
        return tuple(f"{name}={text}" for name, text in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | os.PathLike):
        words = tuple(map(_text, value))
        return words if option.repeat else (",".join(words),) if words else ()
    return (_text(value),)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    return str(getattr(value, "after_text", value))  # A job, for `after=`.


def signature(before: inspect.Signature) -> inspect.Signature:
    """With the options in place of `**options`, for `help()` and for completion in notebooks."""
    own = [each for each in before.parameters.values() if each.kind is not each.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    taken = {each.name for each in own}
    names = [each.key + ("_" if each.key == "class" else "") for each in OPTIONS]
    more = [inspect.Parameter(n, keyword, default=None, annotation=Any) for n in names if n not in taken]
    return before.replace(parameters=[*own, *more])

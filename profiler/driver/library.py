"""NVIDIA's management library (NVML), opened in one place.

Rule: nobody else imports pynvml, and only a process that somebody else waits for opens it, for any call may
never come back. What a driver, a GPU or the binding lacks is None for `maybe` and a `NvmlError` for `ask`.
Callers give NVML's constants by number: their names differ between versions of the binding, and some of them
are wrong there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, Self, TextIO

import msgspec

from cotenant.profiler.driver.facts import FUNCTION_NOT_FOUND, NOT_NVMLS, NvmlError

NO_BINDING: Final = "the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py"


class Library:
    """NVML, open until it is closed."""

    def __init__(self, binding: Any) -> None:
        """`binding`: pynvml. Raises NvmlError: the driver does not work."""
        self.binding = binding
        self.ask("nvmlInit")

    def ask(self, call: str, *arguments: Any, **more: Any) -> Any:
        """The answer of one call, text as str. Raises NvmlError."""
        function = getattr(self.binding, call, None)
        if function is None:
            raise NvmlError(FUNCTION_NOT_FOUND)
        try:
            answer = function(*arguments, **more)
        except self.binding.NVMLError as error:
            raise NvmlError(error.value, str(error)) from None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def maybe(self, call: str, *arguments: Any) -> Any:
        """The answer, or None where there is none."""
        try:
            return self.ask(call, *arguments)
        except NvmlError:
            return None

    def close(self) -> None:
        self.maybe("nvmlShutdown")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_library() -> Library:
    """Raises NvmlError: there is no binding, or the driver does not work."""
    try:
        import pynvml
    except ImportError:
        raise NvmlError(NOT_NVMLS, NO_BINDING) from None
    return Library(pynvml)


def tell(answer: Callable[[Library], Any], otherwise: Callable[[NvmlError], Any]) -> int:
    """The whole life of a child that is asked once: a line of JSON on standard output and 0, whatever NVML
    does. `otherwise` makes the answer where there is none."""
    answers = own_output()
    try:
        with open_library() as nvml:
            said = answer(nvml)
    except NvmlError as error:
        said = otherwise(error)
    print(msgspec.json.encode(said).decode(), file=answers, flush=True)
    return 0


def own_output() -> TextIO:
    """The way back to whoever asks. What a foreign library prints from now on, from C as well, goes to
    standard error: on the way back it would be taken for an answer that makes no sense."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers

"""The `cotenant` command: find the verb, import its module, run it, turn what went wrong into one line.

Rule: nothing heavy is imported before it is needed. `cotenant --help` is a table of text.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cotenant.controller.cli import verbs
from cotenant.controller.cli.frame.problem import part_of, usage_problem
from cotenant.controller.present.interruption import ended_by, listening
from cotenant.controller.present.problem import CLOSED_PIPE, FAILED, INTERRUPTED, OK, USAGE, Problem, nearest

if TYPE_CHECKING:
    import click

UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if os.environ.get(verbs.COMPLETE_VARIABLE):
        from cotenant.controller.cli.setup.completion import answer

        return answer()
    open_streams()
    with listening():
        return run_guarded(lambda: run(words), as_json=asks_for_json(words))


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether the words before the user's own command ask for JSON."""
    ours = [*words[: words.index("--")]] if "--" in words else [*words]
    forms = {form for flag, form in pairwise(ours) if flag in ("-o", "--output")}
    forms |= {word[2:] for word in ours if word.startswith("-o") and len(word) > 2}
    forms |= {word.removeprefix("--output=") for word in ours if word.startswith("--output=")}
    forms |= {"json"} if "--json" in ours else set()
    return bool(forms) and forms <= {"json", "jsonl"}


def run_guarded(act: Callable[[], int], *, as_json: bool = False) -> int:
    """What goes wrong, as one line and an exit code; `as_json`: on standard output as an object, too."""
    try:
        code = say_in_words(act)
        sys.stdout.flush()  # here, where a full disk can still be said
        return code
    except Problem as problem:
        print(problem, file=sys.stderr)
        if as_json:
            from cotenant.controller.cli.frame.output import write_json

            write_json(problem.as_json())
        return problem.exit_code
    except KeyboardInterrupt:
        code = ended_by()
        # A terminal shows ^C where the cursor stood.
        before = "\n" if code == INTERRUPTED and sys.stderr.isatty() else ""
        print(f"{before}{'interrupted' if code == INTERRUPTED else 'terminated'}", file=sys.stderr)
        return code
    except BrokenPipeError:  # `cotenant queue | head`
        drop_output()
        return CLOSED_PIPE
    except RuntimeError as error:
        if "home directory" not in str(error):  # As pathlib says it of `~NAME`.
            raise
        why = "a path begins with ~NAME, and there is no such account"
        print(Problem("usage", why, "name the folder itself"), file=sys.stderr)
        return USAGE
    except OSError as error:
        if error.filename is not None:  # What a person named, or what this machine does not allow.
            print(Problem("failed", f"{str(error.filename)[:200]}: {error.strerror}"), file=sys.stderr)
            return FAILED
        if error.errno not in UNWRITABLE:
            raise
        drop_output()
        print(Problem("failed", f"standard output cannot be written: {error.strerror}"), file=sys.stderr)
        return FAILED


def say_in_words(act: Callable[[], int]) -> int:
    """Does it. Raises Problem also for a socket or a folder of sockets that cannot be used, whoever asked."""
    try:
        return act()
    except (OSError, ValueError) as error:
        from cotenant.controller.system import endpoint, paths

        if isinstance(error, paths.PathError | endpoint.BadEndpoint):
            raise Problem("config", str(error)) from None
        raise


def open_streams() -> None:
    """Point streams that the caller has closed (`>&-`) to nowhere; else the next file opened would be one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as we live)
    if isinstance(sys.stdout, io.TextIOWrapper):  # A name that this locale cannot write is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """What is still buffered would fail once more at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(words: list[str]) -> int:
    """Raises Problem for everything that can go wrong."""
    for number, word in enumerate(words, 1):  # Of a program that calls us; no shell can pass either.
        if "\0" in word:
            raise Problem("usage", "an argument has a NUL in it")
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise Problem("usage", f"argument {number} has half of a character in it: {word!a}") from None
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return run([words[1], "--help"])
        print(verbs.help_text())
        return OK
    if words[0] in ("-V", "--version"):
        words = ["version"]
    for part in verbs.IMPORTED_ALONE:
        named = part.name.split()
        if words[: len(named)] == named:
            return execute(part, words[len(named) :])
    verb = verbs.BY_NAME.get(verbs.SYNONYMS.get(words[0], words[0]))
    gone = " ".join(words[:2])
    if verb is None:
        raise no_verb(words)
    if gone in verbs.NOT_HERE:
        raise Problem("usage", f"there is no verb {gone!r}", verbs.NOT_HERE[gone])
    return execute(verb, words[1:])


def no_verb(words: list[str]) -> Problem:
    """What may have been meant by a command line whose first word is no verb."""
    first = words[0]
    if first.startswith("-"):
        at = next(
            (at for at, word in enumerate(words) if verbs.SYNONYMS.get(word, word) in verbs.BY_NAME), None
        )
        order = ["VERB", *words] if at is None else [words[at], *words[:at], *words[at + 1 :]]
        return Problem(
            "usage", f"{first} comes after the verb", f"try `{shlex.join([verbs.PROGRAM, *order])}`"
        )
    if first in verbs.NOT_HERE:
        return Problem("usage", f"there is no verb {first!r}", verbs.NOT_HERE[first])
    near = nearest(first, [*verbs.BY_NAME, *verbs.SYNONYMS], cutoff=0.6)
    meant = verbs.SYNONYMS.get(near, near)
    hint = f"did you mean `{verbs.PROGRAM} {meant}`?" if meant else "`cotenant --help` lists the verbs"
    return Problem("usage", f"there is no verb {first!r}", hint)


@contextmanager
def pause_collector() -> Iterator[None]:
    """Keeps the garbage collector off during imports: nearly all that they make stays to the end. The
    collector looks at none of it, neither now nor when the interpreter ends: each would be a tenth of a short
    verb."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def execute(verb: verbs.Verb, words: list[str]) -> int:
    with pause_collector():
        command = verbs.verb_command(verb)
    return invoke(command, f"{verbs.PROGRAM} {verb.name}", words)


def invoke(command: click.Command, name: str, words: list[str]) -> int:
    """Runs a command that people call by `name`. Raises Problem for everything that can go wrong."""
    import click

    try:
        # Not `command.main`: that one turns a closed pipe into exit code 1.
        with command.make_context(name, list(words), obj=words) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.UsageError as error:
        raise usage_problem(error, part_of(command, name, words)) from None
    return code if isinstance(code, int) else OK


if __name__ == "__main__":
    sys.exit(main())
